"""The report as one JSON document, as its published schema describes it."""

from gradaudit.core.text import inert_json
from gradaudit.formats.base import Format
from gradaudit.judging import Policy
from gradaudit.report import Report


class Json(Format):
    """The report itself, for scripts and for ``gate``, ``compare`` and ``render``."""

    name = "json"
    suffix = ".json"
    summary = "the report itself; validated by `gradaudit schema report`"

    def render(self, report: Report, policy: Policy | None = None) -> str:
        """Returns the whole report; a policy changes nothing in it."""
        return inert_json(report.to_json())
