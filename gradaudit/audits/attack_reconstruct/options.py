"""Options of attacks on clients' own updates, declared without importing torch."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator

from gradaudit.audits.base import methods_at_commas
from gradaudit.audits.sharing_options import ClientOptions
from gradaudit.core.parts import offered

if TYPE_CHECKING:
    from gradaudit.subject import Subject

AUTOMATIC = ("closed-form", "dlg")
AUTOMATIC_ITERATIONS = 10
_FLAGS = (
    "objective", "tv", "box", "optimiser", "iterations", "learning_rate", "decay", "init",
    "adaptive", "precision",
)  # fmt: skip
"""Options of methods; all but the learning rate, their ``rate``, by the name that methods use."""

PACKAGE = "gradaudit.attacks.reconstruction"


def names_in_words() -> str:
    """The names of the reconstruction attacks: A, B or C."""
    *names, last = offered(PACKAGE)
    return f"{', '.join(names)} or {last}"


def default_steps_in_words() -> str:
    """How many steps attacks take by default: 300 for A and B, 2400 for C."""
    by_steps: dict[int, list[str]] = defaultdict(list)
    for name, attack in offered(PACKAGE).items():
        if (steps := attack.get("default_steps")) is not None:
            by_steps[steps].append(name)
    return ", ".join(
        f"{steps} for {' and '.join(names)}" for steps, names in sorted(by_steps.items())
    )


class AttackOptions(ClientOptions):
    """Options that reconstruction, membership and tracing share."""

    tuned: ClassVar = frozenset(_FLAGS) - {"iterations"}

    restarts: int = Field(
        4, ge=1, le=10_000, description="Number of starting points of each attack."
    )
    iterations: int | None = Field(
        None,
        ge=1,
        description="Number of the optimiser's steps; an L-BFGS step has up to 20 inner "
        f"iterations ({default_steps_in_words()}; {AUTOMATIC_ITERATIONS} where no "
        "method is named).",
    )
    objective: Literal["l2", "cosine"] | None = Field(
        None, description="Distance between updates that is minimised."
    )
    tv: float | None = Field(None, ge=0, description="Weight of the total variation of pictures.")
    box: bool | None = Field(
        None, description="Clip the candidate records to the known range of values."
    )
    optimiser: Literal["lbfgs", "adam", "signed-adam"] | None = Field(
        None, description="Optimiser of the candidate records."
    )
    learning_rate: float | None = Field(
        None, gt=0, description="Learning rate of the Adam optimiser."
    )
    decay: bool | None = Field(None, description="Reduce Adam's learning rate along half a cosine.")
    init: Literal["normal", "uniform", "pattern"] | None = Field(
        None, description="Distribution of the starting records."
    )
    adaptive: bool | None = Field(
        None, description="Compare only the update's elements that a defense did not set to zero."
    )
    precision: Literal["float32", "float64"] | None = Field(
        None, description="Floating-point precision of the attack."
    )

    def flags(self, *, named: bool) -> dict[str, Any]:
        """The methods' options that are set, by the methods' parameter names.

        Args:
            named: whether the user chose the methods; else they get few iterations.
        """
        given = {{"learning_rate": "rate"}.get(f, f): getattr(self, f) for f in _FLAGS}
        flags = {name: value for name, value in given.items() if value is not None}
        return flags if named else {"iterations": AUTOMATIC_ITERATIONS, **flags}


class UpdateOptions(ClientOptions):
    """The choice of the updates that are attacked."""

    batches: int = Field(
        4, ge=1, description="Number of updates to attack; --samples only lowers it."
    )
    records: tuple[int, ...] = Field(
        (),
        description="Numbers, from 0, of the data set's records that make the attacked batch, "
        "as in 3,14; with --update, of the records behind that update, against "
        "which the attack is scored.",
    )
    update: str | None = Field(
        None,
        description="Captured update to attack: a file of gradients (safetensors or a state "
        "dict), or two checkpoints OLD,NEW.",
    )
    every_round: bool = Field(False, description="Attack every checkpoint, not only the newest.")

    @field_validator("records", "given", mode="before", check_fields=False)
    @classmethod
    def _apart(cls, records: Any) -> Any:
        """Split texts such as ``1,2`` into numbers."""
        texts = [records] if isinstance(records, str) else records
        if not isinstance(texts, list | tuple):
            return records
        parts = [text.split(",") if isinstance(text, str) else [text] for text in texts]
        return [number for part in parts for number in part]

    @field_validator("records", "given", check_fields=False)
    @classmethod
    def _counted(cls, records: tuple[int, ...]) -> tuple[int, ...]:
        if any(record < 0 for record in records):
            raise ValueError("records are counted from 0")
        return records

    def count(self, subject: Subject) -> int:
        """Estimate how many updates will be attacked."""
        rounds = self.rounds(len(subject.targets))
        if self.update is not None:
            return rounds
        return rounds * (len(self.records) // self.records_behind or self.drawn(subject.samples))

    def rounds(self, checkpoints: int) -> int:
        """The number of attacked updates of each batch."""
        return checkpoints if self.every_round else 1

    def drawn(self, samples: int | None) -> int:
        """How many updates are made of records that are drawn."""
        if samples is None:
            return self.batches
        return max(1, min(self.batches, samples // self.records_behind))


class BatchOptions(AttackOptions, UpdateOptions):
    """How methods attack which updates."""


class RoundsOptions(UpdateOptions):
    """Whether the updates that one batch makes in several rounds are attacked together."""

    joint_rounds: bool = Field(
        False,
        description="Attack the updates that the same batch makes at all checkpoints together, "
        "as of a client whose batch is the same in every round.",
    )

    def rounds(self, checkpoints: int) -> int:
        """The number of updates that are attacked for each batch; joint rounds count each."""
        if not self.joint_rounds:
            return super().rounds(checkpoints)
        return checkpoints * (2 if self.every_round else 1)


class ReconstructOptions(BatchOptions, RoundsOptions):
    """Options of the reconstruction audit."""

    method: tuple[str, ...] = Field(
        (),
        description=f"Attack that rebuilds records: {names_in_words()}, with options as "
        "NAME:key=value,…; repeat it, or use commas, to compare several (without it closed-form "
        "where that applies, and dlg).",
    )
    _methods = field_validator("method", mode="before")(methods_at_commas)
    known_labels: bool = Field(False, description="Give the labels to the attacker.")
    solved: int = Field(
        36,
        ge=1,
        description="Number of updates that attacks without an optimiser solve, where --batches "
        "are fewer: of 36, none rebuilt excludes that one in ten is.",
    )
    success: float = Field(
        0.1, gt=0, description="Largest relative error at which a restart counts as a success."
    )
    save_examples: Path | None = Field(
        None, description="Folder for pictures of originals beside reconstructions (private data)."
    )
