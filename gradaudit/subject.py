"""The subject of an audit: targets, records, defenses and settings."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from pydantic import JsonValue
from torch import nn

from gradaudit.core.latest import Latest
from gradaudit.core.randomness import rng, torch_rng
from gradaudit.data.records import Records
from gradaudit.defenses import Chain, Defense, defenses
from gradaudit.defenses.attachment import (
    PenalisedLoss,
    attachments,
    private_names,
    private_parts,
)
from gradaudit.deployment import Deployment
from gradaudit.errors import CheckpointError
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.memory import flops
from gradaudit.models.checkpoint import LoadedCheckpoint
from gradaudit.models.target import Layer, Target

RATE = 4e10
"""Operations that a core of a usual machine carries out in a second, in single precision."""
SINGLE = 0.5
"""Share of a gradient's work that is left where it is taken in single precision."""
_OF_A_GRADIENT = 3
"""Forward passes that a gradient is worth: itself, and two for the pass back."""
_A_LAYER, _A_CALL = 1e6, 2e7
"""Operations that a layer is worth besides its own, for each record and for each call."""
_FORWARD: WeakKeyDictionary[nn.Module, tuple[object, int]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Subject:
    """The subject of an audit: targets, records and the run's settings.

    Attributes:
        targets: one per checkpoint, oldest first (one without checkpoints).
        records: every record of the data set.
        layers: the layers to report, a subset of the last target's.
        samples: how many records an audit looks at (None: the audit's own default).
        attributes: names of the private attributes asked about.
        defenses: what is done to updates before they are shared, in order.
        hidden: names of the layers that are never shared.
        seed: root of all randomness.
        jobs: worker processes.
        memory: bytes that one chunk of work may take.
        expected: the accuracy that the newest target is known to have.
        deployment: the federation that its settings are compared with, where one was described.
        latest: what an audit set up last, for the next one.
    """

    targets: tuple[Target, ...]
    records: Records
    layers: tuple[Layer, ...]
    samples: int | None = None
    attributes: tuple[str, ...] = ()
    defenses: tuple[Defense[Any], ...] = ()
    hidden: tuple[str, ...] = ()
    seed: int = 0
    jobs: int = 1
    memory: int = 1 << 30
    expected: float | None = None
    deployment: Deployment | None = None
    latest: Latest = field(default_factory=Latest, repr=False, compare=False)

    @property
    def target(self) -> Target:
        """The newest target."""
        return self.targets[-1]

    @property
    def workers(self) -> int:
        """Number of workers that share the work; on a GPU this process alone."""
        on_a_device = any(target.device.type != "cpu" for target in self.targets)
        return 1 if on_a_device else self.jobs

    @property
    def forward_operations(self) -> int:
        """Operations of one record's forward pass."""
        return _forward_operations(self.target, self.records)

    def work(self, gradients: float) -> float:
        """Count the operations of gradients of single records; no clock is read."""
        return gradients * self._of_a_gradient if gradients else 0.0

    def waiting(self, calls: float) -> float:
        """Count calls that wait for one another as gradients, by the overhead of a small model."""
        return calls * _A_CALL * len(self.target.layers) / self._of_a_gradient

    @property
    def _of_a_gradient(self) -> float:
        slower = 2 if self.target.precision is torch.float64 else 1
        of_layers = _A_LAYER * len(self.target.layers)
        return _OF_A_GRADIENT * slower * self.forward_operations + of_layers

    def about(self, attributes: tuple[str, ...]) -> Self:
        """Returns the subject with these private attributes alone; itself where none is named."""
        return replace(self, attributes=attributes) if attributes else self

    def in_precision(self, dtype: torch.dtype) -> Self:
        """Returns the subject with gradients in this precision; itself where it has it already."""
        if self.target.precision is dtype:
            return self
        return replace(self, targets=tuple(replace(x, precision=dtype) for x in self.targets))

    def sample(self, default: int, most: int | None = None) -> Records:
        """Returns ``samples`` (or ``default``) records drawn without replacement.

        The same seed draws the same records for every audit, the first ones where it takes fewer.

        Args:
            default: how many, where ``samples`` does not say.
            most: how many at most, whatever ``samples`` says.
        """
        wanted = min(self.samples or default, most or len(self.records), len(self.records))
        order = rng(self.seed, "sample").permutation(len(self.records))
        return self.records.take(np.sort(order[:wanted]).astype(np.int64))


def _forward_operations(target: Target, records: Records) -> int:
    """Operations of one record's forward pass; two a parameter where they cannot be counted."""
    shape = records.inputs.shape[1:]
    known = _FORWARD.get(target.model)
    if known is None or known[0] != shape:
        model = FunctionalModel.of(replace(target, mode="eval"), dtype=torch.float32)
        inputs, labels = model.cast(records.inputs[:1]), model.cast(records.labels[:1])
        try:
            known = shape, flops(lambda: model.check(inputs, labels))
        except Exception:  # of a model that cannot be run, or counted; its audits say so
            known = shape, 2 * sum(weight.numel() for weight in target.model.parameters())
        _FORWARD[target.model] = known
    return known[1]


def defenses_note(subject: Subject, unapplied: str) -> dict[str, JsonValue]:
    """Details that name a subject's defenses which its numbers leave out; empty without any.

    Those that change the model are in them, but for one that does nothing in eval mode.

    ``unapplied`` says why those of updates are not applied.
    """
    chain = Chain(subject.defenses)
    notes = [unapplied if chain.acting else "", chain.idle(subject.target.mode)]
    return {"defenses": "; ".join(filter(None, notes))} if any(notes) else {}


def defended_target(target: Target, chain: Sequence[Defense[Any]], seed: int) -> Target:
    """Returns the target with every model-changing defense built in.

    Those that act on updates alone are passed over; the seed is that of weights and secrets.

    Raises:
        NotApplicable: a defense does not fit the model or the loss.
    """
    for index, defense in enumerate(chain):
        if defense.changes_model and str(defense) not in built_in(target.model):
            model = defense.modify(target.model, torch_rng(seed, "defense", "secrets", index))
            vars(model)["defenses_built_in"] = (*built_in(target.model), str(defense))
            for part in attachments(model):
                part.whole = part.whole or target.loss.takes_whole
            target = replace(target, model=model, loss=defense.modified_loss(target.loss, model))
    return target


def with_private_part(loaded: LoadedCheckpoint, model: nn.Module) -> LoadedCheckpoint:
    """Returns a checkpoint with the model's private part where it has none of its own.

    A shared model holds no client's private part; whoever joins with it has a fresh one.

    Raises:
        CheckpointError: it was trained with a defense in the model that is not in this one.
    """
    _expect_same_defenses(loaded, model)
    private = private_names(model)
    if not private or any(key.endswith(private) for key in loaded.state):
        return loaded
    state = {**loaded.state, **{name: model.state_dict()[name] for name in private}}
    note = f"holds no private part; drawn at random: {', '.join(private)}"
    return replace(loaded, state=state, notes=(*loaded.notes, note))


def _expect_same_defenses(loaded: LoadedCheckpoint, model: nn.Module) -> None:
    wanted = model.state_dict().keys()
    for name, kind in defenses().items():
        if kind.changes_model:
            held = any(f".{name}." in f".{key}" for key in loaded.state)
            if held and not any(f".{name}." in f".{key}" for key in wanted):
                raise CheckpointError(
                    f"{loaded.record.file}: was trained with {name} in the model; name it as it "
                    f"was then, as in --defense {kind.example}"
                )


def built_in(model: nn.Module) -> tuple[str, ...]:
    """Returns the specs of the defenses that were built into a model."""
    return tuple(vars(model).get("defenses_built_in", ()))


def seen_by_outsiders(target: Target) -> Target:
    """Returns the target without loss terms that only the clients' defenses add.

    Private parts of the model have no say in it. (Fan et al. 2020, algorithm 5, line 10.)
    """
    loss = target.loss
    return replace(target, loss=loss.seen) if isinstance(loss, PenalisedLoss) else target


def with_other_secrets(target: Target, generator: torch.Generator) -> Target:
    """Returns the target with private parts drawn anew, as an adversary would simulate them.

    He draws his own, as every client does; the target is left as it was.
    """
    if not private_parts(target.model):
        return target
    target = replace(target, model=copy.deepcopy(target.model))
    for part in private_parts(target.model):
        part.draw(generator)
    return target
