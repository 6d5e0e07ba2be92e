"""The precision that gradients are taken in, and single precision in full.

Products of single precision may round to 11 bits (TF32) or 8 where its floats have 24.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, backends

_SIDE, _SIDE_ON_A_GPU = 512, 1024
"""Rows and columns of the matrices whose product shows how precision slows arithmetic."""
_TIMES = 5
_SLOW = 8.0
"""Between what devices take for products in double precision: 2 times as long, or 32 to 64."""


class _Setting(NamedTuple):
    """A setting of torch, with its value at which nothing is rounded."""

    read: Callable[[], Any]
    write: Callable[[Any], None]
    full: Any


def _of(owner: object, name: str, full: Any) -> _Setting:
    return _Setting(partial(getattr, owner, name), partial(setattr, owner, name), full)


def _settings() -> list[_Setting]:
    """The older ones come first, as they overwrite the others.

    Both are set: torch raises an error where code reads an older one that the others contradict.
    """
    of: Any = backends  # whose stubs do not know these
    places = (of.cuda.matmul, of.cudnn.conv, of.cudnn.rnn, of.mkldnn.matmul, of.mkldnn.conv)
    return [
        _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"),
        _of(of.cudnn, "allow_tf32", False),
        *(_of(place, "fp32_precision", "ieee") for place in (*places, of.mkldnn.rnn)),
    ]


@contextmanager
def full_single_precision() -> Iterator[None]:
    """Let products and convolutions of float32 keep all its bits; what was set comes back.

    torch lets convolutions round unless it is told otherwise.
    """
    before: list[tuple[_Setting, Any]] = []
    for setting in _settings():
        with suppress(RuntimeError):  # an older one that was contradicted already
            before.append((setting, setting.read()))
    try:
        for setting, _ in before:
            setting.write(setting.full)
        yield
    finally:
        for setting, value in before:
            setting.write(value)


def usual_precision(device: torch.device) -> torch.dtype:
    """Double where a device has it at a bearable pace, of a processor always."""
    if device.type == "mps" or (device.type == "cuda" and slowness_of_double(device) > _SLOW):
        return torch.float32
    return torch.float64


def slowness_of_double(device: torch.device) -> float:
    """Measure how much longer arithmetic takes in double precision."""
    if device.type == "mps":
        return 1.0  # has single precision alone
    with full_single_precision():
        single, double = (
            _seconds_of_a_product(kind, device) for kind in (torch.float32, torch.float64)
        )
    return max(1.0, double / single)


def _seconds_of_a_product(dtype: torch.dtype, device: torch.device) -> float:
    side = _SIDE if device.type == "cpu" else _SIDE_ON_A_GPU
    matrix = torch.ones(side, side, dtype=dtype, device=device)
    return min(_seconds_of(matrix) for _ in range(_TIMES + 1))


def _seconds_of(matrix: Tensor) -> float:
    begun = time.perf_counter()
    torch.matmul(matrix, matrix)
    if matrix.device.type == "cuda":
        torch.cuda.synchronize(matrix.device)
    return time.perf_counter() - begun
