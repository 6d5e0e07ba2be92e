"""How likely a finding is, in numbers of cases that a reader can picture."""

import math
from collections.abc import Callable

from gradaudit.audits import Metric
from gradaudit.core.text import number
from gradaudit.report import Finding, Measurement
from gradaudit.view.facts import WHAT_IS_PRIVATE, secret_of

INDICATED = "an indicator says so; no attack was carried out"
HINTED = "an indicator leaves it open; no attack was carried out"


def likelihood(finding: Finding, row: Measurement, known: Metric | None, *, proxy: bool) -> str:
    """Words how often an attack succeeded, or how large its number is beside the limit.

    Args:
        finding: about the row.
        row: measured.
        known: what its audit declares of its metric; None where that is not installed.
        proxy: whether the audit attacks nothing.
    """
    if proxy:
        return HINTED if finding.outcome == "unclear" else INDICATED
    if tried := _tried(finding, row):
        return tried
    if known is None or not known.odds or row.number is None:
        return _beside_limit(finding, row, known)
    words = {
        "{times}": _in_100(row, "times "),
        "{chosen}": _in_100(row, "times ", lambda gain: 0.5 + gain),
        "{share}": _in_100(row),
        "{rest}": _in_100(row, read_as=lambda share: 1 - share),
        "{factor}": number(math.exp(min(row.number, 700.0))),
        "{secret}": secret_of(row) or WHAT_IS_PRIVATE,
    }
    text = known.odds
    for placeholder, word in words.items():
        text = word.join(text.split(placeholder))
    return text


def _tried(finding: Finding, row: Measurement) -> str:
    """Counts the records for which the attack was beyond the limit, where the row lists them.

    Those whose update showed nothing were tried, too.
    """
    answers = row.details.get("answers")
    numbers = answers if isinstance(answers, list) else []
    found = [float(answer) for answer in numbers if isinstance(answer, int | float)]
    sign, limit = (1, finding.max) if finding.min is None else (-1, finding.min)
    beyond = [answer for answer in found if limit is not None and sign * (answer - limit) > 0]
    refused = row.details.get("updates_refused")
    tried = len(found) + (refused if isinstance(refused, int) else 0)
    if found and tried == 1:
        return f"the attack {'succeeded' if beyond else 'failed'} on the one record it was tried on"
    counted = f"{len(beyond)} of the {tried} records"
    return f"the attack succeeded on {counted} that it was tried on" if found else ""


def _in_100(
    row: Measurement, noun: str = "", read_as: Callable[[float], float] = lambda share: share
) -> str:
    """``93 times in 100 (86 to 97)`` of what a value is read as; without an interval if none."""
    value, *ends = (
        100 * min(max(read_as(share), 0.0), 1.0)
        for share in (row.value or 0.0, *(row.interval or ()))
    )
    beside = f" ({min(ends):.0f} to {max(ends):.0f})" if ends else ""
    return f"{value:.0f} {noun}in 100{beside}"


def _beside_limit(finding: Finding, row: Measurement, known: Metric | None) -> str:
    """``its epsilon is 7 (5 to 9), where the policy allows at most 5``."""
    side, limit = ("least", finding.min) if finding.max is None else ("most", finding.max)
    title = known.title[:1].lower() + known.title[1:] if known else finding.metric
    ends = f" ({number(row.interval[0])} to {number(row.interval[1])})" if row.interval else ""
    value = "–" if row.number is None else number(row.number)
    return f"{title}: {value}{ends}, where the policy allows at {side} {limit:.10g}"
