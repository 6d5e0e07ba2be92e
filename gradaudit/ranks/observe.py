"""Convolutions of a model for which U is defined, their uses on one record, and their chain.

A chain is recognised by derivatives at a record, with the graph cut behind every convolution and
fully connected layer: activations, dropout and batch norm by running statistics pass, pooling,
other norms, resampling and skip connections do not.

``Geometry`` is the input position of every tap of a convolution, for any dimension and padding.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn

from gradaudit.core.randomness import torch_rng
from gradaudit.errors import NotApplicable
from gradaudit.gradients.capture import padding_sides
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.module_kinds import CONVOLUTIONS, TRANSPOSED

Convolution: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d
_AGREE = 1e-9
_PLAIN = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
SOLVED = "fully connected: its gradient gives its input in closed form (COPA, lemma A.1)"


@dataclass(frozen=True)
class Geometry:
    """The geometry by which one group of a convolution reads its input, for all its channels.

    ``sources``, (output positions, taps) int64, is the input position that a tap reads, ``size``
    (the number of spatial positions of the input) where it reads zero padding.
    """

    channels: int
    size: int
    sources: Tensor

    @property
    def positions(self) -> int:
        """Number of output positions."""
        return self.sources.shape[0]

    @property
    def taps(self) -> int:
        """Number of kernel positions."""
        return self.sources.shape[1]

    @cached_property
    def reads(self) -> Tensor:
        """How often each input position is read, (size,)."""
        return torch.bincount(self.sources.flatten(), minlength=self.size + 1)[: self.size]

    @cached_property
    def touched(self) -> int:
        """Number of inputs that are read at all."""
        return self.channels * int((self.reads > 0).sum())

    @cached_property
    def live(self) -> Tensor:
        """Whether a tap ever reads more than padding, (taps,)."""
        return (self.sources < self.size).any(dim=0)

    @cached_property
    def scale(self) -> float:
        """‖im2col‖₂: every patch element is one input, so its Gram matrix is diag(``reads``)."""
        return math.sqrt(self.reads.max())

    @cached_property
    def patterns(self) -> tuple[Tensor, Tensor]:
        """The distinct ways in which output positions merge their taps, and each one's positions.

        Taps of one output position that read the same input (reflection, replication) count as
        one; those that read padding drop out.

        Returns:
            (patterns, taps) int64: for every tap the first one that reads the same input, ``taps``
            for padding; and (positions,) the pattern of every output position.
        """
        first = torch.arange(self.taps, device=self.sources.device).repeat(self.positions, 1)
        for tap in reversed(range(self.taps)):
            same = self.sources == self.sources[:, tap : tap + 1]
            first = torch.where(same, tap, first)
        first = torch.where(self.sources == self.size, self.taps, first)
        kinds, pattern = torch.unique(first, dim=0, return_inverse=True)
        return kinds, pattern

    @cached_property
    def parts(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Number of the connected part, of every input position and of every output position.

        Strides beyond the kernel and dilation leave parts that share no read.
        """
        sources = self.sources.cpu().numpy()
        at, tap = np.nonzero(sources < self.size)
        nodes = self.size + self.positions
        edges = (np.ones(len(at), dtype=np.int8), (self.size + at, sources[at, tap]))
        graph = coo_array(edges, shape=(nodes, nodes))
        _, part = connected_components(graph, directed=False)
        return part[: self.size], part[self.size :]


def geometry_of(
    convolution: Convolution, shape: Sequence[int], device: torch.device | None = None
) -> Geometry:
    """The geometry of each group of a convolution.

    ``shape`` is the spatial one of its input, without batch and channels.
    """
    size, kernel, dilation = math.prod(shape), convolution.kernel_size, convolution.dilation
    mode = "constant" if convolution.padding_mode == "zeros" else convolution.padding_mode
    sides = padding_sides(convolution.padding, kernel, dilation)
    # numbers of positions, as real ones for those ways to pad that have no other
    read = torch.arange(size, dtype=torch.float64).reshape(1, 1, *shape)
    read = F.pad(
        read, tuple(chain(*reversed(sides))), mode, size if mode == "constant" else None
    ).long()
    for axis, stride in enumerate(convolution.stride, 2):
        spread = dilation[axis - 2]
        read = read.unfold(axis, spread * (kernel[axis - 2] - 1) + 1, stride)[..., ::spread]
    return Geometry(
        channels=convolution.in_channels // convolution.groups,
        size=size,
        sources=read.reshape(-1, math.prod(kernel)).to(device),
    )


Look: TypeAlias = Callable[[str, Tensor, Tensor], Tensor]

