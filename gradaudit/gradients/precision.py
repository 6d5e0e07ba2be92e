"""Single precision in full: products may round to 11 bits (TF32) or 8 where floats have 24."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import backends


class _Setting(NamedTuple):
    """One of torch's, and its value at which nothing is rounded."""

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
