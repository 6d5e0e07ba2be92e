"""The attacker's view of a batch of records, kept apart from the true records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.reconstruction.base import AttackerView, Update
from gradaudit.data.records import Records
from gradaudit.errors import AuditError, NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.trace import looks_up
from gradaudit.models.losses import classes_second
from gradaudit.models.target import Layer, Target, layers_of
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import seen
from gradaudit.subject import seen_by_outsiders


@dataclass(frozen=True)
class AttackedBatch:
    """An attacked batch.

    Attributes:
        records: the truth (k, …), for the audit alone.
        clean: the same part of the update as it was before a defense changed it but by a factor,
            for the audit alone; None where nothing defends it, or it was captured.
    """

    view: AttackerView
    records: Tensor
    labels: Tensor
    clean: Update | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the update, before and after it was defended."""
        updates = [*(view.update for view in self.view.rounds), self.clean or {}]
        return sum(part.nbytes for update in updates for part in update.values())


class AttackedBatches(Sequence[AttackedBatch]):
    """Observed updates of some batches: kept where memory allows, else computed on each access.

    Args:
        observe: makes that of the batch of a number, always the same.
        count: how many batches there are.
        memory: bytes that the updates that are kept may take.
    """

    def __init__(self, observe: Callable[[int], AttackedBatch], count: int, memory: int) -> None:
        self._observe, self._numbers, self._room = observe, range(count), memory
        self._kept: dict[int, AttackedBatch] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> AttackedBatch:  # type: ignore[override]
        """The update of one batch; nobody asks for slices."""
        number = self._numbers[index]
        if number in self._kept:
            return self._kept[number]
        made = self._observe(number)
        self._room -= made.nbytes
        if self._room >= 0:
            self._kept[number] = made
        return made


@dataclass(frozen=True)
class ThreatModel:
    """The update that clients share, and the attacker's view and further knowledge.

    Attributes:
        layers: those whose updates the attacker uses.
        earlier: earlier rounds, oldest first, in which the same records made an update.
    """

    target: Target
    sharing: SharingProtocol
    layers: tuple[Layer, ...]
    known_labels: bool = False
    earlier: tuple[ThreatModel, ...] = ()

    def observed(self, batch: Records, generator: torch.Generator) -> AttackedBatch:
        """The update of a batch, dealt out to the clients, as the attacker sees it.

        Raises:
            AuditError: the model cannot be run on the batch, or the labels do not fit.
            NotApplicable: updates are only seen in part.
            UsageError: the defenses cannot be applied to this model.
        """
        sharing = self.sharing
        if sharing.fraction is not None or sharing.elements is not None:
            raise NotApplicable(
                "reconstruction needs whole updates; leave out --fraction and --elements "
                "(--layer shows an attack on some layers)"
            )
        again = torch.Generator(generator.device)
        again.set_state(generator.get_state())
        update = seen(
            self.target,
            batch.inputs,
            batch.labels,
            self.sharing,
            generator,
            dtype=self.target.precision,
        )
        view = self.view(batch, self.visible(update))
        if self.earlier:
            views = tuple(round.observed(batch, generator).view for round in self.earlier)
            knowledge = {**view.knowledge, "rounds": len(views) + 1}
            view = replace(view, earlier=views, knowledge=knowledge)
        return AttackedBatch(view, batch.inputs, batch.labels, self._clean(batch, again))

    def _clean(self, batch: Records, generator: torch.Generator) -> Update | None:
        """The update for the loss that the attacker knows, clipped but neither noisy nor cut.

        Clipping is a factor on the whole update, which gives away no less than the update itself.
        """
        if not self.sharing.defenses:
            return None
        clipping = tuple(d for d in self.sharing.chain.acting if d.additive)
        sharing, target = replace(self.sharing, defenses=clipping), seen_by_outsiders(self.target)
        update = seen(
            target,
            batch.inputs,
            batch.labels,
            sharing,
            generator,
            dtype=target.precision,
            noise=False,
        )
        return self.visible(update)

    @cached_property
    def model(self) -> FunctionalModel:
        """The model as the attacker has it, the same for all updates."""
        return FunctionalModel.of(seen_by_outsiders(self.target))

    def view(self, batch: Records, update: Update) -> AttackerView:
        """The view of an update of so many records, of which only shapes are looked at."""
        model = self.model
        inputs, labels = model.cast(batch.inputs), model.cast(batch.labels)
        outputs = model.loss.predictions(model.check(inputs, labels))
        classes = 0 if labels.is_floating_point() else _classes(outputs, labels)
        # class labels without their order in the batch, which an update does not have either
        known = labels.sort().values if classes and labels.dim() == 1 else labels
        view = AttackerView(
            model=model,
            update={name: part.to(model.device, model.dtype) for name, part in update.items()},
            batch=len(batch),
            shape=tuple(batch.inputs.shape[1:]),
            classes=classes,
            label_shape=tuple(labels.shape[1:]),
            discrete=batch.discrete,
            looked_up=batch.looked_up or looks_up(replace(model, mode="eval"), inputs[0]),
            labels=known if self.known_labels else None,
            bounds=value_range(batch),
            training=self.sharing.training,
            clients=self._apart(model, inputs, labels),
            columns=batch.features,
        )
        return replace(view, knowledge=self._knowledge(view))

    def _apart(self, model: FunctionalModel, inputs: Tensor, labels: Tensor) -> int:
        """Clients to simulate one by one; the mean of their gradients is that of all records.

        Not where they train, or where what a record counts depends on those beside it.
        """
        if self.sharing.training is None and model.loss.weights(labels) is None:
            return 1 if model.coupling(inputs, labels) is None else self.sharing.clients
        return self.sharing.clients

    def visible(self, update: Update) -> Update:
        """The part of an update that belongs to the chosen layers, biases too."""
        wanted = {layer.name for layer in self.layers}
        names = [
            name
            for layer in layers_of(self.target.model, with_bias=True)
            if layer.name in wanted
            for name in layer.parameter_names
        ]
        return {name: update[name] for name in names if name in update}

    def _knowledge(self, view: AttackerView) -> dict[str, JsonValue]:
        every = [layer.name for layer in self.target.layers]
        shown = [layer.name for layer in self.layers]
        return {
            "model": "weights, buffers, loss and mode",
            "layers": "all" if set(shown) == set(every) else list(shown),
            "batch_size": view.batch,
            "shape": list(view.shape),
            "labels": "known" if view.labels is not None else "unknown",
            "range": None if view.bounds is None else list(view.bounds),
            **({"columns": "ranges and one-hot groups"} if view.columns else {}),
            "update": self.sharing.knowledge(view.batch),
            "defense": [str(defense) for defense in self.sharing.defenses],
        }


def _classes(outputs: Tensor, labels: Tensor) -> int:
    """Infer the number of classes from outputs and labels (records, …).

    Raises:
        NotApplicable: a loss of the user's has labels that are not one a record or position.
    """
    if labels.dim() == 1:
        return outputs[0].numel()
    try:
        return classes_second(outputs, labels).shape[1]
    except AuditError as error:
        raise NotApplicable(
            "the labels are not one for each position of the outputs: "
            f"{tuple(labels.shape)}, {tuple(outputs.shape)}"
        ) from error


def value_range(records: Records) -> tuple[float, float] | None:
    """Return [0, 1] for pictures, whose format is public; None for tables and other data."""
    inputs = records.inputs
    if inputs.dim() != 4 or inputs.shape[1] not in (1, 3) or records.discrete:
        return None
    return (0.0, 1.0) if bool(((inputs >= 0) & (inputs <= 1)).all()) else None
