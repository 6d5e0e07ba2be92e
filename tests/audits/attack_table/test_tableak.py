"""Cells by optimisation: the relaxed model, pooling and calibration; what is drawn and reported."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from audits.attack_table.tables import chain, seen_of, subject_of, table
from safetensors.torch import save_file

from gradaudit.attacks.reconstruction.base import Candidates
from gradaudit.attacks.reconstruction.observing import ThreatModel
from gradaudit.audits.attack_table import AttackTable, TableOptions, peeling, tableak
from gradaudit.audits.attack_table.base import TableSetting, guessed
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.table_scores import calibration_error
from gradaudit.audits.attack_table.tableak import (
    RelaxedRows,
    TabLeak,
    calibrated,
    own_records,
    pool,
    relaxed_view,
)
from gradaudit.core.randomness import torch_rng
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.errors import NotApplicable
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.report import Measurement
from gradaudit.sharing.protocol import SharingProtocol

COUNT = 4
NAMES = [*(f"number-{i}" for i in range(2)), *(f"category-{i}" for i in range(4))]


def sharp(columns: TableColumns, cells: torch.Tensor) -> torch.Tensor:
    """Free numbers whose softened cells are those of rows."""
    free = cells.clone()
    for group in columns.groups:
        free[:, group] = 60 * cells[:, group]
    return free


def test_free_numbers_of_the_true_rows_have_the_gradient_that_was_shared() -> None:
    view, columns, batch = seen_of(table(raw=True), chain(17, 20, 2), COUNT)
    relaxed = relaxed_view(view, columns)
    free = sharp(columns, columns.cells(batch.inputs))
    made = relaxed.simulated(free, batch.labels)
    for name, part in relaxed.update.items():
        torch.testing.assert_close(made[name], part, rtol=1e-6, atol=1e-9)
        assert torch.equal(part, view.update[name.removeprefix("model.")])


def test_categories_that_no_row_has_are_ruled_out_and_no_others() -> None:
    view, columns, batch = seen_of(table(), chain(17, 20, 2), COUNT)
    front = relaxed_view(view, columns).model.module
    assert isinstance(front, RelaxedRows)
    there = columns.cells(batch.inputs).any(dim=0)
    categories = torch.cat(columns.groups)
    assert torch.equal(front.absent[categories] == 0, there[categories])


def test_members_in_another_order_are_matched_before_they_are_pooled() -> None:
    """Two of three members agree in every cell; the third has one number off."""
    view, columns, batch = seen_of(table(), chain(17, 20, 2), COUNT)
    relaxed = relaxed_view(view, columns)
    truth = columns.cells(batch.inputs)
    members = torch.stack([truth, truth[[2, 0, 3, 1]], truth[[3, 2, 1, 0]]])
    members[2, 0, columns.numeric[0]] += 0.5
    labels = torch.stack([batch.labels, batch.labels[[2, 0, 3, 1]], batch.labels[[3, 2, 1, 0]]])
    free = torch.stack([sharp(columns, rows) for rows in members])
    scores, fine = torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3, dtype=torch.bool)
    pooled = pool(columns, relaxed, Candidates(free, labels, scores, fine))
    torch.testing.assert_close(columns.rounded(pooled.cells), truth)
    assert pooled.labels.tolist() == batch.labels.tolist()
    lower = pooled.scores < pooled.scores.amax(dim=0) - 1e-6
    assert lower.nonzero().tolist() == [[3, 0]]
    with pytest.raises(NotApplicable, match="every optimisation diverged"):
        pool(columns, relaxed, Candidates(free, labels, scores * torch.nan, ~fine))


@pytest.mark.slow
def test_few_rows_of_a_small_table_are_found_by_optimisation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Labels are counted by the last bias; more cells are right than the modes' of the table."""
    monkeypatch.setattr(tableak, "_OWN_BATCHES", 1)
    records, model = table(), chain(17, 40, 40, 2)
    view, columns, batch = seen_of(records, model, COUNT)
    target, options = Target(model, CrossEntropy()), TableOptions(ensemble=2, iterations=200)
    threat = ThreatModel(target, SharingProtocol(), target.layers)
    others = records.take(np.arange(COUNT, len(records)))
    setting = TableSetting(columns, 0, options, others=others, threat=threat)
    answer = TabLeak().run(view, setting, Silent())
    truth = columns.cells(batch.inputs)
    assert sorted(answer.labels.tolist()) == sorted(batch.labels.tolist())
    right = (columns.codes(answer.cells)[:, None] == columns.codes(truth)[None]).double().mean(2)
    mode = columns.codes(guessed(columns, COUNT).cells) == columns.codes(truth)
    assert float(right.max(dim=0).values.mean()) > float(mode.double().mean()) + 0.2
    assert not bool(answer.certified.any() | answer.named.any())
    short = replace(setting, options=TableOptions(ensemble=2, iterations=5))
    first, again = (TabLeak().run(view, short, Silent()) for _ in range(2))
    assert torch.equal(first.cells, again.cells)


