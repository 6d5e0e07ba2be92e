"""Equal functions for those that ``torch`` differentiates once, or in one precision only.

Hard sigmoids and bags of embeddings have no second derivative, and the fake quantisation of
``torch.ao`` takes float32 alone. All can be written in elementary operations that have every
derivative, in any precision and ``torch.func`` transform:

- hardsigmoid(x) = relu6(x + 3) / 6;
- a bag is the sum, mean or maximum of its embeddings;
- fake quantisation rounds x to (clamp(⌊x/s⌉ + z, q₀, q₁) − z) s, with the slope 1 inside of its
  range and 0 outside of it (the straight-through estimator: Y. Bengio et al., arXiv:1308.3432).

A model is watched the first time that it is called: one without such functions pays nothing later.
Observers do not look at an audit's records: ranges are those of the checkpoint.

Gradient checkpointing is off while an audit calls a model.

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

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradaudit.gradients.capture import FunctionMode, by_name

_OPTIONS = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop")
_recomputing: WeakSet[nn.Module] = WeakSet()
_held: WeakKeyDictionary[nn.Module, tuple[tuple[str, str], ...]] = WeakKeyDictionary()
"""Where submodules hold the function, or tensors that a call computes anew, by model."""

Names = MutableMapping[str, Any]
_looked_at: dict[str, object] = {}
_places: list[tuple[Names, str]] = []
"""Where Python's modules that were looked at hold the function."""
OBSERVING = "observer_enabled"
"""The buffer of a fake quantisation that says whether its ranges follow what comes in."""
_BAG = ("input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode")
_BAG_REST = ("sparse", "per_sample_weights", "include_last_offset", "padding_idx")
_RANGE = ("input", "scale", "zero_point", "quant_min", "quant_max")
_PER_CHANNEL = ("input", "scale", "zero_point", "axis", "quant_min", "quant_max")
_FUSED = (
    *("input", "observer_on", "fake_quant_on", "running_min", "running_max", "scale"),
    *("zero_point", "averaging_const", "quant_min", "quant_max", "ch_axis", "per_row_fake_quant"),
)
_POOLED: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda bag: bag.sum(dim=1),
    "mean": lambda bag: bag.mean(dim=1),
    "max": lambda bag: bag.amax(dim=1),
}


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
    """Where modules of Python hold the function; of more modules, the new ones are looked at."""
    del modules
    for path, module in list(sys.modules.items()):
        if _looked_at.get(path) is not module:
            _looked_at[path] = module
            names = getattr(module, "__dict__", None)
            if isinstance(names, dict) and names is not globals():
                held = [name for name, value in list(names.items()) if value is checkpoint]
                _places.extend((names, name) for name in held)
    return tuple(_places)


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


_calls_some: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Whether a model called such functions when it was first called."""


@contextmanager
def substituting(model: nn.Module) -> Iterator[None]:
    """Let equal functions be called in the place of those in one call of a model."""
    if _calls_some.get(model, True):
        with Substitutes() as mode:
            yield
        _calls_some.setdefault(model, mode.met)
    else:
        yield


class Substitutes(FunctionMode):
    """Calls equal functions in the place of those, as long as it is entered.

    Attributes:
        met: whether there were any.
    """

    met = False

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Call the function, or what stands for it."""
        if function not in _SUBSTITUTES:
            return function(*args, **kwargs)
        self.met = True
        signature, substitute = _SUBSTITUTES[function]
        out = substitute(by_name(signature, args, kwargs))
        return function(*args, **kwargs) if out is None else out


def _hardsigmoid(call: dict[str, Any]) -> Tensor:
    x, out = call["input"], F.relu6(call["input"] + 3) / 6
    return x.copy_(out) if call.get("inplace") else out


def _hardsigmoid_(call: dict[str, Any]) -> Tensor:
    return _hardsigmoid({**call, "inplace": True})


def _embedding_bag(call: dict[str, Any]) -> Tensor | None:
    """Embed bags that are rows of tokens; other bags are left to torch."""
    tokens, weights = call["input"], call.get("per_sample_weights")
    unlike = any(call.get(name) for name in ("max_norm", "scale_grad_by_freq", "sparse"))
    if tokens.dim() != 2 or call.get("padding_idx") is not None or unlike:
        return None
    embedded = F.embedding(tokens, call["weight"])
    if weights is not None:
        embedded = embedded * weights.unsqueeze(-1)
    return _POOLED[call.get("mode", "mean")](embedded)


def _fake_quantized(call: dict[str, Any]) -> Tensor:
    x, axis = call["input"], call.get("axis")
    scale, zero = (_along(x, call[name], axis) for name in ("scale", "zero_point"))
    low, high = call["quant_min"], call["quant_max"]
    level = torch.round(x.detach() / scale) + zero
    rounded = (level.clamp(low, high) - zero) * scale
    inside = (level >= low) & (level <= high)
    return torch.where(inside, x + (rounded - x.detach()), rounded)


def _fused(call: dict[str, Any]) -> Tensor:
    """Quantise without the observer, which follows ranges."""
    axis = call["ch_axis"] if call.get("per_row_fake_quant") else None
    return torch.where(
        call["fake_quant_on"].bool(), _fake_quantized({**call, "axis": axis}), call["input"]
    )


def _along(x: Tensor, value: float | Tensor, axis: int | None) -> float | Tensor:
    if axis is None or not isinstance(value, Tensor):
        return value
    return value.reshape([-1 if dimension == axis else 1 for dimension in range(x.dim())])


_Substitute = Callable[[dict[str, Any]], Tensor | None]
_SUBSTITUTES: dict[Callable[..., Any], tuple[tuple[str, ...], _Substitute]] = {
    F.hardsigmoid: (("input", "inplace"), _hardsigmoid),
    torch.ops.aten.hardsigmoid.default: (("input",), _hardsigmoid),
    torch.ops.aten.hardsigmoid_.default: (("input",), _hardsigmoid_),
    F.embedding_bag: ((*_BAG, *_BAG_REST), _embedding_bag),
    torch.fake_quantize_per_tensor_affine: (_RANGE, _fake_quantized),
    torch.fake_quantize_per_channel_affine: (_PER_CHANNEL, _fake_quantized),
    torch.fused_moving_avg_obs_fake_quant: (_FUSED, _fused),
}
