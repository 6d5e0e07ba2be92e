"""What stands around the findings, and what their evidence says."""

import re
from dataclasses import replace
from typing import Any

import pytest
from report_builder import Leak, failed_row, make_report, row, skipped_row

from gradaudit.formats import format_named
from gradaudit.judging import Policy, gate
from gradaudit.judging.policy import known_metrics
from gradaudit.view import view


@pytest.mark.usefixtures("two_audits")
@pytest.mark.parametrize(
    ("bits", "word", "do"),
    [
        (
            row("leak.bits", "conv1", 3.0, interval=(2.5, 3.5)),
            "FAILED by the default policy",
            "The private attribute of a batch is inferred: hiding conv1 (--hide), or noise "
            "(--defense). Then measure again.",
        ),
        (
            row("leak.bits", "conv1", 1.9, interval=(0.9, 2.5), n=100),
            "UNDECIDED by the default policy",
            "About 36 times as many records or trials would settle it. Then measure again.",
        ),
        (
            row("leak.bits", "conv1", 0.5, interval=(0.1, 0.9)),
            "PASSED by the default policy",
            "Measure again when the model, data, batches or defenses change.",
        ),
        (
            row("rank.deficit", "conv1", 3),
            "MEASURED",
            "Run gradaudit scan, or name a policy (--policy).",
        ),
    ],
)
def test_every_verdict_has_its_advice(bits: Any, word: str, do: str) -> None:
    summary = view(make_report(bits)).summary
    assert (summary.word, summary.do) == (word, do)
    stronger = "A stronger attacker than those that were tried may get more."
    assert summary.assumptions.endswith(stronger) is word.startswith("PASSED")
    assert [heading for heading, _ in summary.sections[:2]] == ["What to do", "Assumptions"]


