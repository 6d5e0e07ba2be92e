"""How rows are set beside the reference models, and what is said of it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from report_builder import make_report, row
from subjects import subject_of
from torch import nn

from gradaudit.audits import Audit, audits
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.judging import gate
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Mode, Target
from gradaudit.references import (
    COMPARED,
    FEWEST,
    REFERENCE,
    SET,
    ReferenceRank,
    references,
    standing,
    with_references,
)
from gradaudit.report import Measurement, Report
from gradaudit.view.scope import scope_of

VINFO = audits()["vinfo"](family=("forest", "norms"))
REBUILD = audits()["attack reconstruct"]()


def reference(audit: Audit[Any], *rows: Measurement, **options: Any) -> Report:
    """A reference model with these rows, made with the audit's options or others."""
    report = make_report(*rows)
    given = {**audit.options.model_dump(mode="json"), **options}
    return report.model_copy(
        update={"provenance": {**report.provenance, "audits": {audit.name: given}}}
    )


def aurocs(*values: float) -> list[Report]:
    return [reference(VINFO, row("vinfo.auroc", "fc1", value)) for value in values]


def test_a_row_is_riskier_than_what_lies_more_than_the_tolerance_below_it() -> None:
    by = COMPARED["vinfo.auroc"].tolerance
    among = aurocs(0.5, 0.8 - by - 0.001, 0.8 - by + 0.001, 0.8, 0.8 + by - 0.001, 0.95)
    found = standing(row("vinfo.auroc", "fc9", 0.8), "Linear", VINFO, among)
    assert found == ReferenceRank(set=SET, of=6, riskier_than=2, alike=3)


def test_of_errors_the_smaller_is_the_riskier() -> None:
    metric = "attack.relative_error"
    among = [reference(REBUILD, row(metric, None, value)) for value in (0.0, 0.5, 0.9, 2.0)]
    found = standing(row(metric, None, 0.1), None, REBUILD, among)
    assert found == ReferenceRank(set=SET, of=4, riskier_than=2, alike=2)


def test_what_is_no_better_than_chance_is_alike() -> None:
    metric = "attack.relative_error"
    among = [reference(REBUILD, row(metric, None, value)) for value in (1.0, 1.6, 0.4)]
    found = standing(row(metric, None, 1.3), None, REBUILD, among)
    assert found == ReferenceRank(set=SET, of=3, riskier_than=0, alike=2)
    found = standing(row("vinfo.auroc", "fc1", 0.45), "Linear", VINFO, aurocs(0.2, 0.3, 0.7))
    assert found == ReferenceRank(set=SET, of=3, riskier_than=0, alike=2)


@pytest.mark.parametrize(
    ("one", "kind"),
    [
        (row("vinfo.auroc", "fc1", 0.9), "Conv2d"),
        (row("vinfo.auroc", "fc1", 0.9, variant={"attribute": "sex"}), "Linear"),
        (row("vinfo.vinfo", "fc1", 0.9), "Linear"),
        (row("vinfo.auroc", "fc1", status="skipped", reason="why"), "Linear"),
    ],
    ids=["another kind of layer", "a variant", "another metric", "no number"],
)
def test_nothing_is_compared_with_what_is_not_alike(one: Measurement, kind: str) -> None:
    assert standing(one, kind, VINFO, aurocs(0.5, 0.6, 0.7)) is None


def test_references_with_other_options_do_not_count() -> None:
    one = row("vinfo.auroc", "fc1", 0.9)
    others = [
        reference(VINFO, row("vinfo.auroc", "fc1", 0.5), **{name: value})
        for name, value in {"batch_size": 8, "others": 3, "algorithm": "fedavg"}.items()
    ]
    assert standing(one, "Linear", VINFO, others) is None
    found = standing(one, "Linear", VINFO, [*others, *aurocs(0.5, 0.6, 0.7)])
    assert found is not None
    assert found.of == 3
    longer = [
        reference(VINFO, row("vinfo.auroc", "fc1", 0.5), repeats=99, batches=10) for _ in range(3)
    ]
    assert standing(one, "Linear", VINFO, longer) is not None


def test_fewer_than_three_references_are_none() -> None:
    one = row("vinfo.auroc", "fc1", 0.9)
    assert FEWEST == 3
    assert standing(one, "Linear", VINFO, aurocs(0.5, 0.6)) is None
    without = reference(VINFO, row("vinfo.auroc", "conv1", 0.5))
    assert standing(one, "Linear", VINFO, [*aurocs(0.5, 0.6), without]) is None