Kinds: TypeAlias = tuple[type[nn.Module], ...]


@dataclass(frozen=True)
class ConvolutionUse:
    """One application of a convolution while a record goes through the model.

    The weight is (output channels, input channels of a group, *kernel) float64, ``shape`` that of
    its input, (batch, channels, *spatial), and ``deltas`` are ∂J/∂Z at its output, (batch, output
    channels, *spatial) float64.
    """

    layer: str
    weight: Tensor
    shape: tuple[int, ...]
    deltas: Tensor


def convolutions(model: nn.Module) -> dict[str, nn.Module]:
    """Every convolution of a model by layer name, transposed ones included."""
    return _named(model, CONVOLUTIONS)


def _named(model: nn.Module, kind: type[nn.Module] | Kinds) -> dict[str, nn.Module]:
    return {n or "(model)": part for n, part in model.named_modules() if isinstance(part, kind)}


def plain_convolutions(model: nn.Module) -> dict[str, Convolution]:
    """The convolutions of a model that U is defined for, by layer name."""
    refused, every = unsuitable(model), convolutions(model).items()
    return {n: part for n, part in every if isinstance(part, _PLAIN) and n not in refused}


def unsuitable(model: nn.Module) -> dict[str, str]:
    """Why U is not defined for some of the convolutions of a model, by name."""
    modules = convolutions(model)
    owners = Counter(id(module._parameters.get("weight")) for module in modules.values())
    reasons = {}
    for name, module in modules.items():
        weight = module._parameters.get("weight")
        if isinstance(module, TRANSPOSED):
            reasons[name] = "a transposed convolution: COPA's U is defined for convolutions"
        elif weight is None:
            reasons[name] = "its weight is computed from other parameters, whose gradients differ"
        elif not weight.is_floating_point():
            reasons[name] = f"its weights are {weight.dtype}; real numbers are needed"
        elif owners[id(weight)] > 1:
            reasons[name] = "shares its weight with another convolution, so their gradients add up"
        elif not _computes_plainly(module):
            reasons[name] = "computes its own forward pass, not that of a plain convolution"
    return reasons


def fully_connected(model: FunctionalModel, record: Tensor) -> dict[str, str]:
    """COPA's condition on fully connected layers, by name, instead of a rank.

    Its metric leaves them out, as their input is solved for in closed form; that takes a bias, and
    a layer that is applied once a record. The record is (1, …), as ``model.cast`` gives it.
    """
    layers = _named(model.module, nn.Linear)
    rows: Counter[str] = Counter()

    def look(name: str, inputs: Tensor, output: Tensor) -> Tensor:
        rows[name] += inputs.numel() // inputs.shape[-1]
        return output

    with watching(layers, look), torch.no_grad():
        model.outputs({}, record)
    return {name: _in_closed_form(module, rows[name]) for name, module in layers.items()}


def _in_closed_form(layer: nn.Module, rows: int) -> str:
    if rows == 0:
        return "fully connected, and not called in the forward pass"
    if rows > 1:
        return (
            f"fully connected, applied at {rows} positions of a record: their gradients add up, "
            "and COPA's closed form (lemma A.1) does not hold"
        )
    if layer._parameters.get("bias") is None:
        return (
            "fully connected without a bias: its gradient gives its input in closed form up to a "
            "factor (COPA, lemma A.1 needs the bias)"
        )
    return SOLVED


def _computes_plainly(module: nn.Module) -> bool:
    return any(
        isinstance(module, plain)
        and type(module).forward is plain.forward
        and type(module)._conv_forward is plain._conv_forward
        for plain in _PLAIN
    )


def uses(
    model: FunctionalModel, layers: Mapping[str, Convolution], record: Tensor, label: Tensor
) -> list[ConvolutionUse]:
    """Every application of the convolutions, in order, with ∂J/∂Z at its output.

    Of a model in float64, for a record (1, …), as ``model.cast`` gives it, and its label (1, …).
    """
    seen: list[tuple[str, Tensor, torch.Size]] = []
    offsets: list[Tensor] = []

    def look(name: str, inputs: Tensor, output: Tensor) -> Tensor:
        seen.append((name, layers[name].weight, inputs.shape))
        offsets.append(torch.zeros_like(output, requires_grad=True))
        return output + offsets[-1]

    with watching(layers, look):
        loss = model.losses({}, record, label).sum()
    deltas: Sequence[Tensor] = offsets
    if loss.requires_grad:
        deltas = torch.autograd.grad(loss, offsets, allow_unused=True, materialize_grads=True)
    return [
        ConvolutionUse(name, _float64(weight), tuple(shape), _float64(delta))
        for (name, weight, shape), delta in zip(seen, deltas, strict=True)
    ]


