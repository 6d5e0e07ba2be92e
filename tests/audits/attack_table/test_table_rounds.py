"""Rows of a table that make an update in several rounds: their proofs add."""

from dataclasses import replace

import pytest
import torch
from audits.attack_table.tables import chain, seen_of, table
from torch import Tensor

from gradaudit.audits.attack_table.base import TableAnswer, guessed
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.row_space import over_rounds
from gradaudit.audits.attack_table.tableak import relaxed_view

COUNT = 6
_, COLUMNS, BATCH = seen_of(table(), chain(17, 30, 30, 2), COUNT)
TRUTH = COLUMNS.cells(BATCH.inputs)


def answer_of(named: list[int], certified: list[int], off: float = 0.0) -> TableAnswer:
    """An answer that names these rows of the batch, some of them proved."""
    answer = guessed(COLUMNS, COUNT)
    for place, row in enumerate(named):
        answer.cells[place] = TRUTH[row]
        answer.cells[place, COLUMNS.numeric] += off
        answer.labels[place] = float(BATCH.labels[row])
        answer.named[place], answer.certified[place] = True, row in certified
        answer.certainty[place] = 1.0
    return answer


def rows_in(answer: TableAnswer, which: Tensor, columns: TableColumns = COLUMNS) -> list[int]:
    """Which rows of the batch those of an answer are, ascending."""
    alike = columns.alike(answer.cells[which], TRUTH, 0.05)
    return sorted(alike.int().argmax(dim=1).tolist())


@pytest.mark.parametrize("turned", [False, True])
def test_rows_that_are_named_in_any_round_add(turned: bool) -> None:
    answers = [answer_of([0, 1, 2], [0]), answer_of([2, 3, 1], [2, 3], off=0.01)]
    answers = [
        replace(one, facts={"decoys": 256, "decoys_certified": n}) for n, one in enumerate(answers)
    ]
    joined = over_rounds(COLUMNS, answers[::-1] if turned else answers)
    assert (joined.facts["decoys"], joined.facts["decoys_certified"]) == (512, 1)
    assert rows_in(joined, joined.named) == [0, 1, 2, 3]
    assert rows_in(joined, joined.certified) == [0, 2, 3]
    assert joined.facts["rounds"] == 2


def test_a_row_that_is_there_twice_stays_two_rows() -> None:
    twice, once = answer_of([0, 0, 1], [0]), answer_of([0, 2], [])
    joined = over_rounds(COLUMNS, [once, twice])
    assert rows_in(joined, joined.named) == [0, 0, 1, 2]
    again = over_rounds(COLUMNS, [once, answer_of([0, 0], [])])
    assert rows_in(again, again.named) == [0, 0, 2]


def test_proved_rows_come_first_where_there_is_too_little_room() -> None:
    joined = over_rounds(COLUMNS, [answer_of([0, 1, 2, 3, 0], [0, 1, 2]), answer_of([4, 5], [5])])
    assert int(joined.named.sum()) == COUNT
    assert 5 in rows_in(joined, joined.certified)
    assert 4 not in rows_in(joined, joined.named)


def test_one_round_is_as_it_was() -> None:
    one = answer_of([0, 1], [1])
    joined = over_rounds(COLUMNS, [one])
    assert joined.facts == one.facts
    assert torch.equal(joined.cells, one.cells)


def test_relaxed_rows_are_the_same_unknowns_in_every_round() -> None:
    view, columns, _ = seen_of(table(), chain(17, 30, 30, 2), COUNT)
    other, _, _ = seen_of(table(), chain(17, 20, 2), COUNT)
    relaxed = relaxed_view(replace(view, earlier=(other,)), columns)
    one, two = relaxed.rounds
    assert one.shape == two.shape == (columns.cells_in_all,)
    points = torch.randn(COUNT, columns.cells_in_all).double()
    made = [part.model.module.cells(points) for part in (one, two)]
    assert torch.equal(*made)
