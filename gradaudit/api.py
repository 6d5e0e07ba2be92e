"""The Python API: ``gradaudit.audit`` gives the report that ``scan`` writes.

A target is a model with its records and what is done to updates: audits measure it, and attacks
are called with it and an update.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from gradaudit.attacks.reconstruction.base import AttackerView, SharedUpdate
from gradaudit.attacks.reconstruction.observing import ThreatModel
from gradaudit.audits import Audit, named
from gradaudit.audits import audits as all_audits
from gradaudit.config import SubjectSettings, settle
from gradaudit.core.specs import expect_options, pick, suggest
from gradaudit.core.text import printable
from gradaudit.data.common.user_data import records_of
from gradaudit.data.records import Records
from gradaudit.defenses import Defense, parse_defense
from gradaudit.deployment import Deployment, read_deployment
from gradaudit.errors import UsageError
from gradaudit.executors.workers import DEFAULT, use_executor
from gradaudit.models.losses import Loss
from gradaudit.models.target import Mode, shared_parameters
from gradaudit.models.torch_losses import user_loss
from gradaudit.progress import Progress
from gradaudit.report import Report
from gradaudit.run.opening import open_subject
from gradaudit.run.runner import run
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import seen
from gradaudit.subject import Subject

Data = Records | tuple[Tensor, Tensor] | str
Chosen = Sequence[str | Audit[Any]] | Mapping[str, Mapping[str, Any]]
"""Audits by name with their options, or as objects."""


@dataclass(frozen=True, eq=False)
class AuditTarget:
    """A model with its records and the defenses of its updates; ``gradaudit.Target``.

    Attributes:
        model: a module with its weights, on its device, which is not changed; or a spec as on the
            command line.
        records: records, a pair of inputs (records, …) and labels (records,), or a spec.
        loss: the training loss, by name, as an object, or a function or module of outputs and
            labels.
        defenses: what is done to updates before they are shared, in order, as objects or specs.
        attributes: the private attributes asked about, of those that the records have.
        checkpoints: files of weights to put into copies of the model, oldest round first.
        prefix: ``OLD=NEW``, a prefix of the checkpoints' keys and what the model has in its place.
        partial: whether what a checkpoint has no weights for stays as it is.
        mode: how BatchNorm and dropout run; without it as the deployment says, else ``eval``.
        layers: only layers that match one of these globs.
        hide: leave out layers that match one of these globs.
        samples: how many records each audit looks at.
        expected_accuracy: what the model is known to reach; the report warns where these records
            give less.
        deployment: the federation, or its YAML file: what it says holds wherever nothing else is
            said.
        seed: root of all randomness.

    Example:
        >>> from gradaudit import Target
        >>> Target("zoo:mlp?inputs=10&classes=2", "diabetes", attributes=["sex"]).subject.attributes
        ('sex',)
    """

    model: nn.Module | str
    records: Data
    _: KW_ONLY
    loss: str | Loss | Callable[..., Tensor] = "cross-entropy"
    defenses: Sequence[str | Defense[Any]] = ()
    attributes: Sequence[str] = ()
    checkpoints: Sequence[str | Path] = ()
    prefix: str | None = None
    partial: bool = False
    mode: Mode | None = None
    layers: Sequence[str] = ()
    hide: Sequence[str] = ()
    samples: int | None = None
    expected_accuracy: float | None = None
    deployment: str | Path | Deployment | None = None
    seed: int = 0

    @cached_property
    def federation(self) -> Deployment | None:
        """Returns the target's federation, read from its file where a path is given."""
        described = isinstance(self.deployment, str | Path)
        return read_deployment(self.deployment) if described else self.deployment  # type: ignore[arg-type,return-value]

    @cached_property
    def subject(self) -> Subject:
        """Returns the model, records and settings in the form that audits measure.

        Raises:
            GradauditError: as on the command line.
        """
        settings = settle(
            SubjectSettings,
            {
                "model": self.model if isinstance(self.model, str) else None,
                "checkpoint": tuple(self.checkpoints),
                "prefix": self.prefix,
                "partial": self.partial,
                "data": self.records if isinstance(self.records, str) else None,
                "attribute": tuple(self.attributes),
                "loss": self.loss if isinstance(self.loss, str) else None,
                "mode": self.mode,
                "layer": tuple(self.layers),
                "hide": tuple(self.hide) or None,
                "samples": self.samples,
                "defense": () if self.defenses else None,
                "expected_accuracy": self.expected_accuracy,
                "seed": self.seed,
            },
            self.federation.of_subject() if self.federation else {},
        )
        given: object = None if isinstance(self.records, str) else self.records
        if isinstance(given, Records):
            given = replace(records_of(given, "data"), adapter=given.adapter or "memory")
        subject = open_subject(
            settings,
            model=None if isinstance(self.model, str) else self.model,
            records=given,
            loss=None if isinstance(self.loss, str) else _loss_of(self.loss),
            defenses=tuple(parse_defense(d) if isinstance(d, str) else d for d in self.defenses),
        )
        return replace(subject, deployment=self.federation)

    def about(self, attributes: Sequence[str]) -> "AuditTarget":
        """Returns the target with these private attributes named too, if they are not already."""
        every = tuple(dict.fromkeys((*self.attributes, *attributes)))
        return self if every == tuple(self.attributes) else replace(self, attributes=every)

    def update(self, inputs: Tensor, labels: Tensor, *, seed: int = 0) -> dict[str, Tensor]:
        """Returns the defended update that a client with these records shares, by parameter name.

        Args:
            inputs: (k, …) records.
            labels: (k, …) their labels.
            seed: of the defenses' noise.
        """
        target = self.subject.target
        update = seen(
            target,
            inputs,
            labels,
            self._sharing,
            torch.Generator(target.device).manual_seed(seed),
            dtype=target.precision,
        )
        return {name: update[name] for name in shared_parameters(target.model, self.subject.hidden)}

    def view(
        self, update: SharedUpdate, *, batch: int = 1, labels: Tensor | None = None
    ) -> AttackerView:
        """Returns what an attacker knows about an update of so many records.

        Args:
            update: by parameter name, or in the order of ``model.parameters()``.
            batch: k, how many records are behind it.
            labels: (k, …) their labels, where the attacker knows them.

        Raises:
            UsageError: the update does not fit the model.
        """
        subject = self.subject
        shaped = subject.records.take(np.arange(batch) % len(subject.records))
        if labels is not None:
            shaped = replace(shaped, labels=labels)
        threat = ThreatModel(subject.target, self._sharing, subject.layers, labels is not None)
        return threat.view(shaped, threat.visible(_by_name(update, subject.target.model)))

    @property
    def _sharing(self) -> SharingProtocol:
        return SharingProtocol(defenses=self.subject.defenses)