def _float64(tensor: Tensor) -> Tensor:
    """On its device, or on the CPU where that has no float64."""
    tensor = tensor.detach()
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


@contextmanager
def watching(modules: Mapping[str, nn.Module], look: Look) -> Iterator[None]:
    """Pass every output of the modules through ``look(name, input, output)`` for a while."""

    def hook(name: str, module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
        return look(name, args[0], output)

    handles = [part.register_forward_hook(partial(hook, name)) for name, part in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class _Stop:
    """A layer met on the way: what it read, and the cut behind it."""

    layer: str
    read: Tensor
    cut: Tensor


def chain_of_convolutions(model: FunctionalModel, record: Tensor, seed: int) -> list[str]:
    """The convolutions in order of execution.

    Of a model in float64, by a record (1, …), as ``model.cast`` gives it; the seed is for the
    directions in which derivatives are taken.

    Raises:
        NotApplicable: the model is no chain of convolutions and fully connected layers.
    """
    start = record.detach().clone().requires_grad_(record.is_floating_point())
    stops, outputs = _run_with_cuts(model, start)
    names = [stop.layer for stop in stops]
    spatial = [name in convolutions(model.module) for name in names]
    reason = _not_in_order(names, spatial)
    passed = [_Stop("the record", start, start)]
    for number, stop in enumerate(stops):
        reason = reason or _misread(stop.layer, stop.read, passed)
        if number <= sum(spatial):
            reason = reason or _not_elementwise(stop, passed[-1], seed)
        passed.append(stop)
    reason = reason or _misread("the output", outputs, passed)
    if reason:
        raise NotApplicable(
            f"c(M) is defined for a chain of convolutions and fully connected layers: {reason}"
        )
    return names[: sum(spatial)]


def _not_in_order(names: Sequence[str], spatial: Sequence[bool]) -> str | None:
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        return f"{repeated[0]} is used more than once"
    if all(spatial) or list(spatial) != sorted(spatial, reverse=True):
        return "the convolutions are not followed by fully connected layers"
    return None


def _run_with_cuts(model: FunctionalModel, start: Tensor) -> tuple[list[_Stop], Tensor]:
    layers = convolutions(model.module) | _named(model.module, nn.Linear)
    stops: list[_Stop] = []

    def look(name: str, inputs: Tensor, output: Tensor) -> Tensor:
        cut = output.detach().requires_grad_()
        stops.append(_Stop(name, inputs.clone(), cut))
        return cut.clone()

    with watching(layers, look):
        return stops, model.outputs({}, start)


def _misread(name: str, read: Tensor, passed: Sequence[_Stop]) -> str | None:
    """Why what is read is not a function of the last layer passed alone, or None."""
    pulled = _pull_back(read, passed, torch.ones_like(read))
    pairs = zip(passed, pulled, strict=True)
    used = [stop.layer for stop, gradient in pairs if gradient is not None]
    last = passed[-1].layer
    if last not in used:
        return f"{name} does not read what {last} gives"
    return None if used == [last] else f"a skip connection leads from {used[0]} to {name}"


def _not_elementwise(stop: _Stop, before: _Stop, seed: int) -> str | None:
    """Why a layer's input is not an elementwise function of what is before it, or None.

    The Jacobian is diagonal where vᵀJ / v is the same for any v.
    """
    if stop.read.numel() != before.cut.numel():
        return f"{stop.layer} reads {before.layer} through pooling or resampling"
    generator = torch_rng(seed, "chain")
    slopes = []
    for _ in range(2):
        drawn = torch.rand(before.cut.shape, generator=generator, dtype=torch.float64)
        direction = 1 + drawn.to(before.cut.device)
        (pulled,) = _pull_back(stop.read, [before], direction.reshape(stop.read.shape))
        assert pulled is not None
        slopes.append(pulled / direction)
    if (slopes[0] - slopes[1]).norm() <= _AGREE * slopes[0].norm():
        return None
    return f"{stop.layer} does not read {before.layer} element by element (pooling, a norm, mixing)"


def _pull_back(read: Tensor, passed: Sequence[_Stop], direction: Tensor) -> list[Tensor | None]:
    """The direction times the Jacobian of what is read by each cut; None where none leads there."""
    cuts = [stop.cut for stop in passed if stop.cut.requires_grad]
    if not read.requires_grad or not cuts:
        return [None] * len(passed)
    pulled = iter(torch.autograd.grad(read, cuts, direction, retain_graph=True, allow_unused=True))
    return [next(pulled) if stop.cut.requires_grad else None for stop in passed]
