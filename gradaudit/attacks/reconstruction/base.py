"""What a reconstruction attack is: a view of what was shared in, candidates for the records out."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, JsonValue
from torch import Tensor

from gradaudit.attacks.reconstruction.view import AttackerView
from gradaudit.progress import Progress


class ReconstructionOptions(BaseModel):
    """Base of an attack's options, ``NAME:key=value,…`` on the command line."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Candidates:
    """What an attack came up with, one candidate batch a restart.

    Attributes:
        inputs: (restarts, k, …) the records.
        labels: (restarts, k) int64 classes or (restarts, k, …) real targets; None where the attack
            neither knew nor found them.
        scores: (restarts,) the attacker's own measure of how well a candidate explains what was
            shared, lower is better; NaN or infinite where a restart came to nothing.
        diverged: (restarts,) restarts that left the finite numbers; their inputs mean nothing.
        details: what the report should say of this attack (ranks, condition numbers, bounds, …).
    """

    inputs: Tensor
    labels: Tensor | None
    scores: Tensor
    diverged: Tensor
    details: dict[str, JsonValue] = field(default_factory=dict)

    @property
    def usable(self) -> Tensor:
        """(restarts,) those that ended with finite records and a finite score."""
        finite = self.inputs.flatten(1).isfinite().all(dim=1)
        return finite & self.scores.isfinite() & ~self.diverged

    @property
    def finite(self) -> Tensor:
        """The records, NaN in restarts that are not usable."""
        usable = self.usable.reshape(-1, *(1,) * (self.inputs.dim() - 1))
        return torch.where(usable, self.inputs, torch.nan)

    @property
    def answer(self) -> int | None:
        """The restart that the attacker hands in, by its own score; None where all diverged."""
        if not bool(self.usable.any()):
            return None
        return int(self.scores.masked_fill(~self.usable, torch.inf).argmin())


O = TypeVar("O", bound=ReconstructionOptions)  # noqa: E741 - O for options


class Reconstruction(ABC, Generic[O]):
    """One attack. The class docstring carries the method and the citation."""

    name: ClassVar[str]
    summary: ClassVar[str]
    Options: ClassVar[type[ReconstructionOptions]] = ReconstructionOptions
    restarts: ClassVar[bool] = True
    """Whether another start can end elsewhere; an attack in closed form is run once."""
    splits: ClassVar[bool] = False
    """Whether ``run`` can share restarts out among worker processes."""
    default_steps: ClassVar[int | None] = None
    """Of ``iterations`` where it is an option: how many there are by default."""
    reads_labels: ClassVar[bool] = False
    """Whether it reads the labels off the update, which costs no step."""
    searches_labels: ClassVar[bool] = False
    """Whether labels are unknowns as records are, and no answer tells one without the other."""

    def __init__(self, options: O) -> None:
        self.options = options

    @abstractmethod
    def run(
        self,
        view: AttackerView,
        restarts: int,
        generator: torch.Generator,
        progress: Progress,
        jobs: int = 1,
    ) -> Candidates:
        """Reconstruct the records behind an update.

        Args:
            view: everything that the attacker has; the truth is not in it.
            restarts: how many starting points; 1 where ``restarts`` of the class is False.
            generator: of all randomness, on the CPU.
            progress: who is told how far the work is.
            jobs: worker processes that restarts may be shared out among; no number depends on
                them.

        Raises:
            NotApplicable: the attack says nothing about this model or update; the message says
                why.
        """

    def steps(self, restarts: int) -> float:
        """About how many gradient passes over the batch ``run`` costs; for ``--dry-run``."""
        return float(restarts)

    def calls(self) -> float:
        """About how many of them wait for one another, each with the model's overhead."""
        return 1.0
