"""How likely a finding is said to be: counts of the records that were attacked, or the number."""

from typing import Any

import pytest
from report_builder import row

from gradaudit.audits import Metric
from gradaudit.judging.policy import known_metrics
from gradaudit.report import Finding
from gradaudit.view.likelihood import INDICATED, beyond_guessing, likelihood


def beyond(metric: str, **limit: Any) -> Finding:
    return Finding(rule=1, level="error", message="", metric=metric, outcome="failed", **limit)


def said(answers: list[Any] | None, *, proxy: bool = False, **limit: Any) -> str:
    details = {} if answers is None else {"answers": answers}
    measured = row("own.closeness", "fc1", 2.0, interval=(1.0, 3.0), details=details)
    return likelihood(beyond(measured.id, **limit), measured, None, proxy=proxy)


@pytest.mark.parametrize(
    ("limit", "beyond"),
    [({"max": 0.5}, 1), ({"min": 0.5}, 2), ({"max": 0.4}, 2), ({"min": 0.9}, 3)],
)
def test_records_beyond_the_limit_are_counted_and_none_at_it(
    limit: dict[str, float], beyond: int
) -> None:
    answers = [0.1, 0.4, 0.5, 0.9]
    assert said(answers, **limit) == (
        f"the attack succeeded on {beyond} of the 4 records that it was tried on"
    )


def test_records_whose_update_shows_nothing_were_tried() -> None:
    details = {"answers": [0.9], "updates_refused": 3}
    measured = row("own.closeness", "fc1", 0.9, details=details)
    said = likelihood(beyond(measured.id, max=0.5), measured, None, proxy=False)
    assert said == "the attack succeeded on 1 of the 4 records that it was tried on"


def test_what_is_no_number_is_no_record() -> None:
    once = "on the one record it was tried on"
    assert said([None, "x", 0.9], max=0.5) == f"the attack succeeded {once}"
    assert said([None, "x", 0.1], max=0.5) == f"the attack failed {once}"


@pytest.mark.parametrize(
    ("odds", "value", "interval", "words"),
    [
        ("{rest} of the labels", 0.1, (0.0, 0.3), "90 in 100 (with 95 % confidence 70 to 100) of"),
        ("{chosen}", 0.3, (0.2, 0.6), "80 times in 100 (with 95 % confidence 70 to 100)"),
    ],
    ids=["what is missed, as what is read", "a gain, as what is chosen of two"],
)
def test_shares_are_worded_as_cases(
    odds: str, value: float, interval: tuple[float, float], words: str
) -> None:
    measured = row("own.closeness", "fc1", value, interval=interval)
    known = Metric(id="closeness", title="closeness", odds=f"an attacker reads {odds}")
    said = likelihood(beyond(measured.id, max=0.05), measured, known, proxy=False)
    assert said.startswith(f"an attacker reads {words}")


@pytest.mark.parametrize(("limit", "side"), [({"max": 1.5}, "most"), ({"min": 1.5}, "least")])
def test_without_records_the_number_stands_beside_its_limit(
    limit: dict[str, float], side: str
) -> None:
    words = f"own.closeness: 2 (with 95 % confidence 1 to 3), where the policy allows at {side} 1.5"
    assert said(None, **limit) == words
    assert said([], **limit) == words


def test_an_indicator_counts_nobody() -> None:
    assert said([0.9], proxy=True, max=0.5) == INDICATED


def test_what_an_update_proves_is_counted_although_no_attack_is_run() -> None:
    """Of the other metrics of the same audit an indicator speaks."""
    metrics = known_metrics()
    for name, words in (
        ("observe.rows_certified", "of the rows behind this update a server proves 59 in 100"),
        ("observe.update_moved_share", INDICATED),
    ):
        measured = row(name, None, 0.594)
        assert likelihood(beyond(name, max=0), measured, metrics[name], proxy=True) == words


@pytest.mark.parametrize(
    ("odds", "value", "share"),
    [
        ("picks the right one {times}", 0.93, (93 - 50) / 50),
        ("picks the right one {times}", 0.5, 0.0),
        ("picks the right one about {chosen}", 0.3, (80 - 50) / 50),
        ("writes down {share}", 0.4, 0.4),
        ("reads {rest}", 0.1, 0.9),
        ("{factor} times as plausible", 3.0, None),
        ("", 3.0, None),
    ],
)
def test_a_share_is_of_the_cases_in_which_guessing_fails(
    odds: str, value: float, share: float | None
) -> None:
    known = Metric(id="closeness", title="closeness", odds=odds)
    measured = row("own.closeness", "fc1", value)
    finding = beyond(measured.id, max=0.5)
    found = beyond_guessing(finding, measured, known, proxy=False)
    assert found == (share if share is None else pytest.approx(share))
    assert beyond_guessing(finding, measured, known, proxy=True) is None


def test_a_share_counts_the_records_that_a_row_lists() -> None:
    details = {"answers": [0.1, 0.4, 0.9], "updates_refused": 1}
    measured = row("own.closeness", "fc1", 0.9, details=details)
    assert beyond_guessing(beyond(measured.id, max=0.3), measured, None, proxy=False) == 0.5
