"""What a scan reports of audits that were run at several sizes."""

from typing import TYPE_CHECKING

import pytest
from dp_subject import subject
from fake_audit import Counting, Trouble

from gradaudit.audits import AuditCost
from gradaudit.audits.sizes import Size, SizeName
from gradaudit.gathering import incomplete
from gradaudit.planning.survey import Survey
from gradaudit.progress import Silent

if TYPE_CHECKING:
    from gradaudit.subject import Subject


NAMES: tuple[SizeName, ...] = ("least", "quick")


class Dear(Counting):
    """Costs as many seconds as it scales by."""

    def cost(self, subject: "Subject") -> AuditCost:
        return AuditCost(passes=1e-9, seconds=self.options.scale)


def test_a_larger_size_that_breaks_off_takes_no_number_away_and_is_told() -> None:
    rough, exact = Dear.Options(scale=0.1), Dear.Options(scale=100, trouble="crash")
    sizes = [Size("least", Dear(rough)), Size("quick", Dear(exact))]
    survey = Survey(subject(), [sizes], lambda: 90)
    survey.go(Silent())
    report = survey.report({})
    assert {row.status for row in report.measurements} == {"measured"}
    assert report.provenance["plan"]["sizes"] == {"counting": "least"}
    assert "counting failed: RuntimeError" in (incomplete(report) or "")


@pytest.mark.parametrize(
    ("trouble", "plan"),
    [
        ("no", {"rougher": ["counting"], "cut_short": []}),
        ("sleep", {"rougher": [], "cut_short": ["counting"]}),
        ("nothing", {"rougher": [], "cut_short": []}),
    ],
)
def test_what_was_cut_short_or_did_not_apply_is_not_called_rough(
    trouble: Trouble, plan: dict[str, list[str]]
) -> None:
    ladder = [Dear.Options(scale=scale, trouble=trouble) for scale in (0.01, 100)]
    sizes = [Size(name, Dear(options)) for name, options in zip(NAMES, ladder, strict=True)]
    survey = Survey(subject(), [sizes], lambda: 0.2)
    survey.go(Silent())
    told = survey.report({}).provenance["plan"]
    assert {name: told[name] for name in plan} == plan
