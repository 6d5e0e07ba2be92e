"""What a finding says beside its number: both scores of a difference, n of a share, and chance."""

from typing import Any

import pytest
from report_builder import make_report, row, skipped_row

from gradaudit.judging import gate
from gradaudit.report import Measurement, Report
from gradaudit.view import view

GAIN = "attack.auroc_gain"
SCORES = {"difference_of": {"AUROC": 0.79, "shuffled": 0.263}}


def attack(metric: str, value: float, name: str, **more: Any) -> Measurement:
    """A row of one of a scan's attacks."""
    return row(metric, None, value, variant={"attack": name}, **more)


def headline(of: Measurement, name: str) -> Measurement:
    return of.model_copy(update={"variant": {}, "details": {**of.details, "attack": name}})


def evidence(*rows: Measurement) -> list[str]:
    return [concern.evidence for concern in view(gate(make_report(*rows))).findings]


def test_a_difference_stands_beside_both_scores() -> None:
    gain = row(GAIN, None, 0.527, interval=(0.4, 0.6), details=SCORES)
    assert evidence(gain) == [
        "AUROC above shuffled 0.527 [0.400, 0.600] (AUROC 0.79, shuffled 0.26)"
    ]


@pytest.mark.parametrize(
    ("ends", "words"),
    [((-0.05, 0.12), "not inferred"), ((0.02, 0.12), "better than chance, within the limit")],
)
def test_nothing_is_called_not_inferred_that_is_above_chance(
    ends: tuple[float, float], words: str
) -> None:
    (found,) = evidence(row(GAIN, None, 0.08, interval=ends))
    assert found.endswith(f": {words}")


def test_a_share_says_of_how_many_it_is_and_how_many_would_settle_it() -> None:
    """None of n excludes a share of 10 % where 1 − 0.025^(1/n) is at most that: from 36 on."""
    few = row("attack.row_accuracy", None, 0.0, interval=(0.0, 0.851))
    few = few.model_copy(update={"n": 2})
    (concern,) = view(gate(make_report(few))).concerns
    assert concern.evidence.startswith("share of rows 0 [0, 0.851], n = 2")
    assert (
        concern.settles == "about 36 updates (attack table --batches) instead of 2 would settle it"
    )
    assert 1 - 0.025 ** (1 / 36) <= 0.1 < 1 - 0.025 ** (1 / 35)


def failed() -> Report:
    rows = [
        row("attack.relative_error", None, 0.01),
        row("attack.row_accuracy", None, 0.9),
        row("vinfo.auroc", None, 0.9),
        row("copa-metric.c", None, 0.0),
        row(GAIN, None, 0.5),
    ]
    return gate(make_report(*rows))


def test_the_verdict_counts_the_findings_that_it_does_not_name() -> None:
    shown = view(failed())
    high = [concern for concern in shown.concerns if concern.level == "high"]
    assert len(high) == 5
    assert shown.verdict.worst.endswith("; and 3 more findings")


def test_the_advice_forgets_no_finding_of_high_severity() -> None:
    shown = view(failed())
    for concern in shown.concerns:
        assert concern.sentence.rstrip(".") in shown.summary.do or not concern.helps


@pytest.mark.parametrize("audits", [["attack malicious-server"], ["attack record", "vinfo"]])
def test_a_defense_names_the_audits_that_did_not_meet_it(audits: list[str]) -> None:
    """Alone an attack's rows have no label; beside others the headline has it in its details."""
    name = audits[0].removeprefix("attack ")
    bare = row("attack.imprint_score", "fc1", 0.1, details={"defenses": "not applied"})
    rows = [bare] if len(audits) == 1 else [headline(bare, name), row("vinfo.auroc", "fc1", 0.5)]
    report = make_report(*rows)
    report.provenance.update(defenses=["prune:0.99"], audits={each: {} for each in audits})
    assert f"prune:0.99 (not applied by: {audits[0]})" in view(report).summary.assumptions


def test_what_was_not_named_is_no_want_of_application() -> None:
    report = make_report(
        row("vinfo.auroc", "fc1", 0.5),
        skipped_row("dp-audit.epsilon_lower", None, "no mechanism is configured; name one with …"),
        skipped_row("copa-metric.c", None, "the model has no convolution modules"),
    )
    gaps = view(report).summary.not_tested
    assert "dp-audit (no mechanism is configured); copa-metric (not applicable)" in gaps


def test_a_single_audit_keeps_the_advice_of_its_own_rows() -> None:
    report = make_report(row("attack.row_accuracy", None, 0.9))
    report.provenance["unjudged"] = True
    do = view(report).summary.do
    assert do.startswith("Rows of the table are reconstructed: batches of more rows")
    assert do.endswith("Run gradaudit scan, or name a policy (--policy).")
