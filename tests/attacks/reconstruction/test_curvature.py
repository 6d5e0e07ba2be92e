import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.attacks.reconstruction.matching.curvature import Memory

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
    generator, memory = np.random.default_rng(0), Memory.empty(torch.zeros(ROWS, SIZE).double(), 4)
    kept: dict[int, list[Pair]] = {row: [] for row in range(ROWS)}
    for step in range(12):
        rows = list(range(ROWS)) if step % 2 else chosen
        moves, turns, gradients = (part[rows] for part in drawn(generator))
        if step % 5 == 4:
            turns = -turns
        if step == 8:
            memory.forget(np.array([1]))
            kept[1] = []
        found = memory.directions(np.array(rows), moves, turns, gradients).numpy()
        for at, row in enumerate(rows):
            s, y, g = (part[at].numpy() for part in (moves, turns, gradients))
            if s @ y > 0:
                kept[row] = [*kept[row], (s, y)][-HISTORY:]
            np.testing.assert_allclose(found[at], two_loops(kept[row], g), rtol=1e-9, atol=1e-9)


def test_without_pairs_it_goes_straight_down() -> None:
    memory = Memory.empty(torch.zeros(ROWS, SIZE).double(), HISTORY)
    moves, turns, gradients = drawn(np.random.default_rng(1))
    rows = np.arange(ROWS)
    assert torch.equal(memory.directions(rows, moves, -turns, gradients), -gradients)


def test_directions_go_on_in_double_precision_from_pairs_in_single() -> None:
    """With nothing new to keep, the direction is that of the pairs as they were rounded."""
    generator = np.random.default_rng(2)
    memory = Memory.empty(torch.zeros(ROWS, SIZE), HISTORY)
    rows, kept = np.arange(ROWS), [list[Pair]() for _ in range(ROWS)]
    for _ in range(HISTORY + 2):
        parts = [part.float() for part in drawn(generator)]
        memory.directions(rows, *parts)
        for row in rows:
            s, y = (part[row].double().numpy() for part in parts[:2])
            kept[row] = [*kept[row], (s, y)][-HISTORY:]
    gradients, still = drawn(generator)[2], torch.zeros(ROWS, SIZE).double()
    found = memory.double().directions(rows, still, still, gradients)
    assert found.dtype == torch.float64
    for row in rows:
        wanted = two_loops(kept[row], gradients[row].numpy())
        np.testing.assert_allclose(found[row].numpy(), wanted, rtol=1e-4, atol=1e-5)
