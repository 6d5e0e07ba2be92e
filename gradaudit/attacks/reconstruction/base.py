"""Base class of reconstruction attacks: from the attacker's view to candidate records."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, JsonValue
from torch import Tensor

from gradaudit.core.parts import source_line
from gradaudit.core.randomness import Seed, torch_rng
from gradaudit.core.specs import configured
from gradaudit.data.records import Feature
from gradaudit.errors import AuditError, UsageError
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.progress import Progress, Silent
from gradaudit.sharing.protocol import LocalTraining, mean_update

Update = dict[str, Tensor]
"""A shared update by parameter name, in the shapes of the parameters."""


SharedUpdate = Mapping[str, Tensor] | Sequence[Tensor]
"""An update by parameter name, or in the order of the model's parameters."""


class Attackable(Protocol):
    """A target that an attack is called with; it makes the attacker's view of an update."""

    def view(
        self, update: SharedUpdate, *, batch: int = 1, labels: Tensor | None = None
    ) -> "AttackerView":
        """The attacker's view of an update of so many records."""
        ...


@dataclass(frozen=True)
class AttackerView:
    """An update as the attacker has it before them.

    The truth is not in it: attacks cannot look, and only the audit scores.

    Attributes:
        model: the shared model as a pure function, all its parameters and buffers; in the
            precision that the attack computes in.
        update: what was shared, by parameter; a parameter that is not in it was hidden.
        batch: k, how many records are behind the update.
        shape: of one record.
        classes: number of classes, 0 where targets are real numbers.
        label_shape: of one record's target, or of the positions that have a class each.
        discrete: whether records are whole numbers.
        looked_up: whether some of their numbers are looked up in a table, as tokens and codes are.
        labels: the batch's labels where the attacker knows them, in any order.
        bounds: smallest and largest value of an input where the attacker knows them, as for
            pictures in [0, 1].
        training: local training between the model and the update; None for a plain gradient.
        clients: parts of the records whose updates' mean was shared, where that is not the update
            of all of them.
        length_known: whether the update is known, or its direction alone.
        columns: of a table, each with its name, its positions in a record, its range of numbers
            or the values of its one-hot group; empty for other records.
        earlier: views of the updates that the same records made in earlier rounds, oldest first.
        knowledge: all of this in words, for the report.

    Example:
        A fully connected layer's gradient over its bias's gradient is the record.

        >>> import torch
        >>> from torch import nn
        >>> from gradaudit import Target
        >>> inputs, labels = torch.eye(4), torch.arange(4) % 3
        >>> target = Target(nn.Linear(4, 3), (inputs, labels))
        >>> view = target.view(target.update(inputs[:1], labels[:1]))
        >>> view.batch, view.shape, view.classes, view.visible
        (1, (4,), 3, ('weight', 'bias'))
        >>> [(name, tuple(part.shape)) for name, part in view.update.items()]
        [('weight', (3, 4)), ('bias', (3,))]
        >>> record = view.update["weight"][0] / view.update["bias"][0]
        >>> [round(value, 6) for value in record.tolist()]
        [1.0, 0.0, 0.0, 0.0]
        >>> again = view.simulated(record[None], labels[:1])  # the update of this candidate
        >>> bool(torch.allclose(again["weight"], view.update["weight"]))
        True
    """

    model: FunctionalModel
    update: Update
    batch: int
    shape: tuple[int, ...]
    classes: int = 0
    label_shape: tuple[int, ...] = ()
    discrete: bool = False
    looked_up: bool = False
    labels: Tensor | None = None
    bounds: tuple[float, float] | None = None
    training: LocalTraining | None = None
    clients: int = 1
    length_known: bool = True
    columns: tuple[Feature, ...] = ()
    earlier: "tuple[AttackerView, ...]" = ()
    knowledge: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def one_hot_groups(self) -> tuple[tuple[int, ...], ...]:
        """Positions of each column of categories that is encoded as a one-hot group."""
        return tuple(c.positions for c in self.columns if c.values and not c.coded)

    @property
    def visible(self) -> tuple[str, ...]:
        """Names of the parameters whose update was shared."""
        return tuple(self.update)

    @property
    def rounds(self) -> "tuple[AttackerView, ...]":
        """The view of each round by itself, the newest first."""
        return (replace(self, earlier=()), *self.earlier) if self.earlier else (self,)

    def in_precision(
        self, dtype: torch.dtype, device: torch.device | None = None
    ) -> "AttackerView":
        """Convert the view to another precision, and move it to a device if one is given."""
        device = device or self.model.device
        if (dtype, device) == (self.dtype, self.model.device):
            return self
        parameters, constants, update = (
            {n: t.to(device, dtype if t.is_floating_point() else t.dtype) for n, t in part.items()}
            for part in (self.model.parameters, self.model.constants, self.update)
        )
        model = replace(
            self.model, parameters=parameters, constants=constants, dtype=dtype, device=device
        )
        earlier = tuple(view.in_precision(dtype, device) for view in self.earlier)
        return replace(self, model=model, update=update, earlier=earlier)

    @property
    def pictures(self) -> bool:
        """Whether a record is a picture: channels, height and width."""
        return len(self.shape) == 3 and self.shape[0] in (1, 3)

    @property
    def elements(self) -> int:
        """Unknown numbers in the records of the batch."""
        return self.batch * prod(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The precision that the attack computes in."""
        return self.model.dtype

    def simulated(self, inputs: Tensor, targets: Tensor, *, taped: bool = False) -> Update:
        """The visible update that these records would have caused; differentiable in both.

        Args:
            inputs: (k, …) records.
            targets: (k,) classes, or real or soft targets, as ``Loss.per_record`` takes them.
            taped: record it for ``torch.autograd``, which is faster for a single candidate, and
                cannot be used inside ``torch.func``.
        """
        parts = zip(inputs.chunk(self.clients), targets.chunk(self.clients), strict=True)
        return mean_update([self._of_client(x, y, taped=taped) for x, y in parts])

    def _of_client(self, inputs: Tensor, targets: Tensor, *, taped: bool) -> Update:
        differentiate = self._taped_gradient if taped else self._gradient
        start = self.model.parameters
        if self.training is None:
            return differentiate(start, self.visible, inputs, targets)
        everything = tuple(start)

        def gradient(weights: Update, rows: slice) -> Update:
            return differentiate(weights, everything, inputs[rows], targets[rows])

        update = self.training.update(start, self.training.batches(len(inputs)), gradient)
        return {name: update[name] for name in self.visible}

    def _gradient(
        self, weights: Mapping[str, Tensor], names: tuple[str, ...], inputs: Tensor, targets: Tensor
    ) -> Update:
        def loss(chosen: Update) -> Tensor:
            return self.model.batch_loss({**weights, **chosen}, inputs, targets)

        update: Update = torch.func.grad(loss)({name: weights[name] for name in names})
        return update

    def _taped_gradient(
        self, weights: Mapping[str, Tensor], names: tuple[str, ...], inputs: Tensor, targets: Tensor
    ) -> Update:
        with torch.enable_grad():
            chosen = {
                n: w if w.requires_grad else w.detach().requires_grad_()
                for n, w in ((name, weights[name]) for name in names)
            }
            loss = self.model.batch_loss({**weights, **chosen}, inputs, targets)
            parts = list(chosen.values())
            gradients = torch.autograd.grad(
                loss, parts, create_graph=True, allow_unused=True, materialize_grads=True
            )
        return dict(zip(names, gradients, strict=True))

    def clipped(self, inputs: Tensor) -> Tensor:
        """Inputs inside the known range of values; as they are where none is known."""
        return inputs if self.bounds is None else inputs.clamp(*self.bounds)

    def rounded(self, inputs: Tensor) -> Tensor:
        """Round the one-hot groups of records (…, columns) to their largest element."""
        records = inputs.clone()
        for positions in map(list, self.one_hot_groups):
            group = inputs[..., positions]
            largest = F.one_hot(group.nan_to_num().argmax(dim=-1), len(positions)).to(group)
            records[..., positions] = torch.where(group.isfinite(), largest, group)
        return records


class ReconstructionOptions(BaseModel):
    """Base of an attack's options, ``NAME:key=value,…`` on the command line."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Candidates:
    """Candidate batches of an attack, one for each restart; each tensor on any device.

    Attributes:
        inputs: (restarts, k, …) the records.
        labels: (restarts, k) int64 classes or (restarts, k, …) real targets; None where the attack
            neither knew nor found them.
        scores: (restarts,) the attacker's own measure of how well a candidate explains what was
            shared, lower is better; NaN or infinite where a restart came to nothing.
        diverged: (restarts,) restarts that left the finite numbers; their inputs mean nothing.
        details: what the report should say of this attack (ranks, condition numbers, bounds, …).
        certainty: (restarts, k) the probability that the attacker itself gives each record of being
            right, which the report has as ``certainty``; None where it gives none.
    """

    inputs: Tensor
    labels: Tensor | None
    scores: Tensor
    diverged: Tensor
    details: dict[str, JsonValue] = field(default_factory=dict)
    certainty: Tensor | None = None

    @property
    def usable(self) -> Tensor:
        """Which restarts ended with finite records and a finite score, (restarts,)."""
        finite = self.inputs.flatten(1).isfinite().all(dim=1)
        scored = self.scores.isfinite() & ~self.diverged.to(self.scores.device)
        return finite & scored.to(finite.device)

    @property
    def finite(self) -> Tensor:
        """The records, NaN in restarts that are not usable."""
        usable = self.usable.reshape(-1, *(1,) * (self.inputs.dim() - 1))
        return torch.where(usable, self.inputs, torch.nan)

    @property
    def records(self) -> Tensor | None:
        """The records of the answer, (k, …); None where all restarts diverged."""
        return None if self.answer is None else self.inputs[self.answer]

    @property
    def answer(self) -> int | None:
        """The restart that the attacker hands in, by its own score; None where all diverged."""
        usable = self.usable.to(self.scores.device)
        if not bool(usable.any()):
            return None
        return int(self.scores.masked_fill(~usable, torch.inf).argmin())


@dataclass(frozen=True)
class Execution:
    """The execution of an attack: its seed and progress.

    Attributes:
        seed: of all random numbers.
        progress: shows how far the work is.
    """

    seed: Seed = 0
    progress: Progress = field(default_factory=Silent)

    def generator(self) -> torch.Generator:
        """The generator, on the CPU, of everything that an attack draws."""
        return torch_rng(self.seed, "start")


O = TypeVar("O", bound=ReconstructionOptions)  # noqa: E741 - O for options


class Reconstruction(ABC, Generic[O]):
    """One attack. The class docstring carries the method and the citation."""

    name: ClassVar[str]
    summary: ClassVar[str]
    Options: ClassVar[type[ReconstructionOptions]] = ReconstructionOptions
    restarts: ClassVar[bool] = True
    """Whether another start can end elsewhere; an attack in closed form is run once."""
    default_steps: ClassVar[int | None] = None
    """The default of ``iterations``, where that is an option."""
    reads_labels: ClassVar[bool] = False
    """Whether it reads the labels off the update, which costs no step."""
    solves_for_numbers: ClassVar[bool] = False
    """Whether records of tokens have nothing that it could find."""
    searches_labels: ClassVar[bool] = False
    """Whether labels are unknowns as records are, so that an answer names both or neither."""

    def __init__(self, options: O | None = None, /, *, restarts: int = 8, **values: Any) -> None:
        """An attack with options.

        Args:
            options: all of them, or none where they are given by name.
            restarts: how many starting points a call takes, where another can end elsewhere.
            values: options by name; the others have their defaults.

        Raises:
            UsageError: an option that it does not take, or a value out of range.
        """
        if restarts < 1:
            raise UsageError(f"{type(self).__name__}: restarts={restarts}: takes 1 or more")
        self.starts = restarts if self.restarts else 1
        self.options: O = options or configured(self.Options, type(self).__name__, values)  # type: ignore[assignment]

    def __call__(
        self,
        target: Attackable,
        update: SharedUpdate,
        *,
        batch: int = 1,
        labels: Tensor | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Candidates:
        """Reconstruct the records behind an update: the one signature of every attack.

        Args:
            target: the shared model, as the attacker has it; ``gradaudit.Target`` is one. Of its
                records an attack gets the shape and the range of pictures, nothing else.
            update: the shared gradient, by parameter name or in the order of
                ``model.parameters()``; a parameter that is left out was hidden.
            batch: k, how many records are behind it.
            labels: (k, …) the labels, where the attacker knows them.
            seed: of all starting points.
            progress: who is told how far the work is.

        Raises:
            NotApplicable: the attack says nothing about this model or update.
            UsageError: the update does not fit the model.
        """
        view = target.view(update, batch=batch, labels=labels)
        return self.checked(self.run(view, Execution(seed, progress or Silent())), view)

    @abstractmethod
    def run(self, view: AttackerView, execution: Execution) -> Candidates:
        """Reconstruct the records behind an update, from ``starts`` starting points.

        Args:
            view: everything that the attacker has; the truth is not in it.
            execution: seed and progress.

        Raises:
            NotApplicable: the attack says nothing about this model or update; the message says
                why.
        """

    def checked(self, found: Any, view: AttackerView) -> Candidates:
        """Return what ``run`` found, which has to be candidates of the view's shape.

        Raises:
            AuditError: it is not; the message names the attack, and the file and line of ``run``.
        """
        shape = (view.batch, *view.shape)
        if isinstance(found, Candidates) and tuple(found.inputs.shape[1:]) == shape:
            return found
        what = type(found).__name__
        if isinstance(found, Candidates):
            what = f"inputs of shape {tuple(found.inputs.shape)}"
        raise AuditError(
            f"{self.name}: run returns {what}, not Candidates with inputs (restarts, "
            f"{', '.join(map(str, shape))}){source_line(type(self).run)}"
        )

    def steps(self) -> float:
        """About how many gradient passes over the batch ``run`` costs; for ``--dry-run``."""
        return float(self.starts)

    def calls(self) -> float:
        """About how many passes wait for one another, each with the model's overhead."""
        return 1.0

    def calls_on(self, model: FunctionalModel, record: Tensor) -> float:
        """``calls`` of an attack on a record (1, …), where they hang on the model."""
        return self.calls()