def test_every_finding_that_is_shown_has_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four metrics with a finding of one level, two have one remedy."""
    helps = {"a": "cut", "b": "mix", "c": "cut", "d": "add"}
    bits = Leak.metrics[0]
    metrics = [replace(bits, id=id_, finding=f"{id_} leaks.", helps=helps[id_]) for id_ in helps]
    more = type("More", (Leak,), {"metrics": tuple(metrics)})
    for module in ("gradaudit.judging.policy", "gradaudit.view.layers", "gradaudit.view.gaps"):
        monkeypatch.setattr(f"{module}.audits", lambda: {"leak": more})
    report = make_report(*(row(f"leak.{id_}", None, 1.5) for id_ in helps))
    do = "a leaks; c leaks: cut. b leaks: mix. d leaks: add. Then measure again."
    assert view(report).summary.do == do
    assert do in " ".join(format_named("table").render(report).split())


@pytest.mark.parametrize(
    ("closest", "counts"),
    [
        ([0.01, 0.05, 0.2, 0.9], "3 of 4 records [19 %, 99 %]"),
        ([0.01] * 4, "4 of 4 records [40 %, 100 %]"),
        ([0.01, "inf", "inf", "inf"], "1 of 4 records [1 %, 81 %]"),
        ([0.3], "0 of 1 record [0 %, 98 %]"),
    ],
)
def test_records_are_counted_with_the_exact_interval_of_their_share(
    closest: list[Any], counts: str
) -> None:
    """Of n of n records the lower end is .025^(1/n); a value at the limit is not beyond it."""
    listed = {"closest": closest, "setting": "diagnostic", "effort": "quick"}
    rule = {"metric": "attack.relative_error", "min": 0.3}
    measured = row("attack.relative_error", None, 0.29, details=listed)
    shown = view(make_report(measured), Policy.model_validate({"rules": [rule]}))
    assert shown.concerns[0].evidence == f"relative error 0.290, {counts}"


def tried(auroc: float, *ends: float, **details: Any) -> Any:
    more = {"batch_size": 184, "effort": "quick", **details}
    return row("attack.record_auroc", None, auroc, interval=ends, details=more)


@pytest.mark.parametrize(
    ("measured", "cleared"),
    [
        (
            tried(0.503, 0.47, 0.53, attack="record"),
            ["AUROC 0.503 [0.470, 0.530] (record) behind batches of 184: not distinguished"],
        ),
        (tried(0.58, 0.55, 0.61), []),
        (tried(0.7, 0.65, 0.75), []),
        (tried(0.503, 0.47, 0.53, effort="below"), []),
    ],
    ids=["within both limits", "undecided", "beyond one", "hardly tried"],
)
def test_an_attack_that_finds_nothing_is_named_with_its_number(
    measured: Any, cleared: list[str]
) -> None:
    assert [each.evidence for each in view(make_report(measured)).cleared] == cleared


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
        sentences = [shown.verdict.sentence, *(each.sentence for each in shown.findings)]
        assert not any(map(DOTTED.search, sentences)), sentences


def test_a_detail_named_like_the_audit_is_no_name_of_an_attack() -> None:
    facts = {"closest": [1e-9], "attack": {"layer": "fc1"}}
    (found,) = view(make_report(row("attack.relative_error", None, 1e-9, details=facts))).concerns
    assert found.evidence == "relative error 1.00e-9, 1 of 1 record [3 %, 100 %]"


def test_metrics_without_a_number_are_no_gap_of_their_audit() -> None:
    measured = row("attack.relative_error", None, 1e-9, details={"attack": {"layer": "fc1"}})
    report = make_report(measured, skipped_row("attack.psnr", None, "no pictures"))
    report.provenance["audits"] = {"attack reconstruct": {}}
    shown = view(report)
    assert "reconstruct" not in shown.summary.not_tested
    assert "attack.psnr" in [gap.what for gap in shown.gaps]


@pytest.mark.parametrize("suffix", ["markdown", "html", "table", "github", "sarif", "junit"])
def test_every_format_has_the_reason_and_the_day_of_an_exception(suffix: str) -> None:
    rows = [row("leak.bits", name, 3.0) for name in ("fc1", "fc2")]
    ignore = [
        {"metric": "leak.bits", "layers": "fc1", "reason": "stays inside", "until": "2999-01-31"},
        {"metric": "leak.bits", "layers": "fc2", "reason": "was inside", "until": "2020-01-31"},
    ]
    rules = {"rules": [{"metric": "leak.bits", "max": 1}], "ignore": ignore}
    judged = gate(make_report(*rows), Policy.model_validate(rules))
    text = format_named(suffix, every=True).render(judged)
    text = " ".join(text.replace("\\", "").split())
    assert "ignored until 2999-01-31: stays inside" in text
    assert "no longer ignored since 2020-02-01: was inside" in text


@pytest.mark.usefixtures("two_audits")
@pytest.mark.parametrize("defended", [True, False])
def test_what_is_measured_without_the_defense_says_so_and_is_not_remedied_by_one(
    defended: bool,
) -> None:
    details = {} if defended else {"defenses": "none applied: these are single records"}
    found = row("leak.bits", "conv1", 3.0, interval=(2.5, 3.5), details=details)
    (concern, *_) = view(make_report(found)).concerns
    assert ("measured without the defense" in concern.evidence) is not defended
    assert concern.helps == "hiding conv1 (--hide)" + (", or noise (--defense)" if defended else "")


@pytest.mark.parametrize(("value", "least"), [(1 / 101, True), (2 / 101, False)])
def test_the_least_p_value_names_its_permutations(value: float, least: bool) -> None:
    found = row("subspace.p_value", "fc1", value, details={"permutations": 100})
    (concern, *_) = view(make_report(found), NO_LUCK).concerns
    words = f"permutation p {value:.5f}, the least that 100 permutations can give"
    assert concern.evidence.startswith(words) is least


NO_LUCK = Policy.model_validate({"rules": [{"metric": "subspace.p_value", "min": 0.05}]})
