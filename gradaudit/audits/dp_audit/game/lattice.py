"""Noise on a lattice: releases under two values then lie on lattices that are shifted.

Noise that is drawn as whole numbers times a step, and added to a gradient that is not on that
lattice, leaves the gradient's remainder by the step as it is, however loud the noise. A mechanism
that rounds the noisy gradient to the lattice leaves no remainder, and nothing is found here.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gradaudit.audits.dp_audit.law.theory import FloatArray

_ELEMENTS = 256
"""Elements that are looked at, those that the two values move most."""
_ROUNDINGS = 16
"""Units of float rounding within which two values are the same."""
_STEPS = 40
_GAPS = 8
"""Smallest differences of an element's values, of which the step is the greatest divisor."""
_FACTOR = 4.0
"""Times a rounding that a step is, at least, and a range of counted steps grows by."""
_ON_LATTICE = 0.9
"""Mean resultant length of the values' phases above which they lie on the lattice; 128 values that
do not have one of .09."""


def lattice_statistic(
    null: Tensor, other: Tensor, towards: Tensor
) -> Callable[[Tensor], FloatArray] | None:
    """Σ_j cos(2πx_j/h_j − φ_j′) − cos(2πx_j/h_j − φ_j), with steps h_j and phases φ of looks.

    Args:
        null: releases (count, elements) under the null hypothesis.
        other: the same under the alternative.
        towards: the mean difference, (elements,), of which the largest elements are looked at.

    Returns:
        The statistic (count,) of releases (count, elements); None where no element of the looks
        lies on a lattice.
    """
    chosen = towards.abs().argsort(descending=True)[:_ELEMENTS].sort().values
    first, second = (side[:, chosen].double().cpu().numpy() for side in (null, other))
    rounding = _ROUNDINGS * torch.finfo(null.dtype).eps * np.abs([*first, *second]).max(axis=0)
    steps = lattice_steps(first, rounding)
    phases, lengths = zip(*(_phase(side, steps) for side in (first, second)), strict=True)
    found = (np.min(lengths, axis=0) > _ON_LATTICE) & np.isfinite(steps)
    if not found.any():
        return None
    places, steps = chosen[torch.from_numpy(found)], steps[found]
    of_null, of_other = (phase[found] for phase in phases)

    def statistic(releases: Tensor) -> FloatArray:
        turns = 2 * math.pi * releases[:, places].double().cpu().numpy() / steps
        return np.asarray((np.cos(turns - of_other) - np.cos(turns - of_null)).sum(axis=1))

    return statistic


def lattice_steps(values: FloatArray, rounding: FloatArray) -> FloatArray:
    """The step of each element's lattice, (elements,); infinite where there is none.

    The greatest common divisor of the smallest differences of its values (count, elements), each
    known to a rounding (elements,), by Euclid's algorithm; then by least squares on the numbers of
    steps between the values, as far apart as they can be counted.
    """
    ordered = np.sort(values, axis=0)
    gaps = np.diff(ordered, axis=0)
    smallest = np.sort(np.where(gaps > rounding, gaps, np.inf), axis=0)[:_GAPS]
    step = smallest[0]
    for gap in smallest[1:]:
        step = _common_divisor(step, np.where(np.isfinite(gap), gap, step), rounding)
    step = np.where(step > _FACTOR * rounding, step, np.inf)
    return _refined(step, np.concatenate([gaps, ordered - ordered[len(ordered) // 2]]), rounding)


def _refined(step: FloatArray, distances: FloatArray, rounding: FloatArray) -> FloatArray:
    """The step by least squares on how many of them distances (count, elements) are.

    A step that is known to its rounding counts them right up to step²/rounding; from there on each
    fit counts farther.
    """
    sizes = np.abs(distances)
    with np.errstate(invalid="ignore", divide="ignore"):
        reach = step**2 / np.maximum(rounding, np.finfo(float).tiny)
        while True:
            counts = np.where(sizes <= reach, np.rint(distances / step), 0.0)
            squares = (counts**2).sum(axis=0)
            step = np.where(squares > 0, (counts * distances).sum(axis=0) / squares, step)
            if not (np.isfinite(step) & (reach < sizes.max(axis=0))).any():
                return step
            reach = reach * _FACTOR


def _common_divisor(first: FloatArray, second: FloatArray, rounding: FloatArray) -> FloatArray:
    """By Euclid's algorithm with the nearest remainder; remainders within rounding are none."""
    for _ in range(_STEPS):
        some = second > rounding
        if not some.any():
            break
        with np.errstate(invalid="ignore", divide="ignore"):
            rest = np.abs(first - np.rint(first / second) * second)
        first, second = np.where(some, second, first), np.where(some, rest, 0.0)
    return first


def _phase(values: FloatArray, steps: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean direction of the values' phases, and how closely they agree, (elements,) each."""
    mean = np.exp(2j * math.pi * values / steps).mean(axis=0)
    return np.angle(mean), np.abs(mean)
