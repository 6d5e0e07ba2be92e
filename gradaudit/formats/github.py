"""Annotations of GitHub Actions: a workflow command for each finding beyond its limits."""

import os
from collections.abc import Iterator
from pathlib import Path

from gradaudit.core.text import printable
from gradaudit.formats.base import Format
from gradaudit.formats.results import Result, artifact, by_finding, line_of, summary
from gradaudit.judging import Policy, Word, fails, notes, verdict
from gradaudit.judging.risk import with_findings
from gradaudit.report import Report
from gradaudit.view.facts import abridged
from gradaudit.view.faults import faults_of, job_lines

_VERDICTS: dict[Word, str] = {
    "passed": "notice",
    "failed": "error",
    "undecided": "warning",
    "measured": "notice",
}
_ESCAPES = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_MORE_ESCAPES = str.maketrans({":": "%3A", ",": "%2C"})


class Github(Format):
    """Lines that a workflow's log turns into annotations; the last one is the verdict."""

    name = "github"
    suffix = ".github"
    summary = "annotations of GitHub Actions, for its log"

    def render(self, report: Report, policy: Policy | None = None) -> str:
        """Returns an annotation for each finding, the gravest first; GitHub shows ten of a kind."""
        judged = with_findings(report, policy)
        return "".join(f"{line}\n" for line in _lines(judged, by_finding(judged)))


def _lines(judged: Report, found: list[list[Result]]) -> Iterator[str]:
    file = _in_workspace(artifact(judged))
    place = {"file": file, "line": str(line_of(judged))} if file else {}
    for worst, *others in found:
        command = worst.says if worst.says in ("error", "warning") else "notice"
        layers = dict.fromkeys(other.finding.layer or "the whole model" for other in others)
        also = f" Also in {abridged(list(layers))}." if layers else ""
        yield _command(command, f"{worst.sentence}{also}", {**place, "title": worst.rule})
    for fault in faults_of(judged):
        command = "notice" if fault.level == "note" else fault.level
        of_job = _in_workspace(fault.path)
        place = {"file": of_job, "line": str(fault.line or 1)} if of_job else {}
        yield _command(command, fault.sentence, {**place, "title": f"job: {fault.name}"})
    if job := job_lines(judged):
        yield _command("notice", "\n".join(job), {"title": "job: chains and epsilon"})
    for note in notes(judged):
        yield _command("notice", note, {"title": "policy and baseline"})
    outcome = "error" if fails(judged) else _VERDICTS[verdict(judged)]
    yield _command(outcome, summary(judged), {"title": "gradaudit"})


def _command(name: str, message: str, properties: dict[str, str]) -> str:
    given = ",".join(
        f"{key}={_inert(value).translate(_MORE_ESCAPES)}" for key, value in properties.items()
    )
    return f"::{name} {given}::{_inert(message)}"


def _in_workspace(file: str | None) -> str | None:
    """Returns the path from the working directory; None for a file that does not lie in it."""
    here = Path.cwd()
    place = Path(os.path.normpath(here / (file or "..")))
    return str(place.relative_to(here)) if place.is_relative_to(here) else None


def _inert(text: str) -> str:
    lines = (printable(line, limit=None) for line in text.split("\n"))
    return "\n".join(lines).translate(_ESCAPES)