def _loss_of(given: Loss | Callable[..., Tensor]) -> Loss:
    """Returns a loss, or a user's function or module as one.

    Raises:
        UsageError: it is a class, or cannot be called.
    """
    if isinstance(given, Loss):
        return given
    name = getattr(given, "__name__", type(given).__name__)
    if isinstance(given, type) or not callable(given):
        raise UsageError(
            f"loss: {printable(name)} is {'a class' if isinstance(given, type) else 'no function'};"
            " give a function of (outputs, labels) or an instance"
        )
    return user_loss(given, name)


def _by_name(update: SharedUpdate, model: nn.Module) -> dict[str, Tensor]:
    """Returns an update by parameter name, in the shapes of the parameters.

    Raises:
        UsageError: a tensor has no parameter of its shape.
    """
    known = dict(model.named_parameters())
    if not isinstance(update, Mapping):
        if len(update) != len(known):
            raise UsageError(
                f"update: has {len(update)} tensors, but the model has {len(known)} parameters; "
                "give tensors by name"
            )
        update = dict(zip(known, update, strict=True))
    for name, part in update.items():
        if name not in known:
            raise UsageError(f"update: no parameter {name!r} in the model{suggest(name, known)}")
        if part.shape != known[name].shape:
            raise UsageError(
                f"update: {name} has the shape {tuple(part.shape)}, and the model's "
                f"{tuple(known[name].shape)}"
            )
    return {name: part.detach() for name, part in update.items()}


