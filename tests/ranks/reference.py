"""U of a convolution formed by automatic differentiation, its rank, and layers to try it on."""

import random
import warnings
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from gradaudit.ranks.convolution import LayerRank, Method, convolution_rank
from gradaudit.ranks.linear_system import ConvolutionSystem, row_basis
from gradaudit.ranks.observe import Convolution, geometry_of

NULL = 1e-10


@dataclass(frozen=True)
class Case:
    """A convolution, the spatial shape of its input and ∂J/∂Z at its output (channels, *out)."""

    name: str
    layer: Convolution
    shape: tuple[int, ...]
    deltas: Tensor

    def __str__(self) -> str:
        return self.name

    def rank(self, method: Method = "auto", flops: float = 1e12) -> LayerRank:
        return convolution_rank(
            self.layer.weight.detach(),
            self.deltas.flatten(1),
            geometry_of(self.layer, self.shape),
            self.layer.groups,
            method=method,
            flops=flops,
        )

    @cached_property
    def u(self) -> Tensor:
        """U = [W; ∇_Z J] as a dense matrix over all inputs, its rows of length 1 or 0."""
        zero = torch.zeros(1, self.layer.in_channels, *self.shape, dtype=torch.float64)
        weight = self.layer.weight.detach()

        def outputs(x: Tensor) -> Tensor:
            return torch.func.functional_call(self.layer, {"weight": weight}, (x,))

        def weight_gradient(x: Tensor) -> Tensor:
            def linear_loss(w: Tensor) -> Tensor:
                z = torch.func.functional_call(self.layer, {"weight": w}, (x,))
                return (z[0] * self.deltas).sum()

            return torch.func.grad(linear_loss)(weight)

        w = torch.func.jacrev(outputs)(zero).reshape(-1, zero.numel())
        nabla = torch.func.jacrev(weight_gradient)(zero).reshape(-1, zero.numel())
        return torch.cat([_unit_rows(w), _unit_rows(nabla)])

    @cached_property
    def true_rank(self) -> int:
        values = torch.linalg.svdvals(self.u)
        return int((values > NULL * values.max()).sum())


def system_of(case: Case) -> ConvolutionSystem:
    """The linear system of a convolution without groups."""
    geometry = geometry_of(case.layer, case.shape)
    filters = case.layer.weight.detach().flatten(2).transpose(1, 2).flatten(1)
    live = geometry.live.repeat_interleave(geometry.channels)
    return ConvolutionSystem(geometry, row_basis(filters * live), row_basis(case.deltas.flatten(1)))


def _unit_rows(matrix: Tensor) -> Tensor:
    lengths = matrix.norm(dim=1, keepdim=True)
    return matrix / torch.where(lengths > 0, lengths, 1.0)


