"""How a client turns a batch of records into what the adversary sees."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from gradaudit.defenses import Chain, Defense
from gradaudit.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

Algorithm = Literal["fedsgd", "fedavg"]


@dataclass(frozen=True)
class SharingProtocol:
    """How an update is made, defended, mixed with others and seen.

    Attributes:
        defenses: applied in order to each client's update.
        algorithm: ``fedsgd`` shares the gradient of the batch's mean loss; ``fedavg`` the
            difference (w_0 − w_E)/rate that E local epochs of SGD make.
        epochs: local epochs E of FedAvg.
        rate: learning rate of FedAvg.
        local_batch: records in a local minibatch of FedAvg; None is the whole batch.
        others: how many other clients' updates the target's is averaged with, each on as many
            records (Mo et al. 2022, V-D).
        fraction: share of each layer's elements that is visible, at random (Mo et al. 2022, V-E).
        elements: number of each layer's elements that are visible (Mo et al. 2021: 48).
        hidden: names of layers that are never shared; they count in no norm.
    """

    defenses: tuple[Defense[Any], ...] = ()
    algorithm: Algorithm = "fedsgd"
    epochs: int = 1
    rate: float = 0.1
    local_batch: int | None = None
    others: int = 0
    fraction: float | None = None
    elements: int | None = None
    hidden: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.fraction is not None and self.elements is not None:
            raise UsageError("--fraction and --elements: give one of them, not both")
        if self.algorithm == "fedavg":
            for defense in self.chain.acting:
                if defense.of_records:
                    raise UsageError(
                        f"--defense {defense}: single records cannot be clipped in FedAvg's "
                        "update, which is no mean over them; use per=release"
                    )

    @cached_property
    def chain(self) -> Chain:
        """The defenses, as they act on updates."""
        return Chain(self.defenses)

    def visible(self, elements: int) -> int:
        """How many of a layer's elements are visible."""
        if self.fraction is not None:
            return max(1, round(self.fraction * elements))
        return elements if self.elements is None else min(self.elements, elements)

    def parameters(self, model: nn.Module) -> tuple[str, ...]:
        """The parameters whose update is shared: trainable, and of no hidden layer.

        Raises:
            UsageError: the defenses cannot be applied to them.
        """
        from gradaudit.models.target import layers_of, shared_parameters

        names = shared_parameters(model, self.hidden)
        if not names:
            every = [layer.name for layer in layers_of(model)]
            raise UsageError(f"nothing is shared: all layers are hidden ({', '.join(every)})")
        self.chain.check(names)
        return names
