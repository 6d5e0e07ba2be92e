"""A smallest set of elements that is still too much."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def core(too_much: Callable[[Sequence[T]], bool], elements: Sequence[T]) -> list[T]:
    """Elements that are too much together and no longer so without any one of them.

    Args:
        too_much: monotone: what contains too much is too much. All ``elements`` are, and none is
            not. It is asked about k log(n/k) times for k of n.
        elements: those that come first are rather left out.

    Source: U. Junker, "QuickXplain: preferred explanations and relaxations for over-constrained
    problems" (2004), algorithm 1.
    """

    def needed(kept: list[T], grown: bool, left: Sequence[T]) -> list[T]:
        if grown and too_much(kept):
            return []
        if len(left) == 1:
            return list(left)
        half = len(left) // 2
        early, late = list(left[:half]), list(left[half:])
        first = needed(kept + late, True, early)
        return first + needed(kept + first, bool(first), late)

    return needed([], False, elements) if elements else []
