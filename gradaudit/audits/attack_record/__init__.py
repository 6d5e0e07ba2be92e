"""The audit of whether a given record is behind a shared update."""

from functools import partial
from typing import ClassVar

from pydantic import Field, field_validator

from gradaudit.audits.base import Audit, Metric
from gradaudit.audits.sharing_options import SharingOptions

_STRONGER = "the audit's --shadow, --updates and --reduce none"
_HELPS = "larger batches (--deployment), sums of more clients (--others), or noise (--defense)"


class RecordOptions(SharingOptions):
    """Options of the attack on a record's presence."""

    shadow: int = Field(
        400,
        ge=8,
        description="Largest number of other records of the same population that the attacker "
        "fits the covariance of updates on.",
    )
    updates: int = Field(
        128,
        ge=8,
        description="Number of updates that are attacked, and of shadow updates that the attacker "
        "draws from records of its own to choose and to calibrate its statistic.",
    )
    candidates: int = Field(
        256,
        ge=16,
        description="Largest number of records outside of each update that the attacker has to "
        "tell from those behind it.",
    )
    repeats: int = Field(
        5,
        ge=2,
        description="Number of games, each with other records for the attacker and other updates.",
    )
    given: tuple[int, ...] = Field(
        (),
        description="Numbers, from 0, of the data set's records whose presence in the first update "
        "is tested, as in 3,14.",
    )
    records: tuple[int, ...] = Field(
        (),
        description="Numbers, from 0, of the data set's records that make the attacked update; "
        "with --update, of the records behind it, against which the attack is scored.",
    )
    update: str | None = Field(
        None,
        description="Captured update to attack: a file of gradients (safetensors or a state "
        "dict), or two checkpoints OLD,NEW.",
    )

    @field_validator("given", "records", mode="before")
    @classmethod
    def _apart(cls, given: object) -> object:
        """Split texts such as ``1,2`` into numbers."""
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list | tuple):
            return given
        return [n for text in texts for n in (text.split(",") if isinstance(text, str) else [text])]

    @field_validator("given", "records")
    @classmethod
    def _counted(cls, numbers: tuple[int, ...]) -> tuple[int, ...]:
        if any(number < 0 for number in numbers):
            raise ValueError("records are counted from 0")
        return numbers


_riskier = partial(Metric, riskier="higher", question="records")


class AttackRecord(Audit[RecordOptions]):
    """Decide whether a record was in the batch behind an update: membership in one update.

    The attacker knows the model, how updates are made, a candidate with its label, and other
    records of the population. With d = g − μ, g the candidate's gradient and μ the mean of others',
    its statistic is the projection t = dᵀ S_λ⁻¹ (U − μ) of the update U, where S_λ is the
    covariance of others' gradients shrunk towards the identity. Shadow updates without the
    candidate give t's mean m and deviation s for this candidate (Carlini et al. 2022, section V:
    one law a record, here of the update in place of the loss). In an update with it the mean is
    m + a (dᵀ S_λ⁻¹ d − m), a = 1/k for the gradient of k records, as the candidate's own gradient
    is known; behind local steps and defenses a is fitted on shadow updates, as is the variance.
    The score is the logarithm of the ratio of both normal densities, or t in deviations; which, and
    how much S is shrunk, is what tells best in shadow updates of records that are never attacked.
    All is computed from inner products of gradients, so that layers may have any size; of a layer
    of more elements than fit a random part is read.

    record_auroc is the probability that a record of the batch scores higher than another one for
    the same kind of updates; TPR is at 1 % and 0.1 % false positives, over all pairs of update and
    record. They are means over games on other splits of the records, and their intervals hold for
    new records, updates and attackers (Nadeau and Bengio 2003); within a game they allow for
    records that occur in several pairs and for pairs of one update (two-way clusters; Cameron,
    Gelbach and Miller 2011). ``permuted`` beside them is the same score of another update.

    record_certified: the gradient Σ_t δ_t [a_t; 1]ᵀ of a fully connected layer has its rows in the
    span of what came in. A candidate is certified where its [a; 1] lies nearer to that span than a
    tenth of the least distance of any decoy (Petrov et al. 2024, DAGER, theorem 3.1). It is void
    where what came in fills the layer's width or its outputs. record_false is the share of records
    that were not in the batch and are certified; its upper end is Clopper and Pearson's.

    Source: N. Carlini et al., "Membership inference attacks from first principles" (2022), section
    V; J. Ye et al., "Enhanced membership inference attacks against machine learning models" (2022).
    """

    name = "attack record"
    summary = "Infer whether a given record is in an update, at every layer."
    paper = "https://arxiv.org/abs/2112.03570"
    applies_defenses = True
    metrics = (
        _riskier(
            id="record_auroc",
            title="How well a record of the batch is distinguished from others (AUROC)",
            chance=0.5,
            warning=0.6,
            error=0.9,
            why="this layer's gradient reveals whether a given record is in the batch",
            finding="The presence of a record is inferred.",
            asks="Is the presence of a record inferred?",
            noun="AUROC",
            cleared="not distinguished",
            helps=_HELPS,
            stronger=_STRONGER,
        ),
        _riskier(
            id="record_tpr_at_1pct_fpr",
            title="Share of the batch's records that are recognised at 1 % false positives",
            chance=0.01,
            stronger=_STRONGER,
        ),
        _riskier(
            id="record_tpr_at_01pct_fpr",
            title="Share of the batch's records that are recognised at 0.1 % false positives",
            chance=0.001,
            stronger=_STRONGER,
        ),
        _riskier(
            id="record_certified",
            title="Share of the batch's records that the layer's span proves",
            chance=0.0,
            warning=0.0,
            error=0.1,
            why="whoever holds a record can prove from this layer's gradient that it was used",
            finding="The presence of records is proved.",
            asks="Is the presence of records proved?",
            noun="share of records proved",
            cleared="not proved",
            helps=_HELPS,
        ),
        Metric(
            id="record_false",
            title="Share of records outside of the batch that the layer's span certifies",
        ),
        Metric(
            id="record_p_value",
            title="How likely a record outside of the update scores so high",
            riskier="lower",
            question="records",
        ),
    )
    headline = ("record_certified", "record_auroc")
    Options = RecordOptions
    examples = (
        "-m zoo:mlp -d digits --batch-size 32",
        "-m FILE.py:factory -c weights.safetensors -d 'csv:table.csv?label=income' "
        "--update captured.safetensors --given 3,14",
    )
    priority = 40
    least: ClassVar = {
        "updates": 16, "shadow": 64, "candidates": 32, "samples": 300, "reduce": "subset:1000",
        "repeats": 3,
    }  # fmt: skip
    quick: ClassVar = {
        "updates": 48, "shadow": 200, "candidates": 64, "reduce": "subset:10000", "repeats": 5
    }  # fmt: skip
    plain: ClassVar = {"updates": 64, "candidates": 128, "reduce": "subset:20000"}
    thorough: ClassVar = {"updates": 256, "shadow": 1000, "candidates": 512}
