"""What may leave of an observation: a word, and numbers under names that are always the same."""

import pytest
from report_builder import make_report, row

from gradaudit.judging import Policy, gate
from gradaudit.observer.shared_verdict import PREFIX, Verdict

POLICY = Policy.model_validate({"rules": [{"metric": "forward.fraction", "max": 1}]})
FAILED = row("forward.fraction", "a", 3.0, interval=(2.0, 4.0))
UNCLEAR = row("forward.fraction", "b", 1.0, interval=(0.5, 1.5))
PASSED = row("forward.fraction", "c", 0.5, interval=(0.4, 0.6), details={"left_out": True})


def metrics(verdict: Verdict) -> dict[str, float]:
    return {name.removeprefix(PREFIX): value for name, value in verdict.metrics().items()}


@pytest.mark.parametrize(
    ("rows", "word", "fails", "shown", "unclear"),
    [
        ([PASSED], "passed", False, 0, 0),
        ([PASSED, UNCLEAR], "undecided", False, 0, 1),
        ([PASSED, UNCLEAR, FAILED], "failed", True, 1, 1),
    ],
)
def test_the_numbers_are_those_of_the_judged_report(
    rows: list[object], word: str, fails: bool, shown: int, unclear: int
) -> None:
    sent = Verdict.of(gate(make_report(*rows), POLICY), share_of_time=0.25)
    assert (sent.word, sent.fails) == (word, fails)
    shares = dict.fromkeys(("passed", "failed", "undecided", "not_looked_at"), 0.0)
    assert metrics(sent) == {
        **{f"share_{state}": share for state, share in {**shares, word: 1.0}.items()},
        "share_observed": 1.0,
        "share_not_fit_to_leave": float(fails),
        "mean_limits_exceeded": float(shown),
        "mean_limits_unclear": float(unclear),
        "mean_readings_left_out": 1.0,
        "mean_share_of_time": 0.25,
    }
    limits = "1 limit" if shown == 1 else "0 limits"
    counts = f"{limits} exceeded, {unclear} unclear, 1 not looked at"
    assert str(sent) == f"{word}: {counts}, 25.0% of the time"


def test_an_update_that_could_not_be_observed_may_not_leave_and_counts_nothing() -> None:
    sent = Verdict.unobserved("conv1 holds text 'secret'")
    expected = {"share_not_looked_at": 1.0, "share_not_fit_to_leave": 1.0}
    assert {name: value for name, value in metrics(sent).items() if value} == expected
    assert metrics(sent).keys() == metrics(Verdict("passed", fails=False)).keys()
    assert str(sent) == "not looked at: conv1 holds text 'secret'"
