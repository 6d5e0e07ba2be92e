"""The first screen: what an attacker gets, on which evidence, and what to do."""

import re
from typing import Any

import pytest
from report_builder import failed_row, make_report, row, skipped_row

from gradaudit.judging import Policy
from gradaudit.judging.policy import known_metrics
from gradaudit.view import view
from gradaudit.view.first_screen import TITLE, FirstScreen


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
    assert [asked for asked, _, _ in said.answers] == ["gets", "evidence", "do"]


@pytest.mark.usefixtures("two_audits")
@pytest.mark.parametrize(
    ("bits", "gets", "evidence", "do"),
    [
        (
            row("leak.bits", "conv1", 3.0, interval=(2.5, 3.5)),
            "A server can tell a batch's private attribute from conv1.",
            "leak.bits 3 [2.50, 3.50], lower end above limit 2.",
            "Not sharing conv1, or noise added before sharing. Then measure again.",
        ),
        (
            row("leak.bits", "conv1", 1.9, interval=(0.9, 2.5), n=100),
            "It is open whether a server can tell a batch's private attribute from conv1.",
            "leak.bits 1.90 [0.900, 2.50], limit 2 inside the interval.",
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
            "",
            "Measure what is missing.",
        ),
        (
            row("rank.deficit", "conv1", 3),
            "No verdict: the default policy sets no limit here.",
            "",
            "Run gradaudit scan, or name a policy (--policy).",
        ),
    ],
)
def test_the_first_sentences_of_every_verdict(bits: Any, gets: str, evidence: str, do: str) -> None:
    said = first(bits)
    assert (said.gets, said.evidence, said.do) == (gets, evidence, do)


@pytest.mark.usefixtures("two_audits")
def test_advice_against_two_findings_says_against_which() -> None:
    said = first(row("leak.bits", "conv1", 3.0), row("leak.total", None, 1.0))
    assert "can rebuild records" in said.gets
    assert said.do.startswith("Against the first: not sharing conv1, or")
    assert "--" not in said.do


@pytest.mark.parametrize(
    ("answers", "refused", "counts"),
    [
        ([0.01, 0.05, 0.2, 0.9], 0, "on 3 of 4 records [19 %, 99 %]"),
        ([0.01] * 4, 0, "on 4 of 4 records [40 %, 100 %]"),
        ([0.01], 3, "on 1 of 4 records [1 %, 81 %]"),
        ([None, "x", 0.3], 0, "on 0 of 1 record [0 %, 98 %]"),
    ],
)
def test_records_are_counted_with_the_exact_interval_of_their_share(
    answers: list[Any], refused: int, counts: str
) -> None:
    """Of n of n records the lower end is .025^(1/n); a value at the limit is not beyond it."""
    listed = {"answers": answers, "updates_refused": refused, "setting": "diagnostic"}
    rule = {"metric": "attack.relative_error", "min": 0.3}
    said = first(
        row("attack.relative_error", None, 0.29, details=listed),
        policy=Policy.model_validate({"rules": [rule]}),
    )
    assert f"attack.relative_error 0.290, {counts}, below limit 0.3. The" in said.evidence
    assert said.evidence.endswith("the attacker, as your own federation was not described.")


def tried(auroc: float, *ends: float, **details: Any) -> Any:
    more = {"batch_size": 184, "effort": "quick", **details}
    return row("attack.record_auroc", None, auroc, interval=ends, details=more)


@pytest.mark.parametrize(
    ("measured", "cleared"),
    [
        (
            tried(0.503, 0.47, 0.53, attack="record"),
            "attack record: AUROC 0.503 [0.470, 0.530] behind batches of 184: not distinguished.",
        ),
        (tried(0.58, 0.55, 0.61), ""),
        (tried(0.7, 0.65, 0.75), ""),
        (tried(0.503, 0.47, 0.53, effort="below"), ""),
    ],
    ids=["within both limits", "undecided", "beyond one", "hardly tried"],
)
def test_an_attack_that_finds_nothing_is_named_with_its_number(measured: Any, cleared: str) -> None:
    assert first(measured).cleared == cleared


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
    assert "attack.membership_distance 0, below limit 0.1 (no interval)." in said.evidence
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
        sentences = [shown.verdict.sentence, shown.first.gets, shown.first.do]
        assert not any(map(DOTTED.search, sentences)), sentences
