"""Whether a model is the chain of convolutions and fully connected layers that c(M) is for.

The model is run once with its graph cut behind every convolution and fully connected layer, so
that what each of them reads can be asked which cut it depends on, and whether element by element:
activations, dropout and batch norm by running statistics pass, pooling, other norms, resampling and
skip connections do not. That is a test by derivatives at the record, whatever code computes it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradaudit.errors import NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.randomness import torch_rng
from gradaudit.ranks.observe import convolutions, watching

_AGREE = 1e-9


@dataclass(frozen=True)
class _Stop:
    """A layer met on the way: what it read, and the cut behind it."""

    layer: str
    read: Tensor
    cut: Tensor


def chain_of_convolutions(model: FunctionalModel, record: Tensor, seed: int) -> list[str]:
    """The convolutions in order of execution.

    Args:
        model: a functional copy in float64.
        record: (1, …), as ``model.cast`` gives it.
        seed: for the directions in which derivatives are taken.

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
    layers = convolutions(model.module) | {
        name: part for name, part in model.module.named_modules() if isinstance(part, nn.Linear)
    }
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
    used = [
        stop.layer for stop, gradient in zip(passed, pulled, strict=True) if gradient is not None
    ]
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