def test_certainty_rises_with_agreement_and_is_the_share_that_is_right() -> None:
    """Of 3,600 numbers a share of s is right where the score is s."""
    draws = np.random.default_rng(0)
    inputs = torch.from_numpy(draws.normal(size=(300, 12)))
    columns = TableColumns.of(Records(inputs, torch.zeros(300).long(), ("0",)), inputs)
    scores = torch.from_numpy(draws.uniform(size=(300, 12)))
    right = torch.from_numpy(draws.uniform(size=(300, 12))) < scores
    certainty = calibrated(columns, scores, right, scores)
    assert float((certainty - scores).abs().mean()) < 0.03
    order = scores.flatten().argsort()
    assert bool((certainty.flatten()[order].diff() >= 0).all())


def test_cells_of_one_score_have_the_share_of_these_that_is_right() -> None:
    """An ensemble of one agrees with itself on every number: of 80 such cells 60 are right."""
    inputs = torch.eye(8, dtype=torch.float64)
    columns = TableColumns.of(Records(inputs, torch.zeros(8).long(), ("0",)), inputs)
    right = (torch.arange(80) % 4 > 0).reshape(10, 8)
    certainty = calibrated(columns, inputs.new_zeros(10, 8), right, inputs.new_zeros(2, 8))
    torch.testing.assert_close(certainty, inputs.new_full((2, 8), 60.5 / 81))


def test_the_attackers_own_records_have_the_labels_that_were_counted() -> None:
    """In no order, and none of them twice; others take the place of those that there are not."""
    records = table()
    chosen = own_records(records, torch.tensor([0, 1, 1, 1, 0]), 5, torch_rng(0, "own"))
    assert sorted(chosen.labels.tolist()) == [0, 0, 1, 1, 1]
    assert len(chosen.inputs.unique(dim=0)) == 5
    many = [own_records(records, torch.arange(2), 2, torch_rng(seed, "own")) for seed in range(20)]
    assert {tuple(each.labels.tolist()) for each in many} == {(0, 1), (1, 0)}
    assert len(own_records(records, torch.tensor([2, 2, 2]), 3, torch_rng(0, "own"))) == 3
    assert len(own_records(records, None, 7, torch_rng(0, "own"))) == 7


def test_the_calibration_error_is_the_mean_gap_of_the_bins() -> None:
    certainty = np.array([0.95, 0.95, 0.95, 0.95, 0.15, 0.15])
    right = np.array([True, True, True, False, False, False])
    assert calibration_error(certainty, right) == pytest.approx((4 * 0.2 + 2 * 0.15) / 6)


@pytest.mark.slow
def test_the_audit_reports_shares_columns_and_values_only_where_asked(
    tmp_path: Path,
) -> None:
    subject = subject_of(table(), chain(17, 40, 40, 2))
    how = {"batch_size": 8, "batches": 2, "save_examples": str(tmp_path)}
    rows = _by_metric(
        list(AttackTable(AttackTable.Options.model_validate(how)).run(subject, Silent()))
    )
    for metric in ("cell_accuracy", "row_accuracy", "rows_certified"):
        assert rows[metric, ""].value == 1
    assert rows["false_rows", ""].value == 0
    assert rows["rows_certified", ""].details["decoys_certified"] == 0
    for baseline in ("most frequent values", "another update"):
        assert 0 < float(str(rows["cell_accuracy", baseline].value)) < 0.6
    assert all(rows["cell_accuracy", name].value == 1 for name in NAMES)
    hidden = list(csv.reader((tmp_path / "row-space-01.csv").open()))
    assert hidden[0] == [*NAMES, "named", "certified"]
    assert all(line == ["1.00"] * 6 + ["True", "True"] for line in hidden[1:])
    assert (tmp_path / "row-space-02.csv").is_file()
    shown = AttackTable(AttackTable.Options.model_validate({**how, "reveal": True}))
    list(shown.run(subject, Silent()))
    values = list(csv.reader((tmp_path / "row-space-01.csv").open()))[1:]
    spelled = TableColumns.of(table(), table().inputs)
    everyone = spelled.spelled(spelled.cells(table().inputs))
    assert all(line[2:6] in [row[2:] for row in everyone] for line in values)