def marked(*rows: Measurement, mode: Mode = "eval", **changes: Any) -> list[bool]:
    """Of which rows of a subject with two layers it is said how they stand."""
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    records = Records(torch.rand(6, 4), torch.arange(6) % 2)
    target = Target(net, CrossEntropy(), mode=mode)
    subject = replace(subject_of(target, records), **changes)
    audit = REBUILD if rows[0].audit == "attack" else VINFO
    return [REFERENCE in one.details for one in with_references(rows, audit, subject)]


def test_defended_hidden_and_training_models_are_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gradaudit.references.references", lambda: aurocs(0.5, 0.6, 0.7))
    rows = row("vinfo.auroc", "0", 0.9), row("vinfo.auroc", "1", 0.9)
    assert marked(*rows) == [True, False]  # there is no layer 1
    assert marked(*rows, defenses=(parse_defense("sign"),)) == [False, False]
    assert marked(*rows, hidden=("2",)) == [False, False]
    assert marked(*rows, mode="train") == [False, False]


def test_a_whole_model_is_compared_where_all_of_it_is_audited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    among = [reference(REBUILD, row("attack.relative_error", None, 1.0)) for _ in range(3)]
    monkeypatch.setattr("gradaudit.references.references", lambda: among)
    whole = row("attack.relative_error", None, 0.1)
    assert marked(whole) == [True]
    assert marked(whole, layers=()) == [False]


def stands(above: int, alike: int = 0) -> dict[str, Any]:
    return {REFERENCE: {"set": SET, "of": 9, "riskier_than": above, "alike": alike}}


def test_the_sentence_names_the_riskiest_place_of_each_metric() -> None:
    report = make_report(
        row("attack.relative_error", None, 0.25, details=stands(4)),
        row("attack.membership_distance", None, 0, details=stands(0, 9)),
        row("vinfo.auroc", "conv1", 0.7, details=stands(1)),
        row("vinfo.auroc", "fc1", 0.9, details=stands(7, 2)),
        row("vinfo.auroc", "fc2", 0.8, details=stands(3)),
    )
    assert scope_of(report).compared == (
        "vinfo.auroc 0.900 in fc1 above that of 7 of 9 references with Linear layers; "
        "attack.relative_error 0.250 below that of 4 of 9 references "
        f"(reference set {SET}: small models, no scale of risk)"
    )
    assert ("compared", scope_of(report).compared) in scope_of(report).lines


def test_without_a_comparison_nothing_is_said() -> None:
    report = make_report(row("vinfo.auroc", "fc1", 0.9))
    assert scope_of(report).compared == ""
    assert "compared" not in dict(scope_of(report).lines)


@pytest.mark.parametrize(
    "said",
    [None, 9, "2026-11", {"set": "[bold]", **dict.fromkeys(("of", "riskier_than", "alike"), 1)}],
)
def test_details_that_are_no_comparison_say_nothing(said: Any) -> None:
    report = make_report(row("vinfo.auroc", "fc1", 0.9, details={REFERENCE: said}))
    assert scope_of(report).compared == ""


def test_no_verdict_depends_on_the_references() -> None:
    one = row("vinfo.auroc", "fc1", 0.9, interval=(0.8, 0.95))
    plain, beside = make_report(one), make_report(one.with_details(stands(9)))
    assert gate(plain).findings == gate(beside).findings


def test_the_twelve_references_are_of_one_set_and_one_setting() -> None:
    found = references()
    assert len(found) == 12
    assert {report.provenance["reference"]["set"] for report in found} == {SET}  # type: ignore[call-overload,index]
    assert len({str(report.provenance["audits"]) for report in found}) == 1
    for report in found:
        metrics = {one.id for one in report.rows}
        assert {"vinfo.auroc", "attack.record_auroc"} <= metrics <= set(COMPARED)
        assert all(one.number is not None and not one.variant for one in report.rows)


def test_a_plain_scan_asks_what_the_references_were_asked() -> None:
    """Else no scan would ever be compared."""
    for name, asked in references()[0].provenance["audits"].items():  # type: ignore[union-attr]
        kind = audits()[name]
        plain = kind.Options(**kind.plain).model_dump(mode="json")
        free = set[str]().union(
            *(COMPARED[f"{kind.reports_as()}.{one.id}"].free for one in kind.metrics
              if f"{kind.reports_as()}.{one.id}" in COMPARED)
        )  # fmt: skip
        assert {k: v for k, v in plain.items() if k not in free} == {
            k: v
            for k, v in asked.items()  # type: ignore[union-attr]
            if k not in free
        }
