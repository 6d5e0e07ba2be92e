"""Rows of a table that a gradient proves, as the observer and the command see them."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from audits.attack_table.tables import chain, subject_of, table
from safetensors.torch import save_file
from torch import Tensor, nn

import gradaudit
from gradaudit.audits.attack_table.base import NO_PROOF
from gradaudit.audits.observe import Observe, ObserveOptions
from gradaudit.audits.observe.certified import certified_rows
from gradaudit.observer import Observer
from gradaudit.progress import Silent
from gradaudit.sharing.named import named_update

COUNT = 12


def gradient(model: nn.Module, first: int = 0) -> dict[str, Tensor]:
    """Of the cross-entropy of records of the table from the first on."""
    batch = table().take(np.arange(first, first + COUNT))
    loss = nn.functional.cross_entropy(model(batch.inputs.double()), batch.labels)
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


@pytest.mark.slow
def test_a_gradient_proves_its_rows_and_noise_proves_none() -> None:
    """The attacker's columns are drawn for themselves: no row of the table is known."""
    model = chain(17, 40, 40, 2)
    subject, update = subject_of(table(), model), gradient(model)
    draws = torch.Generator().manual_seed(0)
    noise = {name: torch.randn(part.shape, generator=draws) for name, part in update.items()}
    found = named_update(None, update, kind="gradient", records=COUNT)
    (value,) = certified_rows(found, subject).look(1.0)
    assert value.value == 1
    assert (value.details["rows"], value.details["decoys_certified"]) == (COUNT, 0)
    found = named_update(None, noise, kind="gradient", records=COUNT)
    (value,) = certified_rows(found, subject).look(1.0)
    assert (value.value, value.reason) == (None, NO_PROOF)


def test_where_no_row_can_be_proved_the_reading_says_why() -> None:
    model = chain(17, 40, 40, 2)
    subject, update = subject_of(table(), model), gradient(model)
    given = named_update(None, update, kind="gradient", records=COUNT)
    plain = replace(subject, records=replace(subject.records, features=()))
    renamed = named_update(
        None, {f"x{name}": part for name, part in update.items()}, kind="gradient", records=COUNT
    )
    for each, of, words in (
        (given, None, "give the observer a subject"),
        (given, plain, "no table with columns"),
        (replace(given, kind="difference"), subject, "several may be behind"),
        (replace(given, records=None), subject, "how many records"),
        (replace(given, records=1000), subject, "the table has fewer"),
        (renamed, subject, "x0.weight is no parameter"),
    ):
        (value,) = certified_rows(each, of).look(1.0)
        assert value.value is None
        assert words in value.reason


@pytest.mark.slow
def test_steps_of_training_are_tested_at_the_weights_that_they_were_computed_at() -> None:
    """The observer's subject holds the first weights; the second step is taken at others."""
    model = chain(17, 40, 40, 2)
    subject = subject_of(table(), copy.deepcopy(model))
    observer = Observer(subject=subject, records=COUNT)
    observer.allowance.earn(10_000)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for first in (0, COUNT):
        for name, part in gradient(model, first).items():
            model.get_parameter(name).grad = part
        with gradaudit.watch(model, observer, each="step") as watched:
            optimiser.step()
        assert watched.report is not None
        rows = [row for row in watched.report.rows if row.metric == "rows_certified"]
        assert [row.value for row in rows] == [1.0]


def test_the_search_for_rows_is_left_out_where_there_is_no_time() -> None:
    model = chain(17, 40, 40, 2)
    observer = Observer(subject=subject_of(table(), model), records=COUNT)
    seen = observer.observe(None, gradient(model), kind="gradient", seconds=10.0)
    assert seen.report is not None
    rows = {row.metric: row for row in seen.report.rows}
    assert "there was no time left" in str(rows["rows_certified"].reason)
    assert rows["update_moved_share"].value is not None


@pytest.mark.parametrize("counted", [True, False])
def test_the_command_proves_rows_of_a_captured_gradient(counted: bool, tmp_path: Path) -> None:
    model = chain(17, 40, 40, 2)
    save_file(gradient(model), tmp_path / "update.safetensors")
    options = ObserveOptions(
        update=str(tmp_path / "update.safetensors"), batch_size=COUNT if counted else None
    )
    found = Observe(options).run(subject_of(table(), model), Silent())
    (row,) = [row for row in found if row.metric == "rows_certified"]
    assert row.value == (1.0 if counted else None)
    assert counted or "--batch-size" in str(row.reason)
