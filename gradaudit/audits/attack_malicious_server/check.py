"""Signs of a malicious server in the model that it sent, layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradaudit.audits.attack_malicious_server.fishing import concentration, starved
from gradaudit.audits.attack_malicious_server.imprint import bins, traps
from gradaudit.audits.attack_malicious_server.movement import State, times_farther
from gradaudit.audits.attack_malicious_server.sensing import (
    LinearMap,
    ModelGradients,
    gradients_of_records,
)
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.models.target import Layer, Target

FEWEST = 32
"""Records of which the signs can be told from chance."""
LIMITS = {"bins": 4.0, "traps": 0.4, "starved": 0.3, "concentration": 0.7}
"""What each sign is measured by: no honest round of the simulations came near, and all attacks are
beyond (benchmarks/malicious_server.py)."""


@dataclass(frozen=True)
class Signs:
    """Signs of manipulation that were found at one layer.

    Attributes:
        bins: rows that are cumulative bins, see ``imprint.bins``.
        traps: share of rows that hardly any record turns on, see ``imprint.traps``.
        starved: share of records that nothing is heard of, see ``fishing.starved``.
        concentration: how far one class has all weights of the last layer.
        movement: times farther than expected, see ``movement.times_farther``.

    Each is None where it cannot be told of such a layer, or there is no earlier round.
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
        """The sign that is largest against its limit."""
        return max(self.found, key=lambda name: self.found[name] / LIMITS[name], default=None)

    @property
    def score(self) -> float | None:
        """The strongest sign over its limit: 1 and more is no honest model's; None without any."""
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
    """Look a model over before training on what arrived.

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
    """The records, if they are enough.

    Raises:
        NotApplicable: they are too few.
    """
    if len(records) < FEWEST:
        raise NotApplicable(
            f"{len(records)} records: of fewer than {FEWEST} a model's rows cannot be told from "
            "bins and traps; look at more (--samples, or more data)"
        )
    return records


def signs_of(
    target: Target, senses: ModelGradients, before: Sequence[State] = ()
) -> dict[str, Signs]:
    """The signs in what was sensed of the records."""
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
    """Of the layer that gives the outputs, another sign than of those below it."""
    if linear is None:
        return {}
    if head:
        return {"concentration": concentration(linear.weight)}
    return {
        "bins": bins(linear.active, linear.weight),
        "traps": traps(linear.active) if linear.positions == 1 else None,
    }
