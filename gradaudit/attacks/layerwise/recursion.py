"""From the end of a chain to the record: one layer after another is solved for its input.

Chen & Campbell 2021, algorithm 1, eq. 2, 3 and 10; Zhu & Blaschko 2021, algorithm 1. What differs
between attacks is how a convolution is solved.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gradaudit.attacks.layerwise.activations import Activation, inside
from gradaudit.attacks.layerwise.chain import Chain, Stage
from gradaudit.attacks.layerwise.logits import LastLayer, fully_connected_input
from gradaudit.attacks.layerwise.systems import System, system_of


@dataclass(frozen=True)
class Given:
    """What is known of a convolution when it is to be solved for its input.

    Attributes:
        stage: the convolution.
        system: U and V.
        before: the activation that its input went through.
        previous: the stage before it, None for the first one.
    """

    stage: Stage
    system: System
    before: Activation
    previous: Stage | None


@dataclass(frozen=True)
class Solved:
    """One layer's input, as it was solved for.

    Attributes:
        layer: its name.
        x: (inputs,) the input.
        z: (inputs,) what the activation before it was applied to; None: to be inverted.
        residual: ‖U x − V‖ / ‖V‖, NaN for a fully connected layer.
        iterations: of the solver.
        outside: share of x that no value of the activation before it can be.
        determined: whether the layer's equations have one solution, however it is sought; None
            where that was not asked.
    """

    layer: str
    x: Tensor
    z: Tensor | None = None
    residual: float = float("nan")
    iterations: int = 0
    outside: float = 0.0
    determined: bool | None = None


class Solver(ABC):
    """How a convolution is solved for its input."""

    @abstractmethod
    def solve(self, given: Given) -> Solved:
        """The input of a convolution."""


def unroll(
    chain: Chain, update: Mapping[str, Tensor], last: LastLayer, solver: Solver
) -> list[Solved]:
    """Every layer's input, the last layer's first, so that the record comes last.

    Args:
        chain: the network.
        update: gradients by parameter name.
        last: what happened at the last layer.
        solver: of convolutions.

    Raises:
        NotApplicable: a gradient is zero where it is needed, or a system is too large.
    """
    stages = chain.stages
    solved = [_read(chain, len(stages) - 1, last.x)]
    delta = last.delta
    for number in reversed(range(len(stages) - 1)):
        stage = stages[number]
        z = solved[-1].z
        z = stage.activation.inverse(solved[-1].x) if z is None else z
        delta = stages[number + 1].transposed(delta) * stage.activation.slope(z)
        solved.append(_solve(chain, number, z, delta, update, solver))
    return solved


def record_of(chain: Chain, solved: list[Solved]) -> Tensor:
    """The record, in its shape."""
    first = solved[-1]
    x = chain.entrance.inverse(first.x) if first.z is None else first.z
    return x.reshape(chain.input_shape)


def _solve(
    chain: Chain,
    number: int,
    z: Tensor,
    delta: Tensor,
    update: Mapping[str, Tensor],
    solver: Solver,
) -> Solved:
    stage = chain.stages[number]
    gradient = update[stage.weight_name]
    if stage.convolution is None:
        shared = update.get(stage.bias_name or "")
        x = fully_connected_input(gradient, delta if shared is None else shared)
        return _read(chain, number, x)
    system = system_of(stage, z - stage.offset, delta, gradient)
    previous = chain.stages[number - 1] if number else None
    before = previous.activation if previous else chain.entrance
    return solver.solve(Given(stage, system, before, previous))


def _read(chain: Chain, number: int, x: Tensor) -> Solved:
    """A fully connected layer's input: every row of its gradient tells it."""
    before = chain.stages[number - 1].activation if number else chain.entrance
    outside = share_outside(before, x)
    return Solved(chain.stages[number].layer, x, outside=outside, determined=True)


def share_outside(activation: Activation, x: Tensor) -> float:
    """Share of elements that lie outside of an activation's range."""
    return 1 - float(inside(activation, x).double().mean())
