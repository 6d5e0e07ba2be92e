"""Tokens that rows of tables and of a head tell, and limits tried on nulls of known law."""

import pytest
import torch
from audits.attack_text.sentences import view
from torch import Tensor

from gradaudit.audits.attack_text.recovery.candidates import (
    above,
    labels_asked,
    limit_of,
    row_strengths,
    tokens_read,
)
from gradaudit.defenses import parse_defense


def inner(truth: list[tuple[int, ...]]) -> set[int]:
    return {token for text in truth for token in text[:-1]}


def told(tokens: Tensor | None) -> set[int]:
    assert tokens is not None
    return set(tokens.tolist())


@pytest.mark.parametrize("defense", [None, "sign"])
def test_rows_of_a_table_of_its_own_move_where_they_were_looked_up(defense: str | None) -> None:
    defenses = () if defense is None else (parse_defense(defense),)
    made, truth = view(9, defenses=defenses)
    assert told(tokens_read(made)) == inner(truth)


def test_rows_of_a_table_tell_where_most_were_looked_up() -> None:
    made, truth = view(32, records=32)
    assert made.vocabulary / 2 < len(inner(truth)) < made.vocabulary
    assert told(tokens_read(made)) == inner(truth)


@pytest.mark.parametrize("seed", range(2))
def test_a_table_that_is_the_head_tells_what_was_looked_up_from_what_was_asked_for(
    seed: int,
) -> None:
    made, truth = view(4, tied=True, seed=seed)
    assert told(tokens_read(made)) == inner(truth)


@pytest.mark.parametrize("tied", [False, True])
def test_under_noise_rows_tell_nothing_for_certain(tied: bool) -> None:
    made, _ = view(4, tied=tied, defenses=(parse_defense("dp:clip=1,sigma=1,per=release"),))
    assert tokens_read(made) is None


def test_nothing_is_read_of_a_table_that_is_not_shared() -> None:
    made, _ = view(4, hide=("words",))
    assert tokens_read(made) is None
    assert row_strengths(made) is None


@pytest.mark.parametrize("tied", [False, True])
def test_rows_of_tokens_that_were_there_are_stronger(tied: bool) -> None:
    made, truth = view(4, tied=tied)
    strengths = row_strengths(made)
    assert strengths is not None
    there = torch.zeros(made.vocabulary, dtype=torch.bool)
    there[sorted(inner(truth))] = True
    assert strengths[there].min() > strengths[~there].max()


def test_the_head_tells_most_of_what_it_was_asked_for_and_nothing_else() -> None:
    found, asked = [], []
    for seed in range(4):
        made, truth = view(4, seed=seed)
        found.append(told(labels_asked(made)))
        asked.append({token for text in truth for token in text[1:]})
    assert all(one <= other for one, other in zip(found, asked, strict=True))
    assert sum(map(len, found)) > 0.75 * sum(map(len, asked))
    hidden, _ = view(4, hide=("head",))
    assert labels_asked(hidden) is None


ADAMW = {"algorithm": "fedavg", "local_steps": 5, "optimizer": "adamw", "rate": 1e-3, "warmup": 2}


def test_rows_that_weight_decay_alone_moves_were_not_looked_up() -> None:
    """AdamW moves every row of the table, those of other tokens along their weights."""
    made, truth = view(4, weight_decay=0.1, **ADAMW)
    assert made.update["words.weight"].any(dim=1).all()
    assert told(tokens_read(made)) == inner(truth)


@pytest.mark.parametrize("tied", [False, True])
def test_the_head_tells_what_it_was_asked_for_behind_steps_of_adamw(tied: bool) -> None:
    for seed in range(3):
        made, truth = view(4, tied=tied, seed=seed, **ADAMW)
        assert told(labels_asked(made)) == {token for text in truth for token in text[1:]}


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def test_limit_lies_halfway_to_where_a_symmetric_null_begins() -> None:
    """Logarithms N(20, 1): the lowest hundredth begins at 20 − 2.326; half of that is the limit."""
    limit = limit_of((20 + normal(200_000, seed=0)).exp())
    assert abs(float(torch.tensor(limit).log()) - (20 - 2.326) / 2) < 0.02


def test_limit_stays_where_a_third_of_the_null_came_in() -> None:
    """What came in shifts the median by a half of the null's spread, and no more."""
    null, inside = (20 + normal(2_000, seed=0)).exp(), normal(900, seed=1).exp()
    mixed = limit_of(torch.cat([null, inside]))
    assert (null > mixed).all()
    assert (inside < mixed).all()


def test_one_false_place_in_a_hundred_runs_on_average() -> None:
    """Lognormal null; each run tests as many places as it has."""
    runs, places = 400, 500
    values = normal(runs, places, seed=2).exp()
    false = sum(len(above(row, row, places)) for row in values)
    assert false <= 25  # the tenth's spread is an estimate: 4 expected, a few more by its error
    assert above(torch.tensor([1.0, 1e4, 1.5]), values[0], 3).tolist() == [1]
