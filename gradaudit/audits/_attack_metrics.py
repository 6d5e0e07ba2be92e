"""What the inference attacks report, and what the default policy makes of it."""

from gradaudit.audits.base import Metric

METRICS = (
    Metric(
        id="asr",
        title="Attack success rate: how often the guess was right",
        riskier="higher",
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
HEADLINE = ("auroc", "auroc_gain")
