"""Cells by optimisation: the relaxed model, pooling and calibration; what is drawn and reported."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from audits.attack_table.tables import chain, seen_of, subject_of, table
from PIL import Image
from safetensors.torch import save_file

from gradaudit.attacks.reconstruction.base import Candidates
from gradaudit.audits.attack_table import AttackTable, TableOptions
from gradaudit.audits.attack_table.base import TableSetting, guessed
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.measure import imputed
from gradaudit.audits.attack_table.table_scores import TableScores, calibration_error, draw_cells
from gradaudit.audits.attack_table.tableak import (
    Pooled,
    RelaxedRows,
    TabLeak,
    calibrated,
    own_batch,
    pool,
    relaxed_view,
)
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.progress import Silent
from gradaudit.report import Measurement

COUNT = 4


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
def test_few_rows_of_a_small_table_are_found_by_optimisation() -> None:
    """Labels are counted by the last bias; more cells are right than the modes' of the table."""
    view, columns, batch = seen_of(table(), chain(17, 40, 40, 2), COUNT)
    setting = TableSetting(columns, 0, TableOptions(ensemble=2, iterations=400, tolerance=0.3))
    answer = TabLeak().run(view, setting, Silent())
    truth = columns.cells(batch.inputs)
    assert sorted(answer.labels.tolist()) == sorted(batch.labels.tolist())
    right = (columns.codes(answer.cells)[:, None] == columns.codes(truth)[None]).double().mean(2)
    mode = columns.codes(guessed(columns, COUNT).cells) == columns.codes(truth)
    assert float(right.max(dim=0).values.mean()) > float(mode.double().mean()) + 0.2
    assert not bool(answer.certified.any() | answer.named.any())
    short = TableSetting(columns, 0, TableOptions(ensemble=2, iterations=5))
    first, again = (TabLeak().run(view, short, Silent()) for _ in range(2))
    assert torch.equal(first.cells, again.cells)


def test_certainty_rises_with_agreement_and_is_the_share_that_is_right() -> None:
    """Of 3,600 numbers a share of s is right where the score is s."""
    draws = np.random.default_rng(0)
    inputs = torch.from_numpy(draws.normal(size=(300, 12)))
    columns = TableColumns.of(Records(inputs, torch.zeros(300).long(), ("0",)), inputs)
    scores = torch.from_numpy(draws.uniform(size=(300, 12)))
    wrong = torch.from_numpy(draws.uniform(size=(300, 12))) > scores
    truth = columns.cells(inputs)
    own = Pooled(truth + 9 * wrong, torch.zeros(300), scores, 0.0)
    certainty = calibrated(columns, own, truth, own, 0.02)
    assert float((certainty - scores).abs().mean()) < 0.06
    order = scores.flatten().argsort()
    assert bool((certainty.flatten()[order].diff() >= 0).all())


def test_the_attackers_own_batch_has_the_update_of_its_rows() -> None:
    view, columns, _ = seen_of(table(), chain(17, 20, 2), COUNT)
    view = replace(view, labels=torch.tensor([0, 1, 1, 0]))
    cells, update = own_batch(view, columns, torch.Generator().manual_seed(0))
    made = view.simulated(columns.inputs(cells), torch.tensor([0, 1, 1, 0]))
    torch.testing.assert_close(update["0.weight"], made["0.weight"])


def test_a_picture_has_a_square_for_each_cell(tmp_path: Path) -> None:
    right = np.array([[True, False], [True, True]])
    sure = np.array([[1.0, 1.0], [1.0, 0.5]])
    yes = np.array([True, True])
    scores = TableScores(right, sure, yes, np.array([False, True]), 2, 0, 0)
    draw_cells(tmp_path, "grid", scores)
    with Image.open(tmp_path / "grid.png") as sheet:
        assert sheet.size == (3 * 16, 2 * 16 + 2)
        pixels = [[sheet.getpixel((16 * (c + 1) + 3, 16 * r + 5)) for c in (0, 1)] for r in (0, 1)]
        bars = [sheet.getpixel((3, 16 * r + 5)) for r in (0, 1)]
    assert pixels == [[(30, 130, 76), (192, 57, 43)], [(30, 130, 76), (142, 192, 166)]]
    assert bars == [(255, 255, 255), (0, 0, 0)]


def test_known_columns_stay_and_the_others_come_from_the_nearest_records() -> None:
    records = table()
    columns = TableColumns.of(records, records.inputs)
    rows = columns.known[:5]
    guess = imputed(columns, rows, ["number-0", "category-1"])
    assert torch.equal(guess[:, 0], rows[:, 0])
    assert torch.equal(columns.codes(guess)[:, 1], columns.codes(rows)[:, 1])
    with pytest.raises(UsageError, match="--knows number-9: no such column"):
        imputed(columns, rows, ["number-9"])


def test_the_calibration_error_is_the_mean_gap_of_the_bins() -> None:
    certainty = np.array([0.95, 0.95, 0.95, 0.95, 0.15, 0.15])
    right = np.array([True, True, True, False, False, False])
    assert calibration_error(certainty, right) == pytest.approx((4 * 0.2 + 2 * 0.15) / 6)


def test_the_audit_reports_shares_columns_pictures_and_values_only_where_asked(
    tmp_path: Path,
) -> None:
    subject = subject_of(table(), chain(17, 40, 40, 2))
    how = {"batch_size": 8, "batches": 2, "knows": "number-0", "save_examples": str(tmp_path)}
    rows = _by_metric(
        list(AttackTable(AttackTable.Options.model_validate(how)).run(subject, Silent()))
    )
    for metric in ("cell_accuracy", "row_accuracy", "rows_certified"):
        assert rows[metric, ""].value == 1
    assert rows["false_rows", ""].value == 0
    assert rows["rows_certified", ""].details["decoys_certified"] == 0
    known = rows["cell_accuracy", ""].details
    assert 0 < float(str(known["guess"])) < 0.6
    assert 0 < float(str(known["imputed"])) < 0.6
    assert float(str(known["floor"])) < 0.6
    named = [f"number-{i}" for i in range(2)] + [f"category-{i}" for i in range(4)]
    assert all(rows["cell_accuracy", name].value == 1 for name in named)
    hidden = list(csv.reader((tmp_path / "row-space-01.csv").open()))
    assert hidden[0] == [*named, "named", "certified"]
    assert all(line == ["1.00"] * 6 + ["True", "True"] for line in hidden[1:])
    assert (tmp_path / "row-space-02.png").is_file()
    shown = AttackTable(AttackTable.Options.model_validate({**how, "reveal": True}))
    list(shown.run(subject, Silent()))
    values = list(csv.reader((tmp_path / "row-space-01.csv").open()))[1:]
    spelled = TableColumns.of(table(), table().inputs)
    everyone = spelled.spelled(spelled.cells(table().inputs))
    assert all(line[2:6] in [row[2:] for row in everyone] for line in values)


def _by_metric(rows: list[Measurement]) -> dict[tuple[str, str], Measurement]:
    return {(row.metric, str(row.variant.get("column", ""))): row for row in rows}


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
