"""Inference from gradients: of an attribute, a property, a distribution, a user."""

from functools import partial
from typing import ClassVar, Literal, TypeVar

from pydantic import Field, field_validator

from gradaudit.audits.base import Audit, MergeRare, Metric, split_at_commas
from gradaudit.audits.presets import SAMPLED_LAYERS
from gradaudit.audits.sharing_options import SharingOptions

_STRONGER = "scan --thorough or the audit's --family forest,mlp,logistic and --batches"


class InferenceOptions(SharingOptions):
    """Options of an inference attack."""

    batch_size: int | None = Field(  # type: ignore[assignment]
        None,
        ge=1,
        description="Number of records in a batch (without it the paper's: 16 for attribute and "
        "property, 128 for distribution, 8 for user).",
    )
    shadow: int = Field(
        1000,
        ge=2,
        description="Largest number of records of the same population that the adversary has.",
    )
    batches: int = Field(
        400,
        ge=10,
        description="Number of shadow batches that the adversary is fitted on in each repeat.",
    )
    trials: int = Field(
        2000,
        ge=2,
        description="Number of private batches that the adversary has to guess, over all repeats.",
    )
    repeats: int = Field(
        5,
        ge=1,
        le=100,
        description="Number of splits into shadow and private records; the game is played on each.",
    )
    merge_rare: MergeRare = 0
    rounds: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="Number of observed rounds: the last checkpoints (without it all of them); "
        "without checkpoints the audit trains that many rounds itself (3).",
    )
    learning_rate: float = Field(
        0.01, gt=0, description="Learning rate of SGD in the rounds that the audit trains itself."
    )
    adaptive: bool = Field(
        True,
        description="Also play an adversary that knows the defenses and applies them to its shadow "
        "updates; its result becomes the headline.",
    )
    knows: tuple[str, ...] = Field(
        (),
        description="Columns of the batch's records that the adversary knows (COL,…; label is the "
        "task label).",
    )
    prior: Literal["empirical", "uniform"] = Field(
        "empirical",
        description="Prior of the values: their frequencies among private batches, which the "
        "adversary knows.",
    )
    family: tuple[str, ...] = Field(
        ("forest", "norms"),
        description="Predictive families (forest, norms, mlp, logistic); where several are "
        "named, the adversary weighs their answers by how well each predicts "
        "held-out records.",
    )
    held_out: float = Field(
        0.2,
        ge=0,
        lt=1,
        description="Share of the shadow records that is kept for model selection and calibration.",
    )

    @field_validator("knows", "family", mode="before")
    @classmethod
    def _names(cls, given: object) -> object:
        names = split_at_commas(given)
        if isinstance(names, tuple) and not all(names):
            raise ValueError("an empty name; write COL or COL,COL")
        return names


class DistributionOptions(InferenceOptions):
    """Options of distributional inference."""

    bins: int = Field(
        6,
        ge=3,
        le=64,
        description="Number of bins of the share: one for a share of 0, the others divide (0, 1] "
        "equally.",
    )
    value: str | None = Field(
        None, description="Value of the attribute whose share is guessed (by default the rarest)."
    )


class UserOptions(InferenceOptions):
    """Options of user inference."""

    candidates: int = Field(5, ge=2, le=1000, description="Number of candidate users.")


O = TypeVar("O", bound=InferenceOptions)  # noqa: E741 - O for options


_riskier_higher = partial(Metric, riskier="higher")
_played = partial(_riskier_higher, stronger=_STRONGER)


