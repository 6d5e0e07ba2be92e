"""Captures torch's operations within a context, and the inputs of every parameter.

Hooks miss the projections of attention and do not compose with ``torch.func``, as a
``FunctionMode`` does. Nothing is patched.

Modes that see what torch is asked to do as long as they are entered, and may do it otherwise.

A function mode sees the functions that Python code calls, inside any ``torch.func`` transform. An
operator mode sees what is carried out below transforms and automatic differentiation, in backward
passes too. A subclass says in ``call`` alone what becomes of a call.
"""

import math
import types
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gradaudit.gradients.operations import (
    Convolution,
    Embedding,
    Gain,
    Linear,
    Offset,
    Operation,
    Transposed,
)

_WEIGHTED = ("input", "weight", "bias")
_ADDED = ("bias", "input", "weight")
_CONVOLUTION = (*_WEIGHTED, "stride", "padding", "dilation", "groups")
_READ = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
_RUNNING = ("input", "running_mean", "running_var", "weight", "bias")


class FunctionMode(TorchFunctionMode):
    """Sees every call of a function of torch, but none that it makes itself."""

    @abstractmethod
    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Give the result of a call, whose keyword arguments are a dictionary."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Hand the call on."""
        return self.call(func, args, kwargs or {})


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator on tensors, but none that it carries out itself."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Leave the compiler, which takes seconds to load, out of what nobody compiles."""
        return False

    @abstractmethod
    def call(self, operator: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Give the result of an operator, whose keyword arguments are a dictionary."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Hand the operator on."""
        return self.call(func, args, kwargs or {})


def by_name(names: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the function's names of its parameters, which are in order."""
    return dict(zip(names, args, strict=False)) | kwargs


Call = dict[str, Any]


@dataclass(frozen=True)
class Site:
    """A place in the forward pass where parameters are applied.

    ``shape`` is that of the output there, for a batch of one record, ``seen`` that of what came in;
    ``uses`` are the names of the parameters applied, each with its operation; ``tokens`` says
    whether what came in are whole numbers.
    """

    shape: tuple[int, ...]
    seen: tuple[int, ...]
    uses: tuple[tuple[str, Operation], ...]
    tokens: bool


class Applied(NamedTuple):
    """A call: what came in and out, and the operation of its weight and of its bias."""

    seen: Tensor
    out: Tensor
    weight: Operation
    bias: Operation | None = None


class Capture(FunctionMode):
    """Perturbs and records every use of some parameters during one forward pass.

    It knows a parameter by its identity where a linear map, convolution, norm or embedding is
    applied, keeps what came in, and adds a given (zero) tensor for each site to what came out, so
    that the gradient by that tensor is δ. Displacements are added to what some embeddings give out.

    Attributes:
        sites: the sites met, in order.
        seen: what came in at each of them.
        embedded: shape of each embedding's output, in order.
        looked_up: what came in at each embedding.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        perturbations: Sequence[Tensor] | None = None,
        displacements: Mapping[int, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in parameters.items()}
        self._perturbations, self._displacements = perturbations, displacements or {}
        self.sites: list[Site] = []
        self.seen: list[Tensor] = []
        self.embedded: list[tuple[int, ...]] = []
        self.looked_up: list[Tensor] = []

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Let a call through, or record and perturb it."""
        if function is F.multi_head_attention_forward:
            with self:
                return attention_in_parts(*args, **kwargs)
        if function is F.scaled_dot_product_attention:
            with sdpa_kernel(SDPBackend.MATH):
                return function(*args, **kwargs)
        out = self._apply(function, args, kwargs)
        if function not in (F.embedding, F.embedding_bag):
            return out
        return self._displaced(args[0] if args else kwargs["input"], out)

    def _apply(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Call) -> Any:
        if func not in _HANDLERS:
            return func(*args, **kwargs)
        signature, handler = _HANDLERS[func]
        call = by_name(signature, args, kwargs)
        weight = self._names.get(id(call.get("weight")))
        bias = self._names.get(id(call.get("bias")))
        applied = self._called(handler, func, call) if weight or bias else None
        if applied is None:
            return func(*args, **kwargs)
        uses = ((weight, applied.weight), (bias, applied.bias))
        return self._record(applied, tuple((name, use) for name, use in uses if name and use))

    def _called(self, handler: "Handler", func: Callable[..., Any], call: Call) -> Applied | None:
        return handler(func, call)

    def _record(self, applied: Applied, uses: tuple[tuple[str, Operation], ...]) -> Tensor:
        tokens = not applied.seen.is_floating_point()
        self.sites.append(Site(tuple(applied.out.shape), tuple(applied.seen.shape), uses, tokens))
        self.seen.append(applied.seen)
        if self._perturbations is None:
            return applied.out
        return applied.out + self._perturbations[len(self.sites) - 1]

    def _displaced(self, looked_up: Tensor, out: Tensor) -> Tensor:
        displacement = self._displacements.get(len(self.embedded))
        self.embedded.append(tuple(out.shape))
        self.looked_up.append(looked_up)
        return out if displacement is None else out + displacement


# The function checks for torch function modes on entry, which would call the mode again without
# end; this copy does not check, so that the mode sees the calls inside.
attention_in_parts = types.FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda _: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)


def _linear(func: Callable[..., Tensor], call: Call) -> Applied:
    out, (outputs, inputs) = func(**call), call["weight"].shape
    shape = tuple(out.shape)
    offset = Offset(1, 1, outputs, shape, channels_last=True)
    return Applied(call["input"], out, Linear(1, inputs, outputs, shape), offset)


def _transposed(func: Callable[..., Tensor], call: Call) -> Applied | None:
    """A product with a weight (in, out) that is added to its bias, as transformers' Conv1D."""
    if call.keys() - {*_ADDED}:
        return None
    out, (inputs, outputs) = func(*(call[name] for name in _ADDED)), call["weight"].shape
    shape = tuple(out.shape)
    offset = Offset(1, 1, outputs, shape, channels_last=True)
    return Applied(call["input"], out, Transposed(1, inputs, outputs, shape), offset)


def _convolution(func: Callable[..., Tensor], call: Call) -> Applied | None:
    weight, groups = call["weight"], call.get("groups", 1)
    kernel = tuple(weight.shape[2:])
    if call["input"].dim() != weight.dim():
        return None
    out = func(**call)
    shape, outputs, width = tuple(out.shape), weight.shape[0], weight[0].numel()
    stride, dilation = (_per_dimension(call.get(x, 1), len(kernel)) for x in ("stride", "dilation"))
    padding = padding_sides(call.get("padding", 0), kernel, dilation)
    block = (groups, width, outputs // groups, shape)
    operation = Convolution(*block, kernel, stride, padding, dilation)
    return Applied(call["input"], out, operation, Offset(1, 1, outputs, shape, channels_last=False))


def _norm(func: Callable[..., Tensor], call: Call) -> Applied:
    by_channel = func not in (F.layer_norm, F.rms_norm)
    weight, bias = call.get("weight"), call.get("bias")
    normalised = func(**{name: x for name, x in call.items() if name not in ("weight", "bias")})
    shape = tuple(normalised.shape)
    spread = (-1, *(1 for _ in shape[2:])) if by_channel else None
    out = normalised
    if weight is not None:
        out = out * (weight.reshape(spread) if spread else weight)
    if bias is not None:
        out = out + (bias.reshape(spread) if spread else bias)
    channels = shape[1] if by_channel else math.prod(call["normalized_shape"])
    gain = Gain(channels, 1, 1, shape, channels_last=not by_channel)
    return Applied(normalised, out, gain, Offset(1, 1, channels, shape, not by_channel))


def _embedding(func: Callable[..., Tensor], call: Call) -> Applied | None:
    if call.get("max_norm") is not None or call.get("scale_grad_by_freq"):
        return None
    out, (tokens, width) = func(**call), call["weight"].shape
    padding = -1 if call.get("padding_idx") is None else call["padding_idx"] % tokens
    block = (1, min(tokens, call["input"].numel()), width, tuple(out.shape))
    return Applied(call["input"], out, Embedding(*block, tokens, padding))


def _per_dimension(value: int | Sequence[int], count: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * count if len(values) == 1 else values


def padding_sides(
    padding: str | int | Sequence[int], kernel: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Positions that a convolution pads before and after, per dimension."""
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple((t // 2, t - t // 2) for t in total)
    sides = _per_dimension(0 if isinstance(padding, str) else padding, len(kernel))
    return tuple((side, side) for side in sides)


Handler = Callable[[Callable[..., Any], Call], Applied | None]
_HANDLERS: dict[Callable[..., Any], tuple[tuple[str, ...], Handler]] = {
    F.linear: (_WEIGHTED, _linear),
    torch.addmm: (_ADDED, _transposed),
    F.conv1d: (_CONVOLUTION, _convolution),
    F.conv2d: (_CONVOLUTION, _convolution),
    F.conv3d: (_CONVOLUTION, _convolution),
    F.batch_norm: ((*_RUNNING, "training", "momentum", "eps"), _norm),
    F.instance_norm: ((*_RUNNING, "use_input_stats", "momentum", "eps"), _norm),
    F.group_norm: (("input", "num_groups", "weight", "bias", "eps"), _norm),
    F.layer_norm: (("input", "normalized_shape", "weight", "bias", "eps"), _norm),
    F.rms_norm: (("input", "normalized_shape", "weight", "eps"), _norm),
    F.embedding: (_READ, _embedding),
}
