"""The options of every audit of shared updates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator

from gradaudit.audits.base import AuditOptions
from gradaudit.deployment import LOCAL, Deployment
from gradaudit.errors import UsageError
from gradaudit.sharing.reduction import parse_reduction, reduction_for

if TYPE_CHECKING:
    from gradaudit.defenses import Defense
    from gradaudit.models.target import Layer
    from gradaudit.sharing.protocol import SharingProtocol

RATE = 0.1
"""Learning rate of FedAvg where none is given."""


class ClientOptions(AuditOptions):
    """Options of how clients make the updates that are audited."""

    batch_size: int = Field(1, ge=1, description="Number of records behind a client's update.")
    algorithm: Literal["fedsgd", "fedavg"] = Field(
        "fedsgd",
        description="Update that a client shares: a gradient (fedsgd), or the difference after "
        "local training (fedavg, the default where any option of local training is "
        "given).",
    )
    epochs: int = Field(1, ge=1, description="Number of local epochs of FedAvg.")
    local_steps: int | None = Field(
        None, ge=1, description="Number of local steps of FedAvg, instead of epochs."
    )
    rate: float | None = Field(
        None,
        gt=0,
        description="Learning rate of FedAvg (0.1); with --update OLD,NEW the one between both "
        "checkpoints (unknown).",
    )
    local_batch: int | None = Field(
        None,
        ge=1,
        description="Number of records in a local minibatch of FedAvg (without it "
        "the whole batch).",
    )
    optimizer: Literal["sgd", "adam", "adamw"] = Field(
        "sgd", description="Optimizer of FedAvg's local steps; its state is reset in each round."
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="Momentum of sgd in FedAvg.")
    weight_decay: float = Field(0.01, ge=0, description="Weight decay of adamw in FedAvg.")
    warmup: int = Field(
        0,
        ge=0,
        description="Number of first local steps of FedAvg in which the learning rate rises "
        "linearly to --rate.",
    )
    accumulate: int = Field(
        1,
        ge=1,
        description="Number of local minibatches whose gradients are averaged for one local step "
        "of FedAvg.",
    )
    others: int = Field(
        0,
        ge=0,
        description="Number of other clients' updates that the observed one is averaged with.",
    )

    @model_validator(mode="before")
    @classmethod
    def _local_training_is_fedavg(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.keys().isdisjoint(LOCAL):
            return given
        return {"algorithm": "fedavg", **given}

    @classmethod
    def deployed(cls, deployment: Deployment) -> dict[str, Any]:
        """Read these options from a federation's settings."""
        return deployment.of_updates()

    def seen(self) -> dict[str, Any]:
        """Describe how clients make their updates."""
        return {name: getattr(self, name) for name in ClientOptions.model_fields}

    @property
    def records_behind(self) -> int:
        """The number of records behind one visible update, over all clients in its mean."""
        return self.batch_size * (1 + self.others)

    def steps(self, records: int) -> int:
        """Count the successive gradients that a client with a number of records takes."""
        if self.algorithm == "fedsgd":
            return 1
        steps = self.accumulate * (self.local_steps or 0)
        return steps or self.epochs * ceil(records / (self.local_batch or records))

    def passes(self, records: int) -> float:
        """Count the single-record gradients behind an update of a number of records a client."""
        size = min(self.local_batch or records, records)
        steps = self.steps(records) * size if self.local_steps else self.epochs * records
        return (1 + self.others) * (records if self.algorithm == "fedsgd" else steps)

    def local_passes(self, updates: float, records: int) -> float:
        """Count the gradients of the clients' local training for some updates.

        None with FedSGD, whose updates are means of records' gradients.
        """
        return 0.0 if self.algorithm == "fedsgd" else updates * self.passes(records)

    def sharing(
        self, defenses: tuple[Defense[Any], ...] = (), hidden: tuple[str, ...] = ()
    ) -> SharingProtocol:
        """Make the way of sharing that these options describe.

        Raises:
            UsageError: options contradict each other or the defenses.
        """
        from gradaudit.sharing.protocol import SharingProtocol

        return SharingProtocol(
            defenses=defenses,
            algorithm=self.algorithm,
            epochs=self.epochs,
            rate=self.rate or RATE,
            local_batch=self.local_batch,
            local_steps=self.local_steps,
            optimizer=self.optimizer,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            warmup=self.warmup,
            accumulate=self.accumulate,
            others=self.others,
            hidden=hidden,
        )


class SharingOptions(ClientOptions):
    """Options of how updates are made, and of the part that is visible."""

    batch_size: int = Field(32, ge=1, description="Number of records in a batch.")
    reduce: str | None = Field(
        None,
        description="Reduction of each layer's gradient: none, maxpool:3, maxpool:10, pca:50 or "
        "subset:48 (without it none up to 10,000 elements, else subset:10000, or "
        "subset:2000 where memory is short). pca:50, fitted on the adversary's "
        "records, can hide most of what a layer gives away.",
    )
    fraction: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Share of each layer's elements that is visible, drawn at random.",
    )
    elements: int | None = Field(
        None, ge=1, description="Number of each layer's elements that are visible, drawn at random."
    )

    @field_validator("reduce")
    @classmethod
    def _is_a_reduction(cls, text: str | None) -> str | None:
        try:
            parse_reduction(text)
        except UsageError as error:
            raise ValueError(str(error).partition(": ")[2]) from error
        return text

    def seen(self) -> dict[str, Any]:
        """Describe how clients make their updates, and the part that is visible."""
        return {**super().seen(), "fraction": self.fraction, "elements": self.elements}

    def sharing(
        self, defenses: tuple[Defense[Any], ...] = (), hidden: tuple[str, ...] = ()
    ) -> SharingProtocol:
        """Make the way of sharing of these options, and the part of it that is visible."""
        whole = super().sharing(defenses, hidden)
        return replace(whole, fraction=self.fraction, elements=self.elements)


def reductions(
    layers: Iterable[Layer], sharing: SharingProtocol, reduce: str | None, memory: int
) -> dict[str, str]:
    """Make the reductions of each layer's update before the adversary is fitted.

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