@overload
def audit(
    model: AuditTarget,
    data: Chosen | None = None,
    *,
    jobs: int | None = None,
    executor: str = DEFAULT,
    progress: Progress | None = None,
) -> Report: ...


@overload
def audit(
    model: nn.Module | str,
    data: Data,
    *,
    audits: Chosen | None = None,
    checkpoints: Sequence[str | Path] = (),
    prefix: str | None = None,
    partial: bool = False,
    attributes: Sequence[str] = (),
    loss: str | Loss | Callable[..., Tensor] = "cross-entropy",
    mode: Mode | None = None,
    layers: Sequence[str] = (),
    hide: Sequence[str] = (),
    samples: int | None = None,
    defenses: Sequence[str | Defense[Any]] = (),
    expected_accuracy: float | None = None,
    deployment: str | Path | Deployment | None = None,
    seed: int = 0,
    jobs: int | None = None,
    executor: str = DEFAULT,
    progress: Progress | None = None,
) -> Report: ...


def audit(
    model: nn.Module | str | AuditTarget,
    data: Any = None,
    *,
    audits: Chosen | None = None,
    jobs: int | None = None,
    executor: str = DEFAULT,
    progress: Progress | None = None,
    **described: Any,
) -> Report:
    """Audit a target, or a model that is in memory or named as on the command line.

    ``audit(Target(model, records), [Sensitivity(probes=64), Vinfo("sex")])`` and
    ``audit(model, records, audits={"sensitivity": {"probes": 64}})`` are two ways to say it.

    Args:
        model: a target; or a model, as ``Target`` takes it.
        data: the audits to run of a target; or the records of a model, as ``Target`` takes them.
        audits: audits, their names, or options by their names; without them every audit, with the
            options of a plain ``gradaudit scan``.
        jobs: how many units of work are done at a time; without it one, or with an executor as
            many as it has workers. No number depends on it.
        executor: where they are done, as ``--executor`` names it.
        progress: shows how far the work is.
        described: with a model, what else ``Target`` takes by name.

    Returns:
        The report, as ``gradaudit scan`` makes it.

    Raises:
        GradauditError: as on the command line.

    Example:
        >>> import gradaudit
        >>> report = gradaudit.audit("zoo:mlp?inputs=10", "diabetes", audits=["sensitivity"])
        >>> report.select("sensitivity.input_f", layer="fc1")[0].status
        'measured'
    """
    if isinstance(model, AuditTarget):
        target, chosen = model, data if audits is None else audits
        if described:
            raise UsageError(f"{', '.join(described)}: describe a target; give them to Target(…)")
    else:
        target, chosen = AuditTarget(model, data, **described), audits
    configured = _configured(chosen, target.federation)
    target = target.about([name for one in configured for name in one.attributes])
    subject = replace(target.subject, jobs=use_executor(executor, jobs))
    return run(subject, configured, progress=progress)


def _configured(chosen: Chosen | None, federation: Deployment | None) -> list[Audit[Any]]:
    known = all_audits()
    if isinstance(chosen, Mapping):
        return [_audit(name, values, known, federation) for name, values in chosen.items()]
    names, presets = chosen or known, {} if chosen else {n: a.plain for n, a in known.items()}
    return [
        each
        if isinstance(each, Audit)
        else _audit(each, {}, known, federation, presets.get(each, {}))
        for each in names
    ]


def _audit(
    name: str,
    values: Mapping[str, Any],
    known: Mapping[str, type[Audit[Any]]],
    federation: Deployment | None,
    preset: Mapping[str, Any] = MappingProxyType({}),
) -> Audit[Any]:
    """Builds an audit from a preset, the federation over it, and given values on top."""
    name = named(name)
    kind = pick(name, known, f"audits: {name}", "audit")
    expect_options(kind.Options, name, values)
    deployed = kind.Options.deployed(federation) if federation else {}
    return kind(settle(kind.Options, dict(values), {**preset, **deployed}))
