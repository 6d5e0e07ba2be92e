"""The sign-off block: what a signer needs to have read, and where they sign."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pydantic import JsonValue

from gradaudit.core.text import listed, number
from gradaudit.judging.policy import known_metrics
from gradaudit.measurement import dict_of, numbers_of
from gradaudit.report import Measurement, Report, estimate

if TYPE_CHECKING:
    from gradaudit.view.model import View


BLANK = ""
"""A field that is filled in by hand."""
NO_RELATION = "a record; no neighbour relation was tested (dp-audit)"
NO_RECORDS = "no audit lists its records; numbers are means over records"
RESIDUAL = "a low risk means that these audits found little, and does not prove privacy"


def sign_off(report: Report, shown: View) -> dict[str, str]:
    """Returns the terms of the block with the report's answers; unknown ones are ``BLANK``.

    Args:
        report: as it is saved, so that its hash is that of the JSON file.
        shown: its view.
    """
    verdict = shown.verdict
    sha256 = f", SHA-256 of its rules {verdict.sha256}" if verdict.sha256 else ""
    return {
        "verdict": verdict.sentence,
        "policy": f"{verdict.policy}{sha256}",
        "report": f"SHA-256 of the JSON {hashlib.sha256(report.to_json().encode()).hexdigest()}",
        "recipient, and what they know": _recipient(report),
        "unit of privacy, neighbours": unit_of(_measured(report)),
        "rounds and composition": _rounds(report),
        "attacks not run": "; ".join(_not_run(shown)) or "none of those installed",
        "worst record beside the mean": worst_record(_measured(report)) or NO_RECORDS,
        "residual risk": f"{verdict.tally}; {RESIDUAL}",
        "reviewer": BLANK,
        "review date": BLANK,
    }


def _recipient(report: Report) -> str:
    """Says who receives the updates and what attackers were given."""
    known = dict.fromkeys(fact for row in _measured(report) for fact in given(row))
    return f"the server, which knows {'; '.join(known)}" if known else "the server"


def given(row: Measurement) -> Iterator[str]:
    """Yields what the attacker behind a row was given."""
    details = row.details
    facts: Mapping[str, JsonValue] = dict_of(details.get("knowledge")) or details
    if isinstance(model := facts.get("model"), str):
        yield model
    labels = facts.get("labels", details.get("labels_of_the_batch"))
    if isinstance(labels, str):
        yield f"labels {labels}"
    if isinstance(columns := details.get("knows"), list) and columns:
        yield f"columns {listed([str(column) for column in columns])}"
    if isinstance(shadow := details.get("shadow_records"), int):
        yield f"{shadow:,} records of the same population"


def unit_of(rows: Iterable[Measurement]) -> str:
    """Returns the units of privacy and neighbour relations that rows name."""
    units = {
        f"{unit}, {relation}"
        for row in rows
        if isinstance(unit := row.details.get("unit"), str)
        and isinstance(relation := row.details.get("relation"), str)
    }
    return "; ".join(sorted(units)) or NO_RELATION


def _rounds(report: Report) -> str:
    counts = [n for row in _measured(report) if isinstance(n := row.details.get("rounds"), int)]
    rounds = max(counts, default=1)
    seen = "one round was" if rounds == 1 else f"{rounds} rounds together were"
    return f"{seen} observed; what further rounds add is not in these numbers"


def _not_run(shown: View) -> Iterator[str]:
    for gap in shown.gaps:
        if not gap.partial and not gap.what.startswith(("attribute ", "layer")):
            yield f"{gap.what} ({gap.short})"


def worst_record(rows: Iterable[Measurement]) -> str:
    """Returns the riskiest record of the rows that list a number for each record, or nothing."""
    entries, known = [], known_metrics()
    for row in rows:
        numbers, metric = numbers_of(row.details.get("answers")), known.get(row.id)
        if numbers and metric and metric.question and not row.variant:
            worst = min(numbers) if metric.riskier == "lower" else max(numbers)
            entries.append(f"{row.id} {number(worst)} beside {estimate(row)}")
    return "; ".join(entries)


def _measured(report: Report) -> Iterator[Measurement]:
    return (row for row in report.rows if row.status == "measured")
