"""How near any attacker at all can come to a record, given the noise on its update."""

from typing import Any, ClassVar

from pydantic import Field

from gradaudit.audits.base import Audit, Metric
from gradaudit.audits.presets import SAMPLED_LAYERS
from gradaudit.audits.sharing_options import ClientOptions


class FloorOptions(ClientOptions):
    """Options of the floor."""

    sigma: float = Field(
        0.0,
        ge=0,
        description="Standard deviation of Gaussian noise on the update, where no --defense dp: "
        "adds noise.",
    )
    batch_size: int = Field(
        1, ge=1, description="Number of records in an update; the attacker knows all but one."
    )
    directions: int = Field(
        256,
        ge=1,
        description="Number of the prior's leading directions that are measured one by one; the "
        "others have one variance and are measured together.",
    )
    within: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Largest squared error of a successful reconstruction, as a share of "
        "the prior's variance.",
    )

    def seen(self) -> dict[str, Any]:
        """Describe no setting, as a floor holds for every attacker."""
        return {}


class Floor(Audit[FloorOptions]):
    """Bounds on every attacker, known or not, who sees one noisy gradient of a record.

    The attacker knows all but the record x: weights, label, the other records of the batch, the
    noise's law and the prior N(m, C) of x, a Gaussian law with the data's mean and shrunk
    covariance. With J = ∂G/∂x of the clipped gradient that a layer shares, biases too, σ the
    deviation of Gaussian noise on the update, and Ã = C^½ E[JᵀJ] C^½ / σ² (over 1/k² where k
    records are averaged), the expectation over records of the prior:

    The mse_share is E‖x̂ − x‖² / tr C ≥ tr(C (I + Ã)⁻¹) / tr C, in the prior's directions: the van
    Trees inequality (1968; R. Gill and B. Levit, "Applications of the van Trees inequality", 1995,
    equation 10; for gradients C. Guo et al., "Bounding training data reconstruction in private
    (deep) learning", 2022, section 3).

    The nats are I(x; update) ≤ ½ ln det(I + Ã) (S. Efroimovich, "Information contained in a
    sequence of observations", 1979).

    By rero no attacker's squared error is within ``--within`` of tr C more often than Φ(Φ⁻¹(κ) +
    Δ/σ), with κ a bound on how often the mean is (J. Hayes et al., "Bounding training data
    reconstruction in DP-SGD", 2023, theorem 2); it needs a clip, and holds for every model.

    Layers' information adds up. The expectation is over ``--samples`` drawn records (64, and up to
    1,024 where they are cheap). The number is the conservative end of the interval for it, with
    97.5 % confidence: a floor's lower end, an information's upper end. It is Hall's, of tangents of
    the functional at other records' information. ``details.estimate`` is their mean.

    What is done to an update after the noise only helps. A kink (ReLU, max pooling) makes gradients
    of the layers before it jump, and local steps make an update no mean over its records: neither
    has a floor. A floor says nothing of records that are no draws of the prior, and a low one shows
    no attack.
    """

    name = "floor"
    summary = "Bound every attacker's error from below, given the noise and a prior."
    paper = "https://arxiv.org/abs/2201.12383"
    applies_defenses = True
    metrics = (
        Metric(
            id="mse_share",
            title="Least mean squared error of any attacker, as share of the prior's variance",
            riskier="lower",
            question="records",
            guarantee=True,
            chance=1.0,
        ),
        Metric(
            id="nats",
            title="Most information that the update gives about a record",
            unit="nat",
            riskier="higher",
            question="records",
            guarantee=True,
            chance=0.0,
        ),
        Metric(
            id="rero",
            title="Most often that any attacker comes near a record",
            riskier="higher",
            question="records",
            guarantee=True,
        ),
    )
    headline = ("mse_share",)
    Options = FloorOptions
    one_thread = True
    examples = (
        "-m 'zoo:cnn3?shape=1x8x8' -d digits --defense dp:clip=1,sigma=0.1",
        "-m FILE.py:factory -c weights.safetensors -d 'csv:table.csv?label=income' --sigma 0.01",
    )
    priority = 110
    least: ClassVar = {"samples": 16, "directions": 64, "layers": SAMPLED_LAYERS}
    quick: ClassVar = {"samples": 32, "directions": 128}
    thorough: ClassVar = {"samples": 256, "directions": 1024}
