"""Gradient checkpointing is off while an audit calls a model.

``torch.utils.checkpoint`` runs parts of a model a second time during the backward pass. An audit
calls a model with other weights than its own, which are gone by then: the second run would take the
model's own ones, without a word where their precision is the same. It saves memory and changes no
number, so the parts are called plainly instead. Torch has no switch for it: what is exchanged, for
one call of the model, are the names by which modules of Python, and submodules of the model, hold
the functions.

What a call leaves on the model is put back as well: ``nn.utils.weight_norm`` and ``spectral_norm``
leave the weight that they computed, which can be neither copied nor sent to a worker.
"""

import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

_OPTIONS = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop")
_recomputing: WeakSet[nn.Module] = WeakSet()
_held: WeakKeyDictionary[nn.Module, tuple[tuple[str, str], ...]] = WeakKeyDictionary()
"""Where submodules hold the function, or tensors that a call computes anew, by model."""

Names = MutableMapping[str, Any]


def recomputes(model: nn.Module) -> bool:
    """Whether a call of the model would have recomputed a part of it."""
    return model in _recomputing


@contextmanager
def without_recomputation(model: nn.Module) -> Iterator[None]:
    """Call parts of the model plainly that it asks to be recomputed, for as long as this lasts."""

    def plain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        _recomputing.add(model)
        kwargs = {name: value for name, value in kwargs.items() if name not in _OPTIONS}
        kwargs.pop("preserve_rng_state", None)
        return function(*args, **kwargs)

    places = [*_in_python(len(sys.modules)), *_in_submodules(model)]
    before = [(names, name, names[name]) for names, name in places if name in names]
    try:
        for names, name, held in before:
            if not isinstance(held, Tensor):
                names[name] = plain
        yield
    finally:
        for names, name, held in before:
            names[name] = held


@cache
def _in_python(modules: int) -> tuple[tuple[Names, str], ...]:
    """Where modules of Python hold the function; looked up again when there are more of them."""
    del modules
    return tuple(
        (names, name)
        for module in list(sys.modules.values())
        if isinstance(names := getattr(module, "__dict__", None), dict) and names is not globals()
        for name, value in list(names.items())
        if value is checkpoint
    )


def _in_submodules(model: nn.Module) -> Iterator[tuple[Names, str]]:
    if model not in _held:
        _held[model] = tuple(
            (path, name)
            for path, part in model.named_modules()
            for name, value in vars(part).items()
            if _calls(value) or isinstance(value, Tensor)
        )
    for path, name in _held[model]:
        yield vars(model.get_submodule(path)), name


def _calls(value: object) -> bool:
    """Whether it is the function, with or without some of its arguments."""
    return value is checkpoint or (isinstance(value, partial) and value.func is checkpoint)
