"""The first screen: what an attacker gets, how likely, and what to do, without statistics."""

import re
from typing import Any

import pytest
from report_builder import Leak, failed_row, make_report, row, skipped_row

from gradaudit.audits import audits
from gradaudit.judging import Policy
from gradaudit.judging.policy import known_metrics
from gradaudit.view import view
from gradaudit.view.first_screen import TITLE, FirstScreen
from gradaudit.view.likelihood import INDICATED

PLACEHOLDERS = {"times", "chosen", "share", "rest", "factor", "secret"}


def first(*rows: Any, policy: Policy | None = None) -> FirstScreen:
    return view(make_report(*rows), policy).first


def limits(**rules: float) -> Policy:
    """Rules for metrics of attacks, which all are riskier the larger they are."""
    named = {name.replace("__", "."): limit for name, limit in rules.items()}
    return Policy.model_validate({"rules": [{"metric": m, "max": x} for m, x in named.items()]})


@pytest.mark.usefixtures("two_audits")
def test_it_begins_with_what_was_audited_and_when() -> None:
    said = first(row("leak.bits", "conv1", 3.0))
    assert (said.title, said.date) == (TITLE, "2026-05-01 10:00 UTC")
    assert said.model.startswith("zoo:lenet, round-5.safetensors")
    assert said.audited.endswith("no attribute was attacked")
    assert said.word == "FAILED by the default policy"
    assert [asked for asked, _, _ in said.answers] == ["gets", "likely", "do"]


@pytest.mark.usefixtures("two_audits")
@pytest.mark.parametrize(
    ("bits", "gets", "likely", "do"),
    [
        (
            row("leak.bits", "conv1", 3.0, interval=(2.5, 3.5)),
            "A server can tell a batch's private attribute from conv1.",
            "Leaked bits: 3 (with 95 % confidence 2.50 to 3.50), where the policy allows at "
            "most 2.",
            "Not sharing conv1, or noise added before sharing. Then measure again.",
        ),
        (
            row("leak.bits", "conv1", 1.9, interval=(0.9, 2.5), n=100),
            "It is open whether a server can tell a batch's private attribute from conv1.",
            "Leaked bits: 1.90 (with 95 % confidence 0.900 to 2.50), where the policy allows at "
            "most 2.",
            "About 36 times as many records or trials would settle it. Then measure again.",
        ),
        (
            row("leak.bits", "conv1", 0.5, interval=(0.1, 0.9)),
            "Nothing beyond a limit: every row that a rule judges is within its limit, but no "
            "audit attacked 2 of 3 layers by themselves.",
            "A stronger attacker than those that were tried may get more.",
            "Measure again when the model, data, batches or defenses change.",
        ),
        (
            skipped_row("leak.bits", "conv1", "no layer"),
            "No audit measured a number.",
            "Nothing was measured that says so.",
            "Measure what is missing.",
        ),
        (
            row("rank.deficit", "conv1", 3),
            "No verdict: the default policy sets no limit here.",
            "Nobody judged how likely that is.",
            "Run gradaudit scan, or name a policy (--policy).",
        ),
    ],
)
def test_the_three_sentences_of_every_verdict(bits: Any, gets: str, likely: str, do: str) -> None:
    said = first(bits)
    assert (said.gets, said.likely, said.do) == (gets, likely, do)


@pytest.mark.usefixtures("two_audits")
def test_advice_against_two_findings_says_against_which() -> None:
    said = first(row("leak.bits", "conv1", 3.0), row("leak.total", None, 1.0))
    assert "can rebuild records" in said.gets
    assert said.do.startswith("Against the first: not sharing conv1, or")
    assert "--" not in said.do


@pytest.mark.parametrize(
    ("measured", "policy", "likely"),
    [
        (
            row("vinfo.auroc", "fc1", 0.934, interval=(0.857, 0.971), details={"attribute": "sex"}),
            limits(vinfo__auroc=0.75),
            "Shown two batches that differ in their sex, an attacker picks the right one 93 times "
            "in 100 (with 95 % confidence 86 to 97), where pure guessing is right 50 times.",
        ),
        (
            row("attack.row_accuracy", None, 0.4, interval=(0.3, 0.5)),
            limits(attack__row_accuracy=0.1),
            "Of the batch's rows an attacker writes down 40 in 100 (with 95 % "
            "confidence 30 to 50) without an error.",
        ),
    ],
)
def test_odds_are_numbers_of_cases(measured: Any, policy: Policy, likely: str) -> None:
    assert first(measured, policy=policy).likely == likely


