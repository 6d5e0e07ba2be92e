"""Whether an audit's bound contradicts the epsilon that was claimed. No torch in here."""

from gradaudit.report import Measurement, Report


def exceeds(row: Measurement, claimed: float | None) -> bool:
    """Whether a lower bound lies above the claim; without a claim it does not."""
    return claimed is not None and row.number is not None and row.number > claimed


def claim_exceeded(report: Report) -> str | None:
    """What the report says against the claimed epsilon, in one line; None where it says nothing.

    Only the headline bound of ``dp-audit.epsilon_lower`` counts: it is valid at its confidence.
    """
    for row in report.select("dp-audit.epsilon_lower", variant={}):
        if row.details.get("exceeded") is True:
            bound = "is infinite" if row.infinite else f"is at least {row.value:.4g}"
            level = f" (confidence {row.confidence:g})" if row.confidence else ""
            return f"dp-audit: epsilon {bound}{level}, claimed was {row.details['claimed']}"
    return None


def claim_untested(report: Report) -> str | None:
    """Why a claim was made but nothing bounds epsilon, in one line; None where something does."""
    for row in report.select("dp-audit.epsilon_lower", variant={}):
        if row.status != "measured" and "claimed" in row.details:
            return f"dp-audit: the claim was not tested: {row.reason}"
    return None
