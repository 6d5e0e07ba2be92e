"""Candidates evaluated together as one large batch, whose gradients are kept apart by candidate.

The weights are the same for all candidates: one pass over all of their records goes through the
model, and what came in and δ at every use of a parameter give each candidate its gradient,
G = Σ δ aᵀ over the candidate's own records and positions (see ``gradaudit.gradients.operations``).
No gradient by the weights is taken, once or twice; ``vmap``, which is asked for one gradient a
candidate, has such products done with one bank of filters a candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import prod
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradaudit.attacks.reconstruction.matching.objectives import (
    CandidateUpdate,
    Evaluation,
    Objective,
    Parts,
    WholeUpdate,
)
from gradaudit.gradients.capture import Applied, Call, Capture, Handler
from gradaudit.gradients.operations import Gain, Linear, Offset, Operation

if TYPE_CHECKING:
    from gradaudit.attacks.reconstruction.base import AttackerView


_MOST_COLUMNS = 1 << 20
"""Elements of one record's patches up to which a convolution becomes a product with them."""
_MANY = 64
"""Positions of a record from which on it is worth a product of its own."""
_FEW = 8.0
"""Operations an element up to which a gradient's products are had from its factors: ResNet-18
takes 1.7 times as long without, smaller nets as long."""


def folded(objective: Objective) -> Evaluation:
    """Values (restarts,) and gradients (restarts, unknowns) of points, folded into one batch."""
    elements = objective.view.elements

    def evaluate(points: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            points = points.detach().requires_grad_()
            records = objective.records(points)
            targets = objective.targets.targets(points[:, elements:])
            values = objective.over_rounds(
                lambda view: updates(view, records.flatten(0, 1), targets), records
            )
            (gradients,) = torch.autograd.grad(values.sum(), points, materialize_grads=True)
        return values.detach(), gradients.detach()

    return evaluate


def foldable(objective: Objective, alone: Evaluation) -> bool:
    """Whether candidates that are folded have what each has alone, found by trying two.

    They have not where records are coupled, where the model goes by what a batch holds, or where a
    parameter is used in another way than is known here.
    """
    if objective.view.training is not None or objective.view.clients > 1:
        return False
    points = objective.trial_points(2)
    try:
        pairs = zip(*map(alone, torch.split(points, 1)), strict=True)
        found = folded(objective)(points)
    except Exception:  # whatever a model does that a batch cannot follow
        return False
    return _agree(found, tuple(torch.cat(parts) for parts in pairs))


def updates(view: AttackerView, records: Tensor, targets: Tensor) -> Parts:
    """The visible gradient of every candidate, by parameter.

    A parameter that is not seen to be applied has none, and the zero stands for it.

    Args:
        view: of a plain gradient.
        records: (candidates × k, …), which move.
        targets: (candidates × k, …).

    Raises:
        RuntimeError: what a layer gives does not have the records first, or does not move.
    """
    weights = {name: view.model.parameters[name] for name in view.visible}
    seeing = _CandidateCapture(weights, len(records) // view.batch)
    with seeing:
        outputs = view.model.outputs({}, records)
    losses = view.model.loss.per_record(outputs, targets).reshape(-1, view.batch)
    shares = _shares(view.model.loss.weights(targets), losses)
    edges = [place.edge for place in seeing.places]
    deltas = torch.autograd.grad((shares * losses).sum(), edges, create_graph=True)
    parts: dict[str, list[_Gradient]] = {name: [] for name in weights}
    for place, delta in zip(seeing.places, deltas, strict=True):
        for gradient_of, gradient in place.gradients(delta, len(losses)):
            parts[gradient_of].append(gradient)
    blank = losses.new_zeros(len(losses), 1)
    return {
        name: _over_uses(found) if found else WholeUpdate(blank.expand(-1, weights[name].numel()))
        for name, found in parts.items()
    }


def _shares(weights: Tensor | None, losses: Tensor) -> Tensor:
    """The weight of each record's loss in its candidate's loss, (candidates, k)."""
    if weights is None:
        return torch.full_like(losses, 1 / losses.shape[1])
    weights = weights.double().reshape(losses.shape)
    return (weights / weights.sum(dim=1, keepdim=True)).to(losses)


@dataclass(frozen=True)
class _Place:
    """Where parameters are applied: what came in, and where δ is to be had.

    The shape of what comes out is that of one candidate's records.
    """

    seen: Tensor
    edge: GradientEdge
    uses: tuple[tuple[str, Operation], ...]

    def gradients(self, delta: Tensor, candidates: int) -> list[tuple[str, _Gradient]]:
        """The gradient by each parameter."""
        seen = self.seen.reshape(candidates, -1, *self.seen.shape[1:])
        delta = delta.reshape(candidates, -1, *delta.shape[1:])
        return [
            (name, _Gradient(use, use.left(delta), use.right(seen), seen))
            for name, use in self.uses
        ]


@dataclass(frozen=True)
class _Gradient:
    """A parameter's gradient G = Δ Aᵀ at one use, of every candidate.

    It is formed where that takes less than its products do without, or loses digits.
    """

    use: Operation
    left: Tensor
    right: Tensor
    seen: Tensor

    def product(self, shared: Tensor) -> Tensor:
        """Compute ⟨G, G*⟩ as ⟨Δ, G* A⟩."""
        if not self._few:
            return self.whole.product(shared)
        block = shared.reshape(self.use.outputs, self.use.inputs)
        return (self.left * _times(block, self.right)).flatten(1).sum(dim=1)

    def square(self) -> Tensor:
        """Compute ‖G‖² as ⟨Δᵀ Δ, Aᵀ A⟩."""
        if not self._few:
            return self.whole.square()
        products = (self.left.mT @ self.left) * (self.right.mT @ self.right)
        return products.flatten(1).sum(dim=1)

    def gap(self, shared: Tensor) -> Tensor:
        """Compute ‖G − G*‖²."""
        return self.whole.gap(shared)

    def where(self, kept: Tensor) -> WholeUpdate:
        """Set elements outside of a mask to zero."""
        return self.whole.where(kept)

    @cached_property
    def whole(self) -> WholeUpdate:
        """Form the gradients (candidates, elements)."""
        if isinstance(self.use, Offset):
            return WholeUpdate(self.left.sum(dim=-1).flatten(1))
        if isinstance(self.use, Gain):
            return WholeUpdate((self.left * self.right).sum(dim=-1).flatten(1))
        return WholeUpdate(self.use.weight(self.left @ self.right.mT, self.seen))

    @property
    def _few(self) -> bool:
        """Whether there are few positions beside the elements of the gradient as it lies."""
        positions, elements = self.left.shape[-1], self.use.outputs * self.use.inputs
        products = positions**2 * (self.use.outputs + self.use.inputs)
        return type(self.use) in (Linear, _PatchProduct) and products <= _FEW * elements


def _over_uses(gradients: list[_Gradient]) -> CandidateUpdate:
    if len(gradients) == 1:
        return gradients[0]
    return WholeUpdate(reduce(torch.add, [gradient.whole.update for gradient in gradients]))


class _CandidateCapture(Capture):
    """Sees what the parameters are applied to in one pass over all candidates' records.

    Convolutions of small pictures are done as products, whose patches are what came in; norms by
    running statistics as the scaling that they are.
    """

    def __init__(self, parameters: Mapping[str, Tensor], candidates: int) -> None:
        super().__init__(parameters)
        self._candidates = candidates
        self.places: list[_Place] = []

    def _called(self, handler: Handler, func: Callable[..., Any], call: Call) -> Applied | None:
        if func is F.conv2d and (applied := _as_product(**call)):
            return applied
        if func is F.batch_norm and not call.get("training"):
            func = _standardised
        return super()._called(handler, func, call)

    def _record(self, applied: Applied, uses: tuple[tuple[str, Operation], ...]) -> Tensor:
        edge = get_gradient_edge(applied.out)
        shape = (len(applied.out) // self._candidates, *applied.out.shape[1:])
        own = tuple((name, replace(use, shape=shape)) for name, use in uses)
        self.places.append(_Place(applied.seen, edge, own))
        return applied.out


def _standardised(
    input: Tensor, running_mean: Tensor, running_var: Tensor, eps: float = 1e-5, **rest: Any
) -> Tensor:
    """The output of ``batch_norm`` in evaluation, without gain and offset."""
    spread = (-1, *(1 for _ in input.shape[2:]))
    scale = (running_var + eps).rsqrt().reshape(spread)
    return (input - running_mean.reshape(spread)) * scale


@dataclass(frozen=True)
class _PatchProduct(Operation):
    """A convolution as a product with patches, which are what came in."""

    def left(self, delta: Tensor) -> Tensor:
        """Arrange the left factor (candidates, k, out, down, across)."""
        return self.right(delta.flatten(3))

    def right(self, seen: Tensor) -> Tensor:
        """Join records' places: (candidates, k, …, places) to (candidates, 1, …, k × places)."""
        return seen.movedim(1, 2).flatten(2).unsqueeze(1)


def _as_product(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Applied | None:
    """The call of ``conv2d`` as a product with patches; None where it should run itself.

    On a GPU it should: there ``unfold`` starts a kernel a record.
    """
    if input.dim() != 4 or groups != 1 or isinstance(padding, str) or input.is_cuda:
        return None
    window = [_pair(size) for size in (weight.shape[2:], dilation, padding, stride)]
    places = [
        (side + 2 * pad - step * (taps - 1) - 1) // move + 1
        for side, taps, step, pad, move in zip(input.shape[2:], *window, strict=True)
    ]
    if min(places) < 1 or weight[0].numel() * prod(places) > _MOST_COLUMNS:
        return None
    patches = F.unfold(input, *window)
    out = _times(weight.flatten(1), patches)
    out = (out if bias is None else out + bias[:, None]).reshape(*out.shape[:2], *places)
    block = (1, weight[0].numel(), len(weight), tuple(out.shape))
    offset = Offset(1, 1, len(weight), tuple(out.shape), channels_last=False)
    return Applied(patches, out, _PatchProduct(*block), offset)


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[-1])


def _times(matrix: Tensor, columns: Tensor) -> Tensor:
    """A matrix times columns (…, in, positions): one product where each had few."""
    if columns.shape[-1] < _MANY:
        return (columns.mT @ matrix.mT).mT
    return matrix @ columns


def _agree(left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> bool:
    """Whether all numbers are the same to half of the digits."""
    for a, b in zip(left, right, strict=True):
        tolerance = torch.finfo(a.dtype).eps ** 0.5
        size = float(b.abs().nan_to_num(0, 0, 0).max()) if b.numel() else 0.0
        if not torch.allclose(a, b, rtol=tolerance, atol=tolerance * size, equal_nan=True):
            return False
    return True
