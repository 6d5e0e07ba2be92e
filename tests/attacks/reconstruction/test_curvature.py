import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.attacks.reconstruction.matching.curvature import Curvature

SIZE, HISTORY, ROWS = 9, 4, 3
Pair = tuple[NDArray[np.float64], NDArray[np.float64]]


def two_loops(pairs: list[Pair], gradient: NDArray[np.float64]) -> NDArray[np.float64]:
    """Algorithm 7.4 of Nocedal and Wright as it is printed, negated; pairs oldest first."""
    q, alphas = gradient.copy(), []
    for s, y in reversed(pairs):
        alphas.append(s @ q / (y @ s))
        q -= alphas[-1] * y
    if pairs:
        s, y = pairs[-1]
        q *= s @ y / (y @ y)
    for (s, y), alpha in zip(pairs, reversed(alphas), strict=True):
        q += s * (alpha - y @ q / (y @ s))
    return -q


def drawn(generator: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Moves, turns along them, and gradients, of every row."""
    s, e, g = (torch.from_numpy(generator.standard_normal((ROWS, SIZE))) for _ in range(3))
    return s, s * torch.linspace(0.5, 3, SIZE, dtype=torch.float64) + 0.1 * e, g


@pytest.mark.parametrize("chosen", [[0, 1, 2], [0, 2], [1]])
def test_directions_are_those_of_the_two_loops(chosen: list[int]) -> None:
    """Over more steps than are remembered, some rows now and then, one pair in five bent wrong."""
    generator = np.random.default_rng(0)
    memory = Curvature(torch.zeros(ROWS, SIZE).double(), HISTORY)
    kept: dict[int, list[Pair]] = {row: [] for row in range(ROWS)}
    for step in range(12):
        rows = list(range(ROWS)) if step % 2 else chosen
        moves, turns, gradients = drawn(generator)
        if step % 5 == 4:
            turns = -turns
        if step == 8:
            memory.forget(torch.tensor([False, True, False]))
            kept[1] = []
        memory.keep(torch.tensor([row in rows for row in range(ROWS)]), moves, turns)
        found = memory.directions(gradients).numpy()
        for row in range(ROWS):
            s, y, g = (part[row].numpy() for part in (moves, turns, gradients))
            if row in rows and s @ y > 0:
                kept[row] = [*kept[row], (s, y)][-HISTORY:]
            np.testing.assert_allclose(found[row], two_loops(kept[row], g), rtol=1e-9, atol=1e-9)
    some = memory.rows(torch.tensor([2, 0])).directions(gradients[[2, 0]])
    np.testing.assert_allclose(some, found[[2, 0]], rtol=1e-12)


def test_without_pairs_it_goes_straight_down() -> None:
    memory = Curvature(torch.zeros(ROWS, SIZE).double(), HISTORY)
    moves, turns, gradients = drawn(np.random.default_rng(1))
    memory.keep(torch.ones(ROWS, dtype=torch.bool), moves, -turns)
    assert torch.equal(memory.directions(gradients), -gradients)
