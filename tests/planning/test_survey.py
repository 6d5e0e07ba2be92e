"""What a scan reports of audits that were run at several sizes."""

from typing import TYPE_CHECKING

from dp_subject import subject
from fake_audit import Counting

from gradaudit.audits import Cost
from gradaudit.audits.sizes import Size
from gradaudit.gathering import incomplete
from gradaudit.planning.survey import Survey
from gradaudit.progress import Silent

if TYPE_CHECKING:
    from gradaudit.defenses.subject import Subject


class Dear(Counting):
    """Costs as many seconds as it scales by."""

    def cost(self, subject: "Subject") -> Cost:
        return Cost(passes=1e-9, seconds=self.options.scale)


def test_a_larger_size_that_breaks_off_takes_no_number_away_and_is_told() -> None:
    rough, exact = Dear.Options(scale=0.1), Dear.Options(scale=100, trouble="crash")
    sizes = [Size("least", Dear(rough)), Size("quick", Dear(exact))]
    survey = Survey(subject(), [sizes], lambda: 90)
    survey.go(Silent())
    report = survey.report({})
    assert {row.status for row in report.measurements} == {"measured"}
    assert report.provenance["plan"]["sizes"] == {"counting": "least"}
    assert "counting failed: RuntimeError" in (incomplete(report) or "")
