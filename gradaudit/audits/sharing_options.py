"""The options of every audit that looks at shared updates of batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from gradaudit.audits.base import AuditOptions
from gradaudit.errors import UsageError
from gradaudit.sharing.reduction import parse_reduction, reduction_for

if TYPE_CHECKING:
    from gradaudit.defenses import Defense
    from gradaudit.defenses.subject import Subject
    from gradaudit.models.target import Layer
    from gradaudit.sharing.protocol import SharingProtocol


class SharingOptions(AuditOptions):
    """How updates are made and what of them is seen."""

    batch_size: int = Field(32, ge=1, description="Records in a batch.")
    reduce: str | None = Field(
        None,
        description="none, maxpool:3, maxpool:10, pca:50 or subset:48 of each layer's gradient; "
        "by default none up to 10,000 elements, else subset:10000 (subset:2000 where memory is "
        "short). pca:50, fitted on the adversary's records, can hide most of what a layer tells.",
    )
    algorithm: Literal["fedsgd", "fedavg"] = Field(
        "fedsgd", description="Share a gradient, or the difference after local training."
    )
    epochs: int = Field(1, ge=1, description="Local epochs of FedAvg.")
    rate: float = Field(0.1, gt=0, description="Learning rate of FedAvg.")
    local_batch: int | None = Field(
        None, ge=1, description="Records in a local minibatch of FedAvg (the whole batch)."
    )
    others: int = Field(
        0, ge=0, description="Other clients' updates that the observed one is averaged with."
    )
    fraction: float | None = Field(
        None, gt=0, le=1, description="Share of each layer's elements that is visible, at random."
    )
    elements: int | None = Field(
        None, ge=1, description="Number of each layer's elements that are visible, at random."
    )

    @field_validator("reduce")
    @classmethod
    def _is_a_reduction(cls, text: str | None) -> str | None:
        try:
            parse_reduction(text)
        except UsageError as error:
            raise ValueError(str(error).partition(": ")[2]) from error
        return text

    def sharing(
        self, defenses: tuple[Defense[Any], ...] = (), hidden: tuple[str, ...] = ()
    ) -> SharingProtocol:
        """How clients share under these options.

        Raises:
            UsageError: options contradict each other or the defenses.
        """
        from gradaudit.sharing.protocol import SharingProtocol

        return SharingProtocol(
            defenses=defenses,
            algorithm=self.algorithm,
            epochs=self.epochs,
            rate=self.rate,
            local_batch=self.local_batch,
            others=self.others,
            fraction=self.fraction,
            elements=self.elements,
            hidden=hidden,
        )


def features_of(subject: Subject, reduce: str | None) -> list[int]:
    """How many features each layer's update is reduced to."""
    asked = parse_reduction(reduce)
    sizes = [layer.parameters for layer in subject.layers]
    return [reduction_for(size, asked).features(size) for size in sizes]


def reductions(
    layers: Iterable[Layer], sharing: SharingProtocol, reduce: str | None, memory: int
) -> dict[str, str]:
    """What each layer's update is reduced by before anybody learns from it.

    Args:
        layers: those looked at.
        sharing: tells how many elements of a layer are visible.
        reduce: as on the command line.
        memory: bytes that gradients may take.
    """
    asked = parse_reduction(reduce)
    return {
        layer.name: str(reduction_for(sharing.visible(layer.parameters), asked, memory))
        for layer in layers
    }