def _drawn(layer: Convolution, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    with torch.no_grad():
        layer.double()
        layer.weight.copy_(_normal(layer.weight.shape, generator))
        with warnings.catch_warnings(action="ignore"):  # torch on "same" with an even kernel
            outputs = layer(torch.zeros(1, layer.in_channels, *shape, dtype=torch.float64))[0]
    return _normal(outputs.shape, generator)


def _normal(shape: torch.Size, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plain(name: str, layer: Convolution, *shape: int) -> Case:
    """A layer with Gaussian filters and output gradients."""
    return Case(name, layer, shape, _drawn(layer, shape, _generator(1)))


def changed(name: str, layer: Convolution, *shape: int) -> Case:
    """A layer whose filters or output gradients are degenerate in the way that the name says."""
    generator = _generator(2)
    deltas = _drawn(layer, shape, generator)
    with torch.no_grad():
        _FILTERS.get(name, lambda weight: None)(layer.weight)
    alike = torch.rand(deltas.shape, generator=generator, dtype=torch.float64)
    return Case(name, layer, shape, _DELTAS.get(name, lambda d, _: d)(deltas, alike))


_FILTERS = {
    "zero-filter": lambda w: w[1].zero_(),
    "duplicate-filters": lambda w: w[1].copy_(w[0]),
    "opposite-filters": lambda w: w[1].copy_(-w[0]),
    "dependent-filters": lambda w: w[2].copy_(w[0] - 2 * w[1]),
    "tied-taps": lambda w: w.copy_(w[..., :1, :1].expand_as(w)),
    "constant-filters": lambda w: w.fill_(0.25),
    "no-filters": lambda w: w.zero_(),
    "dead-input-channel": lambda w: w[:, 0].zero_(),
    "pruned-filters": lambda w: w.mul_(w.abs() > 1),
    "nothing": lambda w: w.zero_(),
    "filters-of-all-sizes": lambda w: w.mul_(10.0 ** -torch.arange(len(w)).view(-1, 1, 1, 1)),
}
_DELTAS = {
    "no-deltas": lambda d, _: 0 * d,
    "nothing": lambda d, _: 0 * d,
    "dead-channel": lambda d, _: torch.cat([0 * d[:1], d[1:]]),
    "sparse-deltas": lambda d, alike: d * (alike > 0.7),
    "one-live-position": lambda d, _: d * (torch.arange(d[0].numel()).view(d[0].shape) == 3),
    "constant-deltas": lambda d, _: d[:, :1, :1].expand_as(d).clone(),
    "proportional-deltas": lambda d, _: d[:1] * d[:, :1, :1],
    "deltas-of-all-sizes": lambda d, _: d * 10.0 ** -(3.0 * torch.arange(len(d)).view(-1, 1, 1)),
}

HAND_MADE = [
    plain("1x1", nn.Conv2d(3, 2, 1), 4, 4),
    plain("1x1-strided", nn.Conv2d(3, 2, 1, stride=2), 5, 5),
    plain("1x1-widening", nn.Conv2d(2, 5, 1), 4, 4),
    plain("widening", nn.Conv2d(2, 5, 3), 7, 7),
    plain("narrowing", nn.Conv2d(5, 2, 3), 7, 7),
    plain("square-same", nn.Conv2d(3, 3, 3, padding="same"), 7, 7),
    plain("almost-square", nn.Conv2d(4, 3, 3, padding=1), 7, 7),
    plain("strided", nn.Conv2d(2, 4, 3, stride=2, padding=1), 8, 8),
    plain("even-kernel", nn.Conv2d(3, 4, 4, stride=2, padding=1), 8, 8),
    plain("same-even-kernel", nn.Conv2d(2, 2, 2, padding="same"), 6, 6),
    plain("stride-equals-kernel", nn.Conv2d(2, 3, 2, stride=2), 8, 8),
    plain("stride-beyond-kernel", nn.Conv2d(3, 2, 2, stride=3), 9, 9),
    plain("stride-beyond-kernel-padded", nn.Conv2d(3, 2, 2, stride=3, padding=1), 8, 8),
    plain("untouched-rest", nn.Conv2d(2, 3, 3, stride=3), 8, 8),
    plain("full-padding", nn.Conv2d(2, 3, 3, padding=2), 5, 5),
    plain("full-padding-narrowing", nn.Conv2d(4, 2, 3, stride=2, padding=2), 6, 6),
    plain("padding-beyond-kernel", nn.Conv2d(2, 3, 2, padding=2), 4, 4),
    plain("dilated", nn.Conv2d(2, 2, 3, dilation=2, padding=2), 7, 7),
    plain("dilated-and-strided", nn.Conv2d(2, 3, 2, dilation=2, stride=2), 9, 9),
    plain("grouped", nn.Conv2d(4, 6, 3, groups=2, padding=1), 6, 6),
    plain("depthwise", nn.Conv2d(4, 4, 3, groups=4, padding=1), 7, 7),
    plain("depthwise-multiplied", nn.Conv2d(3, 6, 3, groups=3, stride=2), 9, 9),
    plain("one-position", nn.Conv2d(3, 2, 5), 5, 5),
    plain("few-positions", nn.Conv2d(4, 6, 4), 5, 5),
    plain("oblong", nn.Conv2d(2, 3, (1, 4), stride=(2, 1), padding=(0, 2)), 6, 8),
    plain("circular", nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), 6, 6),
    plain("circular-small", nn.Conv2d(2, 3, 3, padding=2, padding_mode="circular"), 2, 3),
    plain("reflect", nn.Conv2d(3, 2, 3, padding=2, padding_mode="reflect"), 6, 6),
    plain("replicate", nn.Conv2d(2, 3, 3, padding=2, padding_mode="replicate", stride=2), 6, 6),
    plain("1d", nn.Conv1d(3, 2, 5, stride=2, padding=2), 17),
    plain("1d-dilated", nn.Conv1d(2, 2, 3, dilation=3), 20),
    plain("3d", nn.Conv3d(2, 3, 2, stride=(1, 2, 1), padding=(1, 0, 1)), 4, 4, 3),
    plain("3d-grouped", nn.Conv3d(2, 2, 2, groups=2), 3, 4, 3),
    *(changed(name, nn.Conv2d(3, 4, 3, padding=1), 6, 6) for name in {**_FILTERS, **_DELTAS}),
]


def random_case(seed: int) -> Case:
    """A small layer with random shape, padding, ties and dead parts."""
    rng, generator = random.Random(seed), _generator(seed)
    layer, shape = _random_layer(rng)
    deltas = _drawn(layer, shape, generator)
    with torch.no_grad():
        _spoil_filters(layer.weight, rng)
    return Case(f"random-{seed}", layer, shape, _spoilt_deltas(deltas, rng, generator))


def _random_layer(rng: random.Random) -> tuple[Convolution, tuple[int, ...]]:
    dimensions = rng.choice([1, 2, 2, 2, 3])
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    longest, widest = {1: (14, 4), 2: (7, 4), 3: (4, 2)}[dimensions]

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randint(low, high) for _ in range(dimensions))

    while True:
        groups = rng.choice([1, 1, 1, 2, 3])
        mode = rng.choice(["zeros", "zeros", "zeros", "circular", "reflect", "replicate"])
        shape, padding = each(2, longest), each(0, 2)
        if mode != "zeros":
            padding = tuple(min(p, s - 1) for p, s in zip(padding, shape, strict=True))
        layer = kind(
            groups * rng.randint(1, 3),
            groups * rng.randint(1, 4),
            each(1, widest),
            each(1, 3),
            padding,
            each(1, 2),
            groups,
            padding_mode=mode,
        )
        reach = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        if all(s + 2 * p > r for s, p, r in zip(shape, padding, reach, strict=True)):
            return layer, shape


def _spoil_filters(weight: Tensor, rng: random.Random) -> None:
    kind = rng.random()
    if kind < 0.15:
        weight[rng.randrange(len(weight))] = 0
    elif kind < 0.3:
        weight[0] = weight[-1]
    elif kind < 0.4:
        weight.fill_(0.5)
    elif kind < 0.5:
        weight.sign_()
    elif kind < 0.55:
        weight.zero_()
    elif kind < 0.6:
        weight.mul_(weight > 0.3)


def _spoilt_deltas(deltas: Tensor, rng: random.Random, generator: torch.Generator) -> Tensor:
    kind = rng.random()
    if kind < 0.15:
        deltas[rng.randrange(len(deltas))] = 0
    elif kind < 0.3:
        alive = torch.rand(deltas.shape, generator=generator, dtype=torch.float64) > 0.7
        deltas = deltas * alive
    elif kind < 0.4:
        deltas = deltas.flatten(1)[:, 0].view(-1, *[1] * (deltas.dim() - 1)).expand_as(deltas)
    elif kind < 0.5:
        deltas = deltas[:1].expand_as(deltas)
    elif kind < 0.55:
        deltas = 0 * deltas
    elif kind < 0.6:
        deltas = 1e-9 * deltas
    return deltas.clone()
