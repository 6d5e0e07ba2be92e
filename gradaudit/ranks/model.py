"""Ranks of U of all convolutions of a model, record by record, and c(M)."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from gradaudit.errors import AuditError, NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.randomness import Seed, sequence
from gradaudit.ranks.convolution import LayerRank, Method, convolution_rank
from gradaudit.ranks.geometry import Convolution, geometry_of
from gradaudit.ranks.observe import Use, uses


@dataclass(frozen=True)
class LayerRanks:
    """Rank of U of one convolution, for each of some records.

    Attributes:
        layer: its name.
        inputs: n, all elements of its input.
        records: the rank for every record.
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
    seed: int,
    advance: Callable[[int], None],
) -> tuple[dict[str, LayerRanks], dict[str, str]]:
    """Ranks of U of convolutions, for every record on its own.

    Args:
        model: a functional copy in float64.
        layers: the convolutions to measure, by name.
        inputs: (records, …), as ``model.cast`` gives them.
        labels: (records, …).
        method: how a rank is found.
        flops: floating-point operations that a convolution may take for a record.
        seed: root of the probes' randomness.
        advance: told of every convolution that is done for a record.

    Returns:
        Ranks by layer in order of execution, and reasons for the layers that have none.

    Raises:
        AuditError: a weight or gradient is not finite.
    """
    by_layer: dict[str, list[LayerRank]] = {}
    sizes: dict[str, int] = {}
    reasons: dict[str, str] = {}
    for number in range(len(inputs)):
        seen = uses(model, layers, inputs[number : number + 1], labels[number : number + 1])
        reasons |= _unmeasurable(layers, seen)
        for use in seen:
            if use.layer in reasons:
                continue
            try:
                of_use = sequence(seed, "ranks", number, use.layer)
                rank = _rank_of_use(layers[use.layer], use, method, flops, of_use)
            except NotApplicable as error:
                reasons[use.layer] = str(error)
                continue
            by_layer.setdefault(use.layer, []).append(rank)
            sizes[use.layer] = math.prod(use.shape)
            advance(1)
    return {
        name: LayerRanks(name, sizes[name], tuple(ranks))
        for name, ranks in by_layer.items()
        if name not in reasons
    }, reasons


def _unmeasurable(layers: Mapping[str, Convolution], seen: Sequence[Use]) -> dict[str, str]:
    """Layers whose use for one record is not what U is defined for."""
    times = Counter(use.layer for use in seen)
    reasons = {name: "not used in the forward pass" for name in layers if not times[name]}
    for use in seen:
        if times[use.layer] > 1:
            reasons[use.layer] = f"used {times[use.layer]} times a record: its gradients add up"
        elif len(use.deltas) != 1 or use.deltas.dim() != use.weight.dim():
            reasons[use.layer] = f"applied to an input of shape {use.shape} for one record"
    return reasons


def _rank_of_use(
    layer: Convolution, use: Use, method: Method, flops: float, seed: Seed
) -> LayerRank:
    if not (use.deltas.isfinite().all() and use.weight.isfinite().all()):
        raise AuditError(f"{use.layer}: its weights or the gradient at its output are not finite")
    return convolution_rank(
        use.weight,
        use.deltas[0].flatten(1),
        geometry_of(layer, use.shape[2:], use.weight.device),
        layer.groups,
        method=method,
        flops=flops,
        seed=seed,
    )


def rank_deficiency(ranks: Sequence[Sequence[int]], inputs: Sequence[int]) -> list[float]:
    """c(M) = Σ_i (d − (i−1))/d · (rank U_i − n_i), Chen & Campbell 2021, definition 2.1.

    Args:
        ranks: of each convolution in order of execution, by record.
        inputs: n_i of each convolution.

    Returns:
        c(M) for every record.
    """
    depth = len(inputs)
    return [
        sum(
            (depth - before) / depth * (rank - size)
            for before, (rank, size) in enumerate(zip(column, inputs, strict=True))
        )
        for column in zip(*ranks, strict=True)
    ]
