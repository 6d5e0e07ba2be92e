"""Annotations of GitHub Actions: a workflow command for each row that is not within its limits."""

from collections.abc import Iterator

from gradaudit.formats.base import Format
from gradaudit.formats.results import GRAVEST, Result, artifact, results, summary
from gradaudit.judging import Policy, Word, fails, verdict
from gradaudit.judging.risk import with_findings
from gradaudit.report import Report

_COMMANDS = {"error": "error", "warning": "warning"}
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
        """Returns the annotations, the gravest first, as GitHub shows ten of a kind."""
        judged = with_findings(report, policy)
        ranked = sorted(results(judged), key=lambda result: GRAVEST.index(result.says))
        return "".join(f"{line}\n" for line in _lines(judged, ranked))


def _lines(judged: Report, found: list[Result]) -> Iterator[str]:
    file = artifact(judged)
    place = {"file": file, "line": "1"} if file else {}
    for result in found:
        command = _COMMANDS.get(result.says, "notice")
        yield _command(command, result.sentence, {**place, "title": result.rule})
    outcome = "error" if fails(judged) else _VERDICTS[verdict(judged)]
    yield _command(outcome, summary(judged), {"title": "gradaudit"})


def _command(name: str, message: str, properties: dict[str, str]) -> str:
    given = ",".join(
        f"{key}={value.translate(_ESCAPES).translate(_MORE_ESCAPES)}"
        for key, value in properties.items()
    )
    return f"::{name} {given}::{message.translate(_ESCAPES)}"
