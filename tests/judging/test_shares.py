"""Rows that list attacked updates are judged by how many show a record beyond the limit."""

from typing import Any

import pytest
from report_builder import make_report, row

from gradaudit.core.statistics.intervals import clopper_pearson
from gradaudit.judging import Policy, gate, verdict
from gradaudit.judging.case import TOLERATED, ShareBeyond
from gradaudit.report import Report

FAR = 0.9


def reconstructed(value: float, closest: list[Any], **details: Any) -> Report:
    details = {"closest": closest, "effort": "quick", **details}
    return make_report(row("attack.relative_error", None, value, details=details))


RULE = Policy.model_validate({"rules": [{"metric": "attack.relative_error", "min": 0.1}]})


@pytest.mark.parametrize(
    ("closest", "chance", "word"),
    [
        ([0.05, 0.05, 0.05, 0.35], [], "failed"),  # its mean is within the limit
        ([0.05] + [FAR] * 35, [], "failed"),
        ([FAR] * 36, [], "passed"),
        ([FAR] * 35, [], "undecided"),
        ([FAR] * 4, [], "undecided"),
        ([FAR], [], "undecided"),
        (["inf"] * 36, [], "passed"),
        ([0.05] * 5 + [FAR] * 31, [0.05] * 5 + [FAR] * 31, "undecided"),
        ([0.05] * 36, [0.05] * 5 + [FAR] * 31, "failed"),
    ],
)
def test_a_record_within_the_limit_fails_and_too_few_without_one_do_not_pass(
    closest: list[Any], chance: list[Any], word: str
) -> None:
    judged = gate(reconstructed(0.126, closest, closest_by_chance=chance), RULE)
    assert verdict(judged) == word


def test_the_number_of_updates_that_settles_is_the_least_that_excludes_the_share() -> None:
    assert clopper_pearson(0, 36)[1] <= TOLERATED < clopper_pearson(0, 35)[1]
    (finding,) = gate(reconstructed(0.9, [FAR] * 4), RULE).findings
    assert finding.times == 9
    assert "36 attacked updates instead of 4 would" in finding.message


def test_an_attack_below_quick_passes_nothing() -> None:
    assert verdict(gate(reconstructed(0.9, [FAR] * 36, effort="below"), RULE)) == "undecided"


@pytest.mark.parametrize(
    ("before", "word"), [(0, "failed"), (1, "passed"), (36, "passed"), (None, "failed")]
)
def test_a_share_is_known_where_the_baseline_shows_one_too(before: int | None, word: str) -> None:
    now = reconstructed(0.5, [0.05] + [FAR] * 35)
    count = before or 0
    earlier = reconstructed(0.5, [0.05] * count + [FAR] * (36 - count))
    judged = gate(now, RULE, baseline=earlier if before is not None else None)
    assert verdict(judged) == word
    if before == 0:
        many = gate(reconstructed(0.1, [0.05] * 36), RULE, baseline=earlier)
        assert verdict(many) == "failed"


@pytest.mark.parametrize("tried", [1, 4, 9, 36, 1000])
def test_the_interval_of_a_share_is_clopper_and_pearsons(tried: int) -> None:
    for count in {0, 1, tried // 3, tried - 1, tried}:
        share = ShareBeyond(count, tried, 0)
        assert share.interval == pytest.approx(clopper_pearson(count, tried), abs=1e-12)
