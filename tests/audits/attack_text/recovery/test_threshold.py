"""Limits from a null, tried on nulls of known law."""

import torch

from gradaudit.audits.attack_text.recovery.candidates import above, limit_of


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