def _by_metric(rows: list[Measurement]) -> dict[tuple[str, str], Measurement]:
    """By its metric and the only value of its variant, if there is one."""
    return {(row.metric, "".join(map(str, row.variant.values()))): row for row in rows}


def test_rows_of_a_captured_update_are_proved_without_the_truth(tmp_path: Path) -> None:
    records, model = table(), chain(17, 40, 40, 2)
    view, _, _ = seen_of(records, model, 8)
    save_file(dict(view.update), tmp_path / "update.safetensors")
    how = {"batch_size": 8, "update": str(tmp_path / "update.safetensors")}
    audit = AttackTable(AttackTable.Options.model_validate(how))
    rows = _by_metric(list(audit.run(subject_of(records, model), Silent())))
    assert rows["rows_certified", ""].value == 1
    assert rows["rows_certified", ""].details["decoys_certified"] == 0
    assert rows["row_accuracy", ""].value is None


@pytest.mark.slow
def test_updates_that_are_refused_are_counted_beside_the_shares_of_the_others() -> None:
    """One layer alone; the second batch holds a record twice, so that its span is too small."""
    records = table()
    order = torch.tensor([0, 1, 2, 3, 4, 4, 5, 6])
    doubled = replace(records, inputs=records.inputs[order], labels=records.labels[order])
    how = {"batch_size": 4, "records": list(range(8)), "method": ["row-space"]}
    audit = AttackTable(AttackTable.Options.model_validate(how))
    rows = _by_metric(list(audit.run(subject_of(doubled, chain(17, 40, 2)), Silent())))
    accuracy = rows["row_accuracy", ""]
    assert accuracy.n == 1
    assert accuracy.details["updates_refused"] == 1
    assert "has 3 dimensions for 4 rows" in str(accuracy.details["refused_because"])


@pytest.mark.slow
def test_cells_are_optimised_where_no_row_is_named_behind_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The spans are full of noise, and so is each own update that the certainty is learnt from."""
    monkeypatch.setattr(tableak, "_OWN_BATCHES", 1)
    monkeypatch.setattr(peeling, "_PATIENCE", 3)
    subject = subject_of(table(), chain(17, 40, 40, 2))
    noisy = replace(subject, defenses=(parse_defense("dp:clip=100,sigma=0.02"),))
    how = {"batch_size": 4, "batches": 1, "ensemble": 1, "iterations": 100, "tolerance": 0.3}
    audit = AttackTable(AttackTable.Options.model_validate(how))
    rows = _by_metric(list(audit.run(noisy, Silent())))
    cells = rows["cell_accuracy", ""]
    assert (cells.details["method"], cells.details["refused"]) == ("tableak", {})
    assert rows["rows_certified", ""].value == 0
    assert float(str(cells.value)) > float(str(rows["cell_accuracy", "most frequent values"].value))


@pytest.mark.slow
def test_behind_noise_no_share_of_proved_rows_is_reported() -> None:
    subject = subject_of(table(), chain(17, 40, 40, 2))
    noisy = replace(subject, defenses=(parse_defense("dp:clip=100,sigma=1e-5"),))
    how = {"batch_size": 4, "batches": 1, "method": ("row-space",)}
    rows = _by_metric(
        list(AttackTable(AttackTable.Options.model_validate(how)).run(noisy, Silent()))
    )
    assert rows["row_accuracy", ""].value == 1
    assert rows["rows_certified", ""].reason == "behind noise rows are named, and none is proved"