def test_an_epsilon_is_a_factor_of_odds() -> None:
    rule = {"metric": "dp-audit.epsilon_lower", "max": 1.0}
    said = first(
        row("dp-audit.epsilon_lower", None, 3.0), policy=Policy.model_validate({"rules": [rule]})
    )
    assert "at least 20.1 times as plausible" in said.likely


def test_records_that_a_row_lists_are_counted() -> None:
    listed = {"answers": [0.01, 0.05, 0.2, 0.9], "setting": "diagnostic"}
    rule = {"metric": "attack.relative_error", "min": 0.3}
    said = first(
        row("attack.relative_error", None, 0.29, details=listed),
        policy=Policy.model_validate({"rules": [rule]}),
    )
    assert said.likely.startswith("The attack succeeded on 3 of the 4 records that it was tried on")
    assert said.likely.endswith("the attacker, as your own federation was not described.")


def test_an_indicator_is_called_one() -> None:
    said = first(
        row("sensitivity.label_f_median", "fc1", 9.0), policy=limits(sensitivity__label_f_median=1)
    )
    assert said.likely.lower().startswith(INDICATED)


def test_odds_hold_no_placeholder_that_nobody_fills() -> None:
    for audit in audits().values():
        for metric in audit.metrics:
            assert set(re.findall(r"\{(\w+)\}", metric.odds)) <= PLACEHOLDERS, metric.id
            assert not metric.odds.endswith("."), metric.id
    assert sum(bool(metric.odds) for metric in known_metrics().values()) >= 8
    assert not any(metric.odds for metric in Leak.metrics)


@pytest.mark.usefixtures("two_audits")
def test_hiding_says_which_other_layers_stay_at_high_risk() -> None:
    said = first(
        row("leak.bits", "conv1", 3.0, interval=(2.5, 3.5)),
        row("leak.bits", "fc1", 0.9, interval=(0.5, 2.5)),
        row("leak.bits", "conv2", 0.5, interval=(0.1, 0.9)),
    )
    left = "Not sharing conv1 leaves fc1, where high risk is not excluded. Then measure again."
    assert said.do.endswith(left)


def test_a_warning_about_another_question_is_named_too() -> None:
    rules = [
        {"metric": "vinfo.auroc", "max": 0.75},
        {"metric": "attack.membership_distance", "min": 0.1, "level": "warning"},
    ]
    said = first(
        row("vinfo.auroc", "fc1", 0.9, details={"attribute": "sex", "batch_size": 16}),
        row("attack.membership_distance", None, 0.0, details={"batch_size": 1}),
        policy=Policy.model_validate({"rules": rules}),
    )
    assert said.gets == (
        "A server can tell a batch's sex from fc1. Also: a server can read the labels of single "
        "records, which the model is trained to predict (medium risk)."
    )
    assert "An attacker reads 100 in 100 of the labels." in said.likely
    assert said.audited.endswith("; updates of 1 and 16 records were attacked")


DOTTED = re.compile(r"\b(?:{})\b".format("|".join(map(re.escape, known_metrics()))))


def limits_of(metric: str) -> tuple[Policy, float]:
    """A warning and an error of one metric, and a value between the two limits."""
    side = "min" if known_metrics()[metric].riskier == "lower" else "max"
    warning, error = (0.5, 0.1) if side == "min" else (0.1, 0.5)
    rules = [
        {"metric": metric, side: warning, "level": "warning"},
        {"metric": metric, side: error, "level": "error"},
    ]
    return Policy.model_validate({"rules": rules}), 0.3


@pytest.mark.parametrize("metric", sorted(known_metrics()))
def test_no_sentence_names_a_metric_by_its_identifier(metric: str) -> None:
    """Neither where a medium limit is shown and the high one open, nor in any other case."""
    policy, value = limits_of(metric)
    cases = [
        row(metric, "fc1", value, interval=(0.2, 0.4)),
        row(metric, "fc1", value, interval=(0.2, 0.6)),
        row(metric, "fc1", value, interval=(0.05, 0.4)),
        row(metric, "fc1", value, interval=(0.0, 0.9)),
        row(metric, "fc1", 9.0),
        row(metric, "fc1", -9.0),
        skipped_row(metric, "fc1", "no layer"),
        failed_row(metric, "fc1", "no memory"),
        row("sensitivity.input_f", "fc1", 1.0),
    ]
    for measured in cases:
        shown = view(make_report(measured), policy)
        sentences = [shown.verdict.sentence, *(text for _, _, text in shown.first.answers)]
        assert not any(map(DOTTED.search, sentences)), sentences
