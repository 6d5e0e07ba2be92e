"""Inference from gradients: of an attribute, a property, a distribution, a user."""

from typing import ClassVar, TypeVar

from gradaudit.audits.attack_inference.options import (
    DistributionOptions,
    InferenceOptions,
    UserOptions,
)
from gradaudit.audits.base import Audit, Metric

O = TypeVar("O", bound=InferenceOptions)  # noqa: E741 - O for options


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

    metrics = (
        Metric(
            id="asr", title="Attack success rate: how often the guess was right", riskier="higher"
        ),
        Metric(
            id="auroc",
            title="Area under the attack's ROC curve, averaged over values",
            riskier="higher",
        ),
        Metric(
            id="advantage",
            title="Share of the errors of guessing blindly that the gradient spares",
            riskier="higher",
        ),
        Metric(
            id="tpr_at_1pct_fpr",
            title="True positive rate at 1 % false positives, averaged over values",
            riskier="higher",
        ),
        Metric(
            id="auroc_gain",
            title="AUROC less that of the same adversary for the secret shuffled among the records",
            riskier="higher",
            warning=0.2,
            error=0.25,
            why="the gradient ranks what is private so well that a server can tell it",
        ),
        Metric(
            id="advantage_gain",
            title="Advantage less that of the same adversary for the secret shuffled",
            riskier="higher",
        ),
        Metric(
            id="fano_bound",
            title="Largest advantage that the noise leaves to any adversary (1: no bound)",
            riskier="higher",
        ),
        Metric(
            id="log_loss",
            title="The adversary's surprise by the truth, after calibration",
            unit="nats",
            riskier="lower",
        ),
    )
    headline = ("auroc", "auroc_gain")
    quick: ClassVar = {
        "trials": 400,
        "batches": 100,
        "repeats": 2,
        "rounds": 1,
        "family": ["logistic"],
    }
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
    summary = "Guess an attribute among the inputs of a batch from its gradients."
    Options = InferenceOptions


class AttackProperty(InferenceAttack[InferenceOptions]):
    """Guess a property of a batch that is no input of the model from the gradients it gives.

    As attribute inference, but the attribute's column is not among the inputs: it was dropped in
    the data's spec (``drop=COL``), or is held at its mean where the model takes it.

    Source: Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning"
    (2024), sections 3.2 and 4, definition 3.1.
    """

    name = "attack property"
    summary = "Guess a property that is no input of a batch from its gradients."
    Options = InferenceOptions


class AttackDistribution(InferenceAttack[DistributionOptions]):
    """Guess how many of a batch's records have a value, in ordered bins of their share.

    With m bins {0}, (0, 1/(m−1)], …, ((m−2)/(m−1), 1], the adversary fits one classifier of "more
    than bin i" for each i (Frank and Hall 2001), clips the differences and normalises.

    Source: Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning"
    (2024), sections 3.2 and 4, definition 3.1.
    """

    name = "attack distribution"
    summary = "Guess the share of a batch's records that have a value from its gradients."
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
    summary = "Guess which of some users a batch is of from its gradients."
    Options = UserOptions
