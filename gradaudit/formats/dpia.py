"""Half a page for a data protection impact assessment, in Markdown."""

from collections.abc import Iterator

from gradaudit.core.text import markdown_paragraph as _text
from gradaudit.core.text import markdown_table
from gradaudit.formats.base import Format
from gradaudit.judging import Policy
from gradaudit.report import Report
from gradaudit.view import View, view
from gradaudit.view.assessment import AssessedRisk, assessed
from gradaudit.view.gaps import untested
from gradaudit.view.signoff import sign_off

MOST_QUESTIONS = 2
"""Most untested questions that are named; the page has them all."""
RESIDUAL = "A low risk means that these audits found little, and does not prove privacy."
MORE = "The HTML report explains the words of the table and names every question."


class Dpia(Format):
    """What a privacy officer pastes: each harm with likelihood, severity and the rows behind it."""

    name = "dpia"
    suffix = ".dpia.md"
    aliases = ("dpia.md",)
    summary = "half a page for a data protection impact assessment, as Markdown"

    def render(self, report: Report, policy: Policy | None = None) -> str:
        """The report as a short section with one table."""
        shown = view(report, policy)
        return "\n".join(_lines(shown, sign_off(report, shown))) + "\n"


def _lines(shown: View, signed: dict[str, str]) -> Iterator[str]:
    first, setting = shown.first, shown.scope.setting.partition(";")[0]
    yield from ("## Disclosure by shared model updates", "")
    date = f" on {first.date}" if first.date else ""
    yield from (_text(f"Audited{date}: {first.audited}. Model: {first.model}."), "")
    yield from (f"**{_text(first.word)}.** {_text(f'{first.found} {first.do}')}", "")
    headings = ("what may happen", "likelihood", "severity", "numbers it rests on")
    risks = assessed(shown.concerns, shown.heat_map)
    yield from markdown_table(headings, [tuple(map(_text, _cells(each))) for each in risks])
    case = f"Setting: {setting}. " if setting else ""
    asked = untested(shown.gaps, most=MOST_QUESTIONS) or "nothing"
    yield from ("", _text(f"{case}Not tested: {asked}. {RESIDUAL}"))
    yield from (
        "",
        _text(f"Evidence: {signed['report']}; policy: {signed['policy']}; {shown.how}. {MORE}"),
    )


def _cells(risk: AssessedRisk) -> tuple[str, ...]:
    odds = f". {risk.odds[:1].upper()}{risk.odds[1:]}." if risk.odds else ""
    return risk.harm.what, f"{risk.likelihood}{odds}", risk.harm.severity, risk.rows
