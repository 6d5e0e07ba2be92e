"""The options of every audit that looks at shared updates of batches, and their reductions.

A reduction is how a gradient is made shorter before a classifier sees it. No torch in here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from gradaudit.audits.base import AuditOptions
from gradaudit.defenses import Defense
from gradaudit.errors import UsageError
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.specs import suggest

if TYPE_CHECKING:
    from gradaudit.models.target import Subject

Kind = Literal["none", "maxpool", "pca", "subset"]
_SIZES: dict[str, int | None] = {"none": None, "maxpool": 3, "pca": 50, "subset": 48}
LARGEST_WHOLE = 10_000
"""Elements up to which a gradient is not reduced, unless it is asked for."""
_SHORT_OF_MEMORY, _FEW = 1 << 29, 2_000
"""Bytes for gradients below which no more elements than so many are kept of a larger one."""


@dataclass(frozen=True)
class Reduction:
    """What is done to each layer's flattened gradient.

    - ``none``: nothing.
    - ``maxpool:k``: the maximum of every k consecutive elements, the last ones with what is left
      (Li et al. 2024, section 5.1.3: 3 for tables, 10 for other data).
    - ``pca:n``: the first n principal components of the adversary's records' gradients.
    - ``subset:n``: n elements at random, the same in every gradient.

    Attributes:
        kind: which.
        size: its number (0 for ``none``).
    """

    kind: Kind = "none"
    size: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.size}" if self.size else self.kind

    @property
    def linear(self) -> bool:
        """Whether the reduced mean of gradients is the mean of the reduced ones."""
        return self.kind != "maxpool"

    def features(self, elements: int) -> int:
        """At most how many features it makes of so many elements."""
        if self.kind == "maxpool":
            return -(-elements // self.size)
        return min(self.size, elements) if self.size else elements


def parse_reduction(text: str | None, option: str = "--reduce") -> Reduction | None:
    """The reduction that ``none``, ``maxpool:3``, ``pca:50`` or ``subset:48`` names.

    Args:
        text: as on the command line; None leaves it to ``reduction_for``.
        option: what error messages call it.

    Raises:
        UsageError: there is no such reduction, or its number is no positive whole one.
    """
    if text is None:
        return None
    kind, colon, size = text.partition(":")
    if kind not in _SIZES:
        raise UsageError(
            f"{option} {text}: no such reduction{suggest(kind, _SIZES)}; there are: "
            "none, maxpool:3, maxpool:10, pca:50, subset:48"
        )
    default = _SIZES[kind]
    if default is None:
        if colon:
            raise UsageError(f"{option} {text}: none takes no number")
        return Reduction()
    if colon and not (size.isascii() and size.isdigit() and int(size) > 0):
        raise UsageError(f"{option} {text}: write a positive whole number, as {kind}:{default}")
    return Reduction(kind, int(size) if colon else default)  # type: ignore[arg-type]


def reduction_for(
    elements: int, asked: Reduction | None, memory: int = _SHORT_OF_MEMORY
) -> Reduction:
    """What is asked for; else nothing up to 10,000 elements and a random 10,000 of them above.

    A forest finds what single elements tell, and components hide it: of two face data sets' fc1,
    ``subset:10000`` had an AUROC of .805 and .809 where ``pca:50`` had .625 and .706, and all
    elements .801 and .793.

    Args:
        elements: of the gradient.
        asked: what the user wants, or None.
        memory: bytes that gradients may take; below 512 MiB a random 2,000 are kept.
    """
    if asked is not None:
        return asked
    if elements <= LARGEST_WHOLE:
        return Reduction()
    return Reduction("subset", LARGEST_WHOLE if memory >= _SHORT_OF_MEMORY else _FEW)


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
