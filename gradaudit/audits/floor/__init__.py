"""How near any attacker at all can come to a record, given the noise on its update."""

from typing import Any, ClassVar

from pydantic import Field, field_validator

from gradaudit.audits.base import Audit, Metric
from gradaudit.audits.presets import SAMPLED_LAYERS
from gradaudit.audits.sharing_options import ClientOptions

GAP = Metric(
    id="gap",
    title="Least mean squared error of the attacks that were tried, less the floor",
)


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
    rounds: int = Field(
        1,
        ge=1,
        description="Number of updates with the same record in them, each with noise of its own, "
        "that the attacker sees together; they are dealt to the newest checkpoints evenly. With 1 "
        "every checkpoint's update is bounded by itself.",
    )
    prior: str = Field(
        "fitted",
        description="Prior that the attacker has of a record: fitted (a Gaussian law with the "
        "data's mean and shrunk covariance), by-label (the same with a mean for each label, "
        "which the attacker knows), or FILE.npz with mean (d,) and covariance (d, d).",
    )
    directions: int = Field(
        256,
        ge=1,
        description="Number of the prior's leading directions that are measured one by one; the "
        "others are measured in random groups, which only lowers the floor.",
    )
    within: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Largest squared error of a successful reconstruction, as a share of "
        "the prior's variance.",
    )
    attacked: int | None = Field(
        None,
        ge=0,
        description="Number of the prior's records whose updates are attacked, to measure the gap "
        "above the floor: 0, or 2 and more (without it 16, and none where the model would take "
        "long).",
    )

    @field_validator("attacked")
    @classmethod
    def _several(cls, attacked: int | None) -> int | None:
        """Refuse one record, of which no interval is known."""
        if attacked == 1:
            raise ValueError("the error of one record has no interval; attack 2 or more, or 0")
        return attacked

    def seen(self) -> dict[str, Any]:
        """Describe no setting, as a floor holds for every attacker."""
        return {}


class Floor(Audit[FloorOptions]):
    """Bounds on every attacker, known or not, who sees one noisy update of a record.

    He knows all but the record x: weights, label, the other records of the batch, the order of
    local steps, the noise's law and the prior N(m, C) of x. With J = ∂G/∂x of the clipped gradient
    that a layer shares, biases too, σ the noise on the update, and à = C^½ E[JᵀJ] C^½ / σ² (over
    1/k² where k records are averaged; for Laplace noise of scale b, b for σ), the expectation over
    records of the prior. After local training, or where the batch is clipped as a whole or weighs
    its records, G is the whole update beside others drawn from the data (``Companions``).

    The mse_share is E‖x̂ − x‖² / tr C ≥ tr(C (I + Ã)⁻¹) / tr C, in the prior's directions: the van
    Trees inequality (1968; R. Gill and B. Levit, "Applications of the van Trees inequality", 1995,
    equation 10; for gradients C. Guo et al., "Bounding training data reconstruction in private
    (deep) learning", 2022, section 3).

    The nats are I(x; update) ≤ ½ ln det(I + Ã) (S. Efroimovich, "Information contained in a
    sequence of observations", 1979).

    By rero no attacker's squared error is within ``--within`` of tr C more often than Φ(Φ⁻¹(κ) +
    Δ/σ), with κ a bound on how often the mean is (J. Hayes et al., "Bounding training data
    reconstruction in DP-SGD", 2023, theorem 2); it needs a clip, and holds for every model.

    The mse_share and the nats are each the better of two such bounds, the second for an attacker
    who is told u of z = u + v, with z the record in the prior's directions and v ~ N(0, T): E_u
    tr(C (T⁻¹ + Ã_u)⁻¹) / tr C and E_u ½ ln det(T⁻¹ + Ã_u), with T⁻¹ = I + 3 E[s sᵀ] and s = ∇_z ln
    ‖G‖² of other records. The mse_share has a third, in which each record has weights H = (I + a
    Ã(x) + b E[Ã])⁻¹ of its own (``matrix_weights``; B. Bobrovsky, E. Mayer-Wolf and M. Zakai, "Some
    classes of global Cramér-Rao bounds", 1987): 2α E Hᵢᵢ − α² (E[H Ã H]ᵢᵢ + E (div hᵢ − hᵢᵀz)²) in
    the prior's 64 leading directions i. A trained network gives away much of few records and little
    of most: van Trees alone then lies far below the error of the best attacker
    (``benchmarks/coverage/floors.py``).

    The gap is what nobody knows of a layer: the mean squared error of the best attack that was
    tried, over tr C, less the floor. The attacks are on ``--attacked`` drawn records, by who knows
    all that a floor grants (``playing``); a better attack may exist, and a better floor. Its
    interval is Hall's, over records. ``details`` have both ends, and in nats: what the attack
    shows at least (Shannon's rate distortion function), and what the update gives at most.

    Layers' information adds up. The expectation is over ``--samples`` drawn records (64, and up to
    1,024 where they are cheap). The number is the safe end of the interval for it, with 97.5 %
    confidence: a floor's lower end, an information's upper end. It is Hall's, of tangents of the
    functional at other records' information, which lie on the safe side of the truth on average.
    ``details.estimate`` is their mean. More records bring the number nearer to the estimate.

    What is done to an update after the noise only helps. A kink (ReLU, max pooling) makes gradients
    of the layers before it jump; what is left is the bound by the law of updates, I(x; update) ≤
    E ln p(y | x)/q(y) for a normal law q of other records' updates (D. Barber and F. Agakov, "The
    IM algorithm", 2003), and the least error of so many nats (Shannon's rate distortion function).
    It is tried elsewhere too. Of several updates with one record and fresh noise (``--rounds``)
    information, inner products and attacks are taken together; rounds at the same weights count
    like one update of their mean. A floor says nothing of records that are no draws of the prior,
    and of what a low floor allows: it shows no attack.
    """

    name = "floor"
    summary = "Bound every attacker's error from below, given the noise and a prior."
    question = "How near can any attacker at all come to a record, given the noise?"
    paper = "https://arxiv.org/abs/2201.12383"
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
        GAP,
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
