"""What ``--dry-run`` prints: the audits that would run, and about how long each would take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

import gradaudit.cli.deferred as deferred
from gradaudit.audits import Audit
from gradaudit.audits.sizes import Size
from gradaudit.cli.perform import opened
from gradaudit.config import SubjectSettings
from gradaudit.core.text import duration, listed, printable
from gradaudit.errors import NotApplicable
from gradaudit.progress import Silent

if TYPE_CHECKING:
    from gradaudit.subject import Subject


def print_expected(
    settings: SubjectSettings, ladders: Sequence[Sequence[Size]], left: Callable[[], float | None]
) -> None:
    """Open the subject, and print the audits and sizes that would run with their expected time."""
    with opened(settings) as subject:
        plan = list(deferred.survey.Survey(subject, ladders, left).plan())
        lines = [expected(size, seconds, subject) for size, seconds in plan]
    typer.echo(f"{subject.target.description} on {len(subject.records)} records:")
    for line in lines:
        typer.echo(f"  {line}")
    typer.echo(f"  together: {_about(sum(seconds or 0.0 for _, seconds in plan))}")


def expected(size: Size, seconds: float | None, subject: Subject) -> str:
    """Returns a line with the audit, its time and its size, or why it has nothing to do.

    Args:
        size: of the audit.
        seconds: that it takes; None where there is no time for it.
        subject: what it would measure.
    """
    how = f" ({size.name})" if seconds else ""
    idle = why_idle(size.audit, subject) if seconds == 0 else ""
    return f"{size.audit.name}: {_about(seconds)}{how}{idle}"


def _about(seconds: float | None) -> str:
    if seconds is None:
        return "no time for it"
    return duration(seconds) if seconds else "nothing to do"


def why_idle(audit: Audit[Any], subject: Subject) -> str:
    """Says why an audit does not apply: no attribute is named, or the audit's own reason."""
    if wanting := _wanting(audit, subject):
        return wanting
    if type(audit).run is not Audit.run:
        return ""  # what it costs is not known, so it may have something to do
    try:
        first = next(iter(audit.run(subject, Silent())), None)
    except NotApplicable as why:
        return f": {printable(str(why), limit=None)}"
    reason = (first and first.reason) or ""
    return f": {printable(reason, limit=None)}" if reason else ""


def _wanting(audit: Audit[Any], subject: Subject) -> str:
    """Says that an audit which does not apply needs a named attribute; empty where it does not."""
    names = list(subject.records.attributes)
    if subject.attributes or not names:
        return ""
    try:
        wanting = audit.cost(replace(subject, attributes=(names[0],))).passes > 0
    except NotApplicable:
        return ""
    return f": name an attribute with -a; this data has {listed(names)}" if wanting else ""