class InferenceAttack(Audit[O]):
    """An inference attack as an audit: rows for the whole update (layer null) and every layer.

    The headline is the strongest adversary that was declared: all rounds together, and adaptive
    where there are defenses. Beside it stand each ``round`` alone, the ``static`` adversary, what
    known columns alone give (``knowledge: imputation``), and the same game with the secret
    shuffled among the records (``attribute_permuted``): what is found there is no leakage, and
    limits stand on what is above it (``auroc_gain``).

    The game is played on several splits of the records, and intervals are over all of them: for
    another shadow and private set of as many records of the same population. They are those of
    U-statistics, since batches share records or users.
    """

    applies_defenses = True
    metrics = (
        _played(id="asr", title="Attack success rate: how often the guess was right"),
        _played(
            id="auroc",
            title="Area under the attack's ROC curve, averaged over values",
            chance=0.5,
        ),
        _played(
            id="advantage", title="Share of the errors of guessing blindly that the gradient spares"
        ),
        _played(
            id="tpr_at_1pct_fpr",
            title="True positive rate at 1 % false positives, averaged over values",
        ),
        _played(
            id="auroc_gain",
            title="AUROC less that of the same adversary for the secret shuffled among the records",
            warning=0.2,
            error=0.25,
            why="an attacker ranks batches by the private value from their gradients",
            question="attribute",
            chance=0.0,
            finding="The {secret} of a batch is inferred.",
            asks="Is the {secret} of a batch inferred?",
            noun="AUROC above shuffled",
            cleared="not inferred",
            helps="noise (--defense)",
        ),
        _played(
            id="advantage_gain",
            title="Advantage less that of the same adversary for the secret shuffled",
        ),
        _riskier_higher(
            id="fano_bound",
            title="Largest advantage that the noise leaves to any adversary (1: no bound)",
        ),
        Metric(
            id="log_loss",
            title="The adversary's surprise by the truth, after calibration",
            unit="nats",
            riskier="lower",
            stronger=_STRONGER,
        ),
    )
    headline = ("auroc", "auroc_gain")
    priority = 50
    least: ClassVar = {
        "trials": 200,
        "batches": 100,
        "repeats": 1,
        "rounds": 1,
        "shadow": 160,
        "family": ["logistic", "norms"],
        "reduce": "subset:1000",
        "samples": 160,
        "layers": SAMPLED_LAYERS,
    }
    quick: ClassVar = {"trials": 400, "batches": 100, "repeats": 2, "rounds": 1}
    plain: ClassVar = {"batches": 100, "repeats": 3}
    thorough: ClassVar = {"trials": 5000, "batches": 1000}


class AttackAttribute(InferenceAttack[InferenceOptions]):
    """Guess a private input column of a batch from the gradients it gives.

    All records of a batch have one value of the attribute; the adversary fits P(a|g) on batches of
    shadow records, and adds up what it learns over rounds: log P(a|G) =
    Σ_r [log P_r(a|g_r) − log π_train(a)] + log π(a) + C.

    Source: Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning"
    (2024), sections 3.2 and 4, definition 3.1.
    """

    name = "attack attribute"
    summary = "Infer an attribute among a batch's inputs from its gradients."
    paper = "https://arxiv.org/abs/2408.16913"
    Options = InferenceOptions


class AttackProperty(InferenceAttack[InferenceOptions]):
    """Guess a property of a batch that is no input of the model from the gradients it gives.

    As attribute inference, but the attribute's column is not among the inputs: it was dropped in
    the data's spec (``drop=COL``), or is held at its mean where the model takes it.

    Source: Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning"
    (2024), sections 3.2 and 4, definition 3.1.
    """

    name = "attack property"
    summary = "Infer a property outside a batch's inputs from its gradients."
    paper = "https://arxiv.org/abs/2408.16913"
    Options = InferenceOptions


class AttackDistribution(InferenceAttack[DistributionOptions]):
    """Guess how many of a batch's records have a value, in ordered bins of their share.

    With m bins {0}, (0, 1/(m−1)], …, ((m−2)/(m−1), 1], the adversary fits one classifier of "more
    than bin i" for each i (Frank and Hall 2001), clips the differences and normalises.

    Source: Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning"
    (2024), sections 3.2 and 4, definition 3.1.
    """

    name = "attack distribution"
    summary = "Infer the share of a batch's records with a value."
    paper = "https://arxiv.org/abs/2408.16913"
    priority = 60
    Options = DistributionOptions
    plain: ClassVar = {"batches": 90, "repeats": 2}


class AttackUser(InferenceAttack[UserOptions]):
    """Guess which of some candidate users a batch is of, given other records of each of them.

    An encoder f is trained on gradients of other users; a candidate's probability is
    exp(−‖f(g_a) − f(g̃)‖₂) / Σ_i exp(−‖f(g_i) − f(g̃)‖₂). No user is both trained on and attacked.

    Source: Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning"
    (2024), sections 3.2 and 4, definition 3.1.
    """

    name = "attack user"
    summary = "Identify the user of a batch from its gradients."
    paper = "https://arxiv.org/abs/2408.16913"
    Options = UserOptions
    examples: ClassVar = (
        "-m FILE.py:factory -d 'csv:table.csv?label=income&user=age'",
        "-m FILE.py:factory -c weights.safetensors -d 'csv:table.csv?label=income&user=age' "
        "--candidates 3",
    )
