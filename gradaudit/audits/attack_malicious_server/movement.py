"""Layers that moved improbably far since the last round."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from torch import Tensor

State = Mapping[str, Tensor]
SMALL = 0.05
"""A move of less than this share of a layer's norm counts as one of it."""


def moves(before: State, now: State) -> dict[str, float]:
    """‖w − w₀‖/‖w₀‖ of each layer's parameters together, by the layer's name.

    Parameters that only one of the two has are passed over; a layer that was zero moved by 1.
    """
    layers: dict[str, list[str]] = {}
    for name, tensor in now.items():
        if name in before and before[name].shape == tensor.shape:
            layers.setdefault(name.rpartition(".")[0] or "(model)", []).append(name)
    return {layer: _move(before, now, names) for layer, names in layers.items()}


def _move(before: State, now: State, names: Sequence[str]) -> float:
    old, new = ([state[n].detach().double().cpu() for n in names] for state in (before, now))
    moved = sum(float((b - a).square().sum()) for a, b in zip(old, new, strict=True))
    norm = sum(float(a.square().sum()) for a in old)
    return (moved / norm) ** 0.5 if norm else float(moved > 0)


def times_farther(history: Sequence[State]) -> dict[str, float]:
    """How many times farther each layer moved in the last round than was to be expected.

    To be expected is the median of the other layers' moves in that round, or the layer's own
    longest move in an earlier one, whichever is longer, and ``SMALL`` at least.

    Args:
        history: the parameters after each round, oldest first; at least two.

    Returns:
        By layer; none for a layer with nothing to compare it with.
    """
    rounds = [moves(before, now) for before, now in pairwise(history)]
    *earlier, last = rounds
    found = {}
    for layer, move in last.items():
        others = [other for name, other in last.items() if name != layer]
        known = [*([median(others)] if others else []), *(r[layer] for r in earlier if layer in r)]
        if known:
            found[layer] = move / max(*known, SMALL)
    return found
