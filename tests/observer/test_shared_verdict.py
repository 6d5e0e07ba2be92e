"""What may leave of an observation: a word, and numbers under names that are always the same."""

import pytest
from report_builder import make_report, row

from gradaudit.judging import Policy, gate
from gradaudit.observer.shared_verdict import PREFIX, Verdict

POLICY = Policy.model_validate({"rules": [{"metric": "forward.fraction", "max": 1}]})
FAILED = row("forward.fraction", "a", 3.0, interval=(2.0, 4.0))
UNCLEAR = row("forward.fraction", "b", 1.0, interval=(0.5, 1.5))
PASSED = row("forward.fraction", "c", 0.5, interval=(0.4, 0.6), details={"left_out": True})


def rules_of(rules: list[dict[str, object]]) -> Policy:
    return Policy.model_validate({"rules": rules})


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
        "mean_readings_not_applicable": 0.0,
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


def test_an_update_that_no_reading_about_records_applies_to_does_not_pass() -> None:
    rules = [{"metric": f"observe.{name}", "max": 0.5} for name in ("record_share", "norm")]
    skipped = row("observe.record_share", "fc", None, status="skipped", reason="two outputs")
    judged = gate(make_report(skipped, row("observe.norm", "fc", 0.1)), rules_of(rules))
    sent = Verdict.of(judged, 0.01)
    assert (sent.word, sent.passed, sent.may_leave) == ("undecided", False, True)
    assert str(sent).startswith("undecided: 0 limits exceeded, 0 unclear, 1 not looked at")
    assert metrics(sent)["share_undecided"] == metrics(sent)["mean_readings_not_applicable"] == 1
    other = row("observe.record_share", "head", 0.1)
    partly = Verdict.of(gate(make_report(skipped, other), rules_of(rules[:1])), 0.01)
    assert (partly.word, partly.not_applicable) == ("passed", 1)
