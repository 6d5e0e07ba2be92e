"""Signs of a malicious server in the model that it sent, layer by layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor

from gradaudit.audits.attack_malicious_server.sensing import (
    LinearMap,
    ModelGradients,
    gradients_of_records,
)
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.models.target import Layer, Target

NEGLIGIBLE = 0.01
"""Share of the mean gain below which a gain counts as none."""
LEAST = 1e-20
"""A residual's norm below which what is carried back may be lost to single precision's range."""
ALIGNED = 0.9
"""Cosine from which two rows ask the same question of what comes in."""
MIDDLE = (0.1, 0.9)
"""Shares of units that a row is active for, between which it can be one of several bins."""
RARE = 0.05
"""Share of units up to which a row is active only rarely."""
FEWEST_INPUTS = 4
"""Inputs of a row, at least: rows of fewer are alike by chance."""
SMALL = 0.05
"""A move of less than this share of a layer's norm counts as one of it."""
FEWEST = 32
"""Records from which on the signs can be distinguished from chance."""
LIMITS = {"bins": 4.0, "traps": 0.4, "starved": 0.3, "concentration": 0.7}
"""What each sign is measured by: no honest round of the simulations came near, and all attacks are
beyond (benchmarks/coverage/malicious_server.py)."""


def starved(norms: Tensor, residuals: Tensor) -> float | None:
    """Compute the share of records whose loss gradient hardly reaches the layer.

    A record's gradient is its residual, the loss's gradient by the outputs, carried back to the
    layer. However well a model has learnt some records, what is carried back of one unit of the
    residual differs by small factors between them. Where the weights of all classes but one are
    taken away, only records of that class carry anything back, and in a batch with one of them the
    update is that record's.

    Source: Y. Wen et al., "Fishing for user data in large-batch federated learning via gradient
    magnification" (2022), sections 3.1 and 3.2.

    Args:
        norms: (records,) ‖g_i‖ of the layer.
        residuals: (records,) norms of the loss's gradient by the outputs.

    Returns:
        The share; None where the loss asks nothing of any record, or the layer has no gradient.
    """
    asked = residuals > LEAST
    gains = norms[asked] / residuals[asked]
    if not len(gains) or not gains.any():
        return None
    return float((gains < NEGLIGIBLE * gains.mean()).double().mean())


def concentration(weight: Tensor) -> float | None:
    """Measure how much one row holds of the last layer's squared norm: 0 where all rows are equal.

    (1 − n/C)/(1 − 1/C) with n = (Σ‖w_c‖²)²/Σ‖w_c‖⁴ rows in effect, of C: 1 where one class has all
    weights, as fishing for a class or for a feature of it has them.

    Args:
        weight: (classes, inputs).

    Returns:
        The share; None of a single row, or where all are zero.
    """
    squares = weight.double().square().sum(dim=1)
    if len(squares) < 2 or not squares.any():
        return None
    effective = squares.sum() ** 2 / squares.square().sum()
    return float((1 - effective / len(squares)) / (1 - 1 / len(squares)))


def bins(active: Tensor, weight: Tensor) -> int | None:
    """Count parallel rows whose sets of active records are nested, as an imprint's bins are.

    Such rows are cumulative bins: what the gradients of two of them differ by is that of the units
    between, and one of several dozen bins holds a single record. Trained layers have rows that
    are alike, or nested, but hardly one after the other that is both: in honest rounds no chain
    had more than 2, where 8 bins give 6 (benchmarks/coverage/malicious_server.py).

    Source: L. Fowl et al., "Robbing the Fed: directly obtaining private data in federated learning
    with modified models" (2022), section 4.

    Args:
        active: (units, rows), whether a unit's loss moves with what the row gives out.
        weight: (rows, inputs).

    Returns:
        The longest chain; None where the rows have too few inputs to be distinguished.
    """
    if weight.shape[1] < FEWEST_INPUTS:
        return None
    share = active.double().mean(dim=0)
    kept = (share >= MIDDLE[0]) & (share <= MIDDLE[1])
    if not kept.any():
        return 0
    order = share[kept].argsort()
    sets, rows = active[:, kept][:, order].double(), weight[kept][order].double()
    # Rows are nested, (rows, rows), where row j's units are some, not all, of row k's.
    sizes, common = sets.sum(dim=0), sets.mT @ sets
    return _longest_chain((common == sizes[:, None]) & (sizes[:, None] < sizes) & _alike(rows))


def _alike(rows: Tensor) -> Tensor:
    directions = torch.nn.functional.normalize(rows, dim=1)
    return directions @ directions.mT >= ALIGNED


def _longest_chain(before: Tensor) -> int:
    """Find the longest chain of nested rows, given in an order that respects nesting."""
    lengths = torch.ones(len(before), dtype=torch.long)
    for row in range(1, len(before)):
        lengths[row] += (lengths[:row] * before[:row, row]).max()
    return int(lengths.max())


def traps(active: Tensor) -> float | None:
    """Compute the share of activated rows that hardly any record activates.

    A row that one record of a batch is active for has that record's input as its gradient. Half of
    what untrained rows see turns them on; trap weights are drawn so that hardly anything does.

    Source: F. Boenisch et al., "When the curious abandon honesty: federated learning is not
    private" (2023), section 5.

    Args:
        active: (units, rows), whether a unit's loss moves with what the row gives out.

    Returns:
        The share; None where no row is active for any unit.
    """
    share = active.double().mean(dim=0)
    live = share[share > 0]
    return float((live <= RARE).double().mean()) if len(live) else None


