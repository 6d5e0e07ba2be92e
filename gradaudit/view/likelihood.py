"""How likely a finding is, in numbers of cases that a reader can picture."""

import math
from collections.abc import Callable

from gradaudit.audits import Metric
from gradaudit.core.text import number
from gradaudit.measurement import numbers_of
from gradaudit.report import Finding, Measurement
from gradaudit.view.facts import WHAT_IS_PRIVATE, filled_in, secret_of, uncapitalised

INDICATED = "an indicator says so; no attack was carried out"
HINTED = "an indicator leaves it open; no attack was carried out"


def likelihood(finding: Finding, row: Measurement, known: Metric | None, *, proxy: bool) -> str:
    """Words how often an attack succeeded, or how large its number is beside the limit.

    Args:
        finding: about the row.
        row: measured.
        known: what its audit declares of its metric; None where that is not installed.
        proxy: whether the audit attacks nothing, but for metrics that declare their odds.
    """
    if proxy and not (known and known.odds):
        return HINTED if finding.outcome == "unclear" else INDICATED
    if tried := _tried(finding, row):
        return _in_records(*tried)
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
    return filled_in(known.odds, words)


def beyond_guessing(
    finding: Finding, row: Measurement, known: Metric | None, *, proxy: bool
) -> float | None:
    """Returns the share of cases in which an attack succeeds, of those in which guessing fails.

    None where it is no share of cases, or nothing was attacked. Of two batches the right one is
    guessed in half the cases: an attack that picks it 93 times in 100 succeeds in 43 of the 50
    others. The arguments are those of ``likelihood``.
    """
    if proxy:
        return None
    if tried := _tried(finding, row):
        beyond, count = tried
        return beyond / count
    if known is None or row.value is None:
        return None
    shares = {
        "{times}": 2 * row.value - 1,
        "{chosen}": 2 * row.value,
        "{share}": row.value,
        "{rest}": 1 - row.value,
    }
    return next((share for word, share in shares.items() if word in known.odds), None)


def _tried(finding: Finding, row: Measurement) -> tuple[int, int] | None:
    """Counts the records for which the attack was beyond the limit, and those it was tried on.

    Those whose update showed nothing were tried, too. None where the row lists no records.
    """
    found = numbers_of(row.details.get("answers"))
    sign, limit = 1 if finding.min is None else -1, finding.limit
    beyond = [answer for answer in found if limit is not None and sign * (answer - limit) > 0]
    refused = row.details.get("updates_refused")
    tried = len(found) + (refused if isinstance(refused, int) else 0)
    return (len(beyond), tried) if found else None


def _in_records(beyond: int, tried: int) -> str:
    if tried == 1:
        return f"the attack {'succeeded' if beyond else 'failed'} on the one record it was tried on"
    return f"the attack succeeded on {beyond} of the {tried} records that it was tried on"


def _in_100(
    row: Measurement, noun: str = "", read_as: Callable[[float], float] = lambda share: share
) -> str:
    """Formats a share as ``93 times in 100 (with 95 % confidence 86 to 97)``."""
    value, *ends = (
        100 * min(max(read_as(share), 0.0), 1.0)
        for share in (row.value or 0.0, *(row.interval or ()))
    )
    beside = f" ({_confident(row)}{min(ends):.0f} to {max(ends):.0f})" if ends else ""
    return f"{value:.0f} {noun}in 100{beside}"


def _beside_limit(finding: Finding, row: Measurement, known: Metric | None) -> str:
    """``epsilon: 7 (with 95 % confidence 5 to 9), where the policy allows at most 5``."""
    side = "least" if finding.max is None else "most"
    title = uncapitalised(known.title) if known else finding.metric
    low, high = map(number, row.interval or (0.0, 0.0))
    ends = f" ({_confident(row)}{low} to {high})" if row.interval else ""
    value = "–" if row.number is None else number(row.number)
    return f"{title}: {value}{ends}, where the policy allows at {side} {finding.limit:.10g}"


def _confident(row: Measurement) -> str:
    """Says what an interval's ends mean: ``with 95 % confidence``."""
    return f"with {100 * row.confidence:.4g} % confidence " if row.confidence else "range "
