"""Attacks that found nothing: tried as hard as a preset, and within every limit."""

from collections.abc import Iterator

from gradaudit.audits.gathering import member_of
from gradaudit.judging.policy import known_metrics
from gradaudit.measurement import text_of
from gradaudit.report import Finding, Measurement, Report, estimate
from gradaudit.view.facts import Place, batch_size


def cleared_of(judged: Report) -> tuple[str, ...]:
    """Word each attack that no rule finds beyond a limit or undecided, with its worst number.

    ``attack record: AUROC 0.503 [0.47, 0.53] in fc1 behind batches of 184: not distinguished``.
    """
    return tuple(_cleared(judged))


def _cleared(judged: Report) -> Iterator[str]:
    rows, known = judged.by_key(), known_metrics()
    tried: dict[tuple[str, str], list[Finding]] = {}
    for finding in judged.findings:
        row, metric = rows.get(finding.key), known.get(finding.metric)
        if row is not None and metric is not None and metric.cleared:
            tried.setdefault((finding.metric, _attack(row)), []).append(finding)
    for (name, attack), findings in tried.items():
        numbers = [rows[x.key] for x in findings if x.outcome == "passed"]
        if numbers and all(x.outcome in ("passed", "not-applicable") for x in findings):
            sign = -1 if known[name].riskier == "lower" else 1
            worst = max(numbers, key=lambda row: sign * (row.number or 0.0))
            number = f"{known[name].noun} {estimate(worst)}{_setting(worst)}"
            yield f"{attack}: {number}: {known[name].cleared}"


def _attack(row: Measurement) -> str:
    """Returns the name of the row's audit; that of a merged headline is in its details."""
    named = text_of(row.details.get(row.audit))
    return f"{row.audit} {named}" if named and row.audit not in row.variant else member_of(row)


def _setting(row: Measurement) -> str:
    """Names the layer and the batch: `` in fc1 behind batches of 32``."""
    where = f" in {Place((row.layer,))}" if row.layer else ""
    size = batch_size(row.details)
    if size is None:
        return where
    return where + (" behind single records" if size == 1 else f" behind batches of {size:,}")
