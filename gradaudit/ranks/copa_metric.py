"""Ranks of U of all convolutions of a model, record by record, c(M), and what they rest on."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from numpy.typing import ArrayLike
from pydantic import JsonValue
from torch import Tensor

from gradaudit.errors import AuditError, NotApplicable
from gradaudit.executors.workers import shared_out
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.progress import Advance
from gradaudit.ranks.convolution import Evidence, LayerRank, Method, convolution_rank
from gradaudit.ranks.linear_system import SpectralGap
from gradaudit.ranks.observe import Convolution, ConvolutionUse, geometry_of, uses

_MEANING: dict[Evidence, str] = {
    "exact": "follows from the ranks of filters and output gradients by a theorem",
    "structured": "as many eigenvalues of UᵀU, or of the part that repeats, are above rounding",
    "dense": "singular values of U, rows orthonormalised",
    "bound": "upper bound only: U is not formed, or too large to be",
}
"""What the evidence of each method means, the strongest first."""
_CLEAR_GAP = 1e3
_ROUNDING = 1e-14


@dataclass(frozen=True)
class LayerRanks:
    """Rank of U of one convolution, for each of some records.

    ``inputs`` is n, all elements of its input.
    """

    layer: str
    inputs: int
    records: tuple[LayerRank, ...]

    @property
    def low(self) -> list[int]:
        """Lower ends of the ranks, by record."""
        return [rank.low for rank in self.records]

    @property
    def high(self) -> list[int]:
        """Upper ends of the ranks, by record."""
        return [rank.high for rank in self.records]


def ranks_of(
    model: FunctionalModel,
    layers: Mapping[str, Convolution],
    inputs: Tensor,
    labels: Tensor,
    *,
    method: Method,
    flops: float,
    advance: Advance,
    workers: int = 1,
    given: Callable[[LayerRanks], None] = lambda ranks: None,
) -> tuple[dict[str, LayerRanks], dict[str, str]]:
    """Ranks of U of convolutions, for every record on its own.

    The model is a functional copy in float64, inputs (records, …) and labels are as it casts them,
    and a convolution may take ``flops`` floating-point operations for a record; ``advance`` is
    called of every one that is done, each of which is work for one of the ``workers``, and
    ``given`` what ranks a layer then has. Ranks come by layer in order of execution, with reasons
    for the layers that have none.

    Raises:
        AuditError: a weight or gradient is not finite.
    """
    observed: list[tuple[int, ConvolutionUse]] = []
    reasons: dict[str, str] = {}
    for number, (record, label) in enumerate(zip(inputs, labels, strict=True)):
        seen = uses(model, layers, record[None], label[None])
        reasons |= _unmeasurable(layers, seen)
        observed += [(number, use) for use in seen]
    measured = [(number, use) for number, use in observed if use.layer not in reasons]
    tasks = [
        partial(
            _rank_of_use,
            layers[use.layer],
            use,
            method,
            flops,
        )
        for number, use in measured
    ]
    by_layer: dict[str, dict[int, LayerRank]] = {use.layer: {} for _, use in measured}
    ranks: dict[str, LayerRanks] = {}

    def take(task: int, rank: LayerRank | NotApplicable) -> None:
        number, use = measured[task]
        if isinstance(rank, NotApplicable):
            reasons.setdefault(use.layer, str(rank))
            return
        of_layer = by_layer[use.layer]
        of_layer[number] = rank
        by_record = tuple(of_layer[number] for number in sorted(of_layer))
        ranks[use.layer] = LayerRanks(use.layer, math.prod(use.shape), by_record)
        given(ranks[use.layer])

    shared_out(tasks, workers, advance, given=take)
    return {n: ranks[n] for n in by_layer if n in ranks and n not in reasons}, reasons


def _unmeasurable(
    layers: Mapping[str, Convolution], seen: Sequence[ConvolutionUse]
) -> dict[str, str]:
    """Layers that are used for one record in a way for which U is not defined."""
    times = Counter(use.layer for use in seen)
    reasons = {name: "not used in the forward pass" for name in layers if not times[name]}
    for use in seen:
        if times[use.layer] > 1:
            reasons[use.layer] = f"used {times[use.layer]} times a record: its gradients add up"
        elif len(use.deltas) != 1 or use.deltas.dim() != use.weight.dim():
            reasons[use.layer] = f"applied to an input of shape {use.shape} for one record"
    return reasons


class RankDeficiency(NamedTuple):
    """Rank U − n, at most where the rank is an interval; the rank; and n."""

    value: int
    rank: LayerRank
    inputs: int


def rank_deficiency(
    convolution: Convolution,
    shape: Sequence[int],
    output_gradient: Tensor | ArrayLike,
    *,
    weight: Tensor | None = None,
    method: Method = "auto",
    flops: float = 1e12,
) -> RankDeficiency:
    """Compute the rank deficiency of a convolution's linear system.

    rank U − n, with U = [W; ∇_Z J] and n inputs: 0 where weights and gradients determine the input
    (Chen and Campbell 2021, eq. 4 and definition 2.1).

    >>> layer = torch.nn.Conv1d(1, 1, kernel_size=2, dtype=torch.float64)
    >>> with torch.no_grad():
    ...     weight = layer.weight.copy_(torch.tensor([[[1.0, -1.0]]]))
    >>> rank_deficiency(layer, (1, 4), torch.zeros(1, 3)).value
    -1

    Args:
        convolution: a layer of ``torch.nn``, of one to three dimensions.
        shape: of its input for one record, (channels, *spatial).
        output_gradient: ∇_Z J, (output channels, *output positions).
        weight: float64, in place of the layer's.
        method: ``auto`` takes what suits the layer.
        flops: floating-point operations beyond which the bound is taken.

    Raises:
        NotApplicable: U is too large for the method.
    """
    weight = convolution.weight.detach().double() if weight is None else weight
    deltas = torch.as_tensor(output_gradient).to(weight).flatten(1)
    geometry, inputs = geometry_of(convolution, shape[1:], weight.device), math.prod(shape)
    rank = convolution_rank(
        weight, deltas, geometry, convolution.groups, method=method, flops=flops
    )
    return RankDeficiency(rank.high - inputs, rank, inputs)


def _rank_of_use(
    layer: Convolution,
    use: ConvolutionUse,
    method: Method,
    flops: float,
    advance: Advance,
) -> LayerRank | NotApplicable:
    """The rank, or why the method says nothing of it."""
    if not (use.deltas.isfinite().all() and use.weight.isfinite().all()):
        raise AuditError(f"{use.layer}: its weights or the gradient at its output are not finite")
    facts = layer, use.shape[1:], use.deltas[0]
    try:
        found = rank_deficiency(*facts, weight=use.weight, method=method, flops=flops)
    except NotApplicable as why:
        return why
    advance(1)
    return found.rank


def copa_metric(ranks: Sequence[Sequence[int]], inputs: Sequence[int]) -> list[float]:
    """Compute the rank deficiency of an architecture, c(M), for every record.

    c(M) = Σ_i (d − (i−1))/d · (rank U_i − n_i) over its d convolutions in order of execution (Chen
    and Campbell 2021, definition 2.1).

    >>> copa_metric([[10], [6]], [12, 6])  # the first of two convolutions lacks two ranks
    [-2.0]

    Args:
        ranks: of each convolution, by record.
        inputs: n_i of each.
    """
    depth = len(inputs)
    weights = [(depth - before) / depth for before in range(depth)]
    return [
        sum(w * (rank - n) for w, rank, n in zip(weights, column, inputs, strict=True))
        for column in zip(*ranks, strict=True)
    ]


def weakest_method(ranks: Sequence[LayerRank]) -> Evidence:
    """The method that says least, of all groups of some convolutions."""
    methods = {group.method for rank in ranks for group in rank.groups}
    return max(methods, key=list(_MEANING).index)


def account(ranks: Sequence[LayerRank]) -> dict[str, JsonValue]:
    """The facts behind the ranks of one convolution, the weakest of all groups and records."""
    groups = [group for rank in ranks for group in rank.groups]
    facts: dict[str, JsonValue] = {
        "method": weakest_method(ranks),
        "meaning": _MEANING[weakest_method(ranks)],
        "by_record": [[rank.low, rank.high] for rank in ranks],
        "bound": _range([sum(group.bound for group in rank.groups) for rank in ranks]),
        "inputs_read": sum(group.touched for group in ranks[0].groups),
        "filters": _weakest_gap([group.filters for group in groups]),
        "output_gradients": _weakest_gap([group.deltas for group in groups]),
    }
    if len(groups) > 1:
        facts["methods"] = dict(sorted(Counter(group.method for group in groups).items()))
    if spectra := [group.spectrum for group in groups if group.spectrum]:
        facts["singular_values"] = _weakest_gap(spectra)
    return facts


def _weakest_gap(gaps: Sequence[SpectralGap]) -> dict[str, JsonValue]:
    """The closest calls: relative singular values on both sides of the tolerance."""
    facts: dict[str, JsonValue] = {
        "rank": _range([gap.rank for gap in gaps]),
        "smallest_kept": min(gap.smallest for gap in gaps),
        "largest_dropped": max(gap.largest_dropped for gap in gaps),
        "tolerance": max(gap.tolerance for gap in gaps),
    }
    if any(
        gap.largest_dropped > _ROUNDING and gap.smallest < _CLEAR_GAP * gap.largest_dropped
        for gap in gaps
    ):
        facts["caution"] = "no clear gap at the tolerance: the rank depends on where it is set"
    return facts


def _range(numbers: Sequence[int]) -> JsonValue:
    low, high = min(numbers), max(numbers)
    return low if low == high else [low, high]
