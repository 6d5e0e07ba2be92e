"""Why a model cannot be run on inputs: which module wants another size, and which records fit."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gradaudit.models.module_kinds import BATCH_NORMS, CONVOLUTIONS

_KINDS = (nn.Linear, *CONVOLUTIONS, *BATCH_NORMS, nn.Embedding, nn.EmbeddingBag)
_SIZES = (8, 16, 28, 32, 48, 64, 96, 112, 128, 160, 192, 224, 227, 256, 299)
"""Heights and widths that models of pictures are made for."""

Run = Callable[[Tensor], object]
"""Calls the model on records; fails where it cannot be."""


@dataclass
class LastCall:
    """The last module that was called, its name, and what it was given.

    Attributes:
        codes: the largest of whole numbers; None of real ones.
    """

    name: str = ""
    module: nn.Module | None = None
    shape: tuple[int, ...] = ()
    real: bool = False
    codes: int | None = None


def misfit(model: nn.Module, run: Run, inputs: Tensor) -> str:
    """The input that the failing module needs, and the size of records that would fit.

    Args:
        model: whose call fails.
        run: calls it.
        inputs: (records, …) on which it does.

    Returns:
        Some words for a message; empty where the reason is no size.
    """
    with _watched(model) as last, suppress(Exception):
        run(inputs)
    record = tuple(inputs.shape[1:])
    if reason := _of_embedding(last):
        return reason
    reason = _of_linear(last, record) or _of_channels(last)
    return reason + _remedy(run, inputs, record) if reason else ""


@contextmanager
def _watched(model: nn.Module) -> Iterator[LastCall]:
    """Note which of the modules that expect a size is called last."""
    last = LastCall()

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def note(module: nn.Module, given: tuple[Any, ...]) -> None:
            shape = tuple(given[0].shape) if given and isinstance(given[0], Tensor) else ()
            last.name, last.module, last.shape = name or "it", module, shape
            last.real = bool(shape) and given[0].is_floating_point()
            last.codes = int(given[0].max()) if shape and not last.real else None

        return note

    handles = [
        module.register_forward_pre_hook(hook(name))
        for name, module in model.named_modules()
        if isinstance(module, _KINDS)
    ]
    try:
        yield last
    finally:
        for handle in handles:
            handle.remove()


def _of_embedding(last: LastCall) -> str:
    if not isinstance(last.module, nn.Embedding | nn.EmbeddingBag):
        return ""
    known = last.module.num_embeddings
    if last.codes is not None and last.codes >= known:
        return (
            f"{last.name} is an embedding of {known} codes, from 0, and these records have codes "
            f"up to {last.codes}: say vocabulary={known} in --data, which texts that are hashed "
            "take, or give the records that the model was made for"
        )
    if not last.real:
        return ""
    return (
        f"{last.name} is an embedding, which looks up whole numbers, and gets real ones: say "
        "tokens=true in --data (of a table columns=codes, of a function return whole numbers)"
    )


def _of_linear(last: LastCall, record: tuple[int, ...]) -> str:
    if not isinstance(last.module, nn.Linear) or not last.shape:
        return ""
    wanted, given = last.module.in_features, last.shape[-1]
    if given == wanted:
        return ""
    flat = math.prod(record)
    got = f"these records flatten to {flat}" if given == flat else f"it gets {given}"
    return f"{last.name} expects {wanted} inputs; {got}"


def _of_channels(last: LastCall) -> str:
    module: Any = last.module
    wanted = getattr(module, "in_channels", None) or getattr(module, "num_features", None)
    if wanted is None or len(last.shape) < 2 or last.shape[1] == wanted:
        return ""
    return f"{last.name} expects {wanted} channels; it gets {last.shape[1]}"


def _remedy(run: Run, inputs: Tensor, record: tuple[int, ...]) -> str:
    """The channels, or the first size of pictures, that the model can be run on."""
    shapes: list[tuple[int, ...]] = (
        [(1, *record)] if len(record) == 1 else []
    )  # a sound's wave as its one channel
    if len(record) == 3:
        shapes = [(other, *record[1:]) for other in (1, 3) if {other, record[0]} == {1, 3}]
    for shape in shapes:
        with suppress(Exception):
            run(inputs.new_zeros(1, *shape))
            return f": say channels={shape[0]} in --data"
    if len(record) != 3:
        return ""
    for channels in dict.fromkeys((record[0], 1, 3)):
        for side in _SIZES:
            with suppress(Exception):
                run(inputs.new_zeros(1, channels, side, side))
                if channels == record[0]:
                    return f": say size={side}x{side} in --data"
                return f": it takes pictures of {channels}x{side}x{side}"
    return ""