State = Mapping[str, Tensor]


def moves(before: State, now: State) -> dict[str, float]:
    """Compute ‖w − w₀‖/‖w₀‖ over all parameters of each layer, by the layer's name.

    Parameters that only one of the two has are passed over; a layer that was zero moved by 1.
    """
    layers: dict[str, list[str]] = {}
    for name, tensor in now.items():
        if name in before and before[name].shape == tensor.shape:
            layers.setdefault(name.rpartition(".")[0] or "(model)", []).append(name)
    return {layer: _move(before, now, names) for layer, names in layers.items()}


def _move(before: State, now: State, names: Sequence[str]) -> float:
    old, new = ([state[n].detach().double().cpu() for n in names] for state in (before, now))
    moved = sum(float((b - a).square().sum()) for a, b in zip(old, new, strict=True))
    norm = sum(float(a.square().sum()) for a in old)
    return (moved / norm) ** 0.5 if norm else float(moved > 0)


def times_farther(history: Sequence[State]) -> dict[str, float]:
    """Compare each layer's move in the last round with the move that earlier rounds lead to expect.

    To be expected is the median of the other layers' moves in that round, or the layer's own
    longest move in an earlier one, whichever is longer, and ``SMALL`` at least.

    Args:
        history: the parameters after each round, oldest first; at least two.

    Returns:
        By layer; none for a layer with nothing to compare it with.
    """
    rounds = [moves(before, now) for before, now in pairwise(history)]
    *earlier, last = rounds
    found = {}
    for layer, move in last.items():
        others = [other for name, other in last.items() if name != layer]
        known = [*([median(others)] if others else []), *(r[layer] for r in earlier if layer in r)]
        if known:
            found[layer] = move / max(*known, SMALL)
    return found


@dataclass(frozen=True)
class Signs:
    """Signs of manipulation that were found at one layer.

    Attributes:
        bins: rows that are cumulative bins, see ``imprint.bins``.
        traps: share of rows that hardly any record turns on, see ``imprint.traps``.
        starved: share of records that nothing is heard of, see ``fishing.starved``.
        concentration: how far one class has all weights of the last layer.
        movement: times farther than expected, see ``movement.times_farther``.

    Each is None where such a layer has no such sign, or there is no earlier round.
    """

    bins: float | None = None
    traps: float | None = None
    starved: float | None = None
    concentration: float | None = None
    movement: float | None = None

    @property
    def found(self) -> dict[str, float]:
        """The measurable signs of an imprint or of fishing, by name."""
        values = {name: getattr(self, name) for name in LIMITS}
        return {name: float(value) for name, value in values.items() if value is not None}

    @property
    def strongest(self) -> str | None:
        """Return the sign that exceeds its limit by the largest factor."""
        return max(self.found, key=lambda name: self.found[name] / LIMITS[name], default=None)

    @property
    def score(self) -> float | None:
        """The strongest sign over its limit, 1 or more for crafted models; None without any."""
        if self.strongest is None:
            return None
        return self.found[self.strongest] / LIMITS[self.strongest]


def check(
    target: Target,
    records: Records,
    before: Sequence[State] = (),
    layers: Sequence[Layer] | None = None,
    memory: int = 1 << 28,
) -> dict[str, Signs]:
    """Look for signs of manipulation in a model before training on it.

    Args:
        target: the model that the server sent, with the loss.
        records: some of the client's own, at least ``FEWEST``.
        before: the parameters of earlier rounds, oldest first.
        layers: those looked at; all without.
        memory: bytes that gradients may take.

    Returns:
        By layer, in order.

    Raises:
        NotApplicable: there are too few records, or they have no gradients of their own.
        AuditError: the model cannot be run on the records.
    """
    shown = target.layers if layers is None else layers
    return signs_of(target, gradients_of_records(target, expect(records), shown, memory), before)


def expect(records: Records) -> Records:
    """Return the records; raise a UsageError where they are too few for the check.

    Raises:
        NotApplicable: they are too few.
    """
    if len(records) < FEWEST:
        raise NotApplicable(
            f"{len(records)} records: of fewer than {FEWEST} a model's rows cannot be "
            "distinguished from bins and traps; look at more (--samples, or more data)"
        )
    return records


def signs_of(
    target: Target, senses: ModelGradients, before: Sequence[State] = ()
) -> dict[str, Signs]:
    """Compute every layer's signs from the gradients of single records."""
    weights = {name: p.detach().cpu() for name, p in target.model.named_parameters()}
    moved = times_farther([*before, weights]) if before else {}
    return {
        name: Signs(
            **_of_linear(sensed.linear, head=name == senses.last),
            starved=starved(sensed.norms, senses.residuals),
            movement=moved.get(name),
        )
        for name, sensed in senses.layers.items()
    }


def _of_linear(linear: LinearMap | None, *, head: bool) -> dict[str, float | None]:
    """Compute the signs of a linear layer; the output layer has a sign of its own."""
    if linear is None:
        return {}
    if head:
        return {"concentration": concentration(linear.weight)}
    return {
        "bins": bins(linear.active, linear.weight),
        "traps": traps(linear.active) if linear.positions == 1 else None,
    }
