"""The Python API: ``gradaudit.audit(model, records)`` gives the report that ``scan`` writes."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from gradaudit.audits import Audit
from gradaudit.audits import audits as all_audits
from gradaudit.config import SubjectSettings, settle
from gradaudit.data.common.user_data import records_of
from gradaudit.data.records import Records
from gradaudit.deployment import Deployment, read_deployment
from gradaudit.errors import UsageError
from gradaudit.executors import DEFAULT
from gradaudit.models.losses import Loss
from gradaudit.models.target import Mode
from gradaudit.opening import open_subject
from gradaudit.progress import Progress
from gradaudit.report import Report
from gradaudit.runner import run
from gradaudit.specs import suggest
from gradaudit.workers import use_cluster


def audit(
    model: nn.Module | str,
    data: Records | tuple[Tensor, Tensor] | str,
    *,
    audits: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
    checkpoints: Sequence[str | Path] = (),
    prefix: str | None = None,
    partial: bool = False,
    attributes: Sequence[str] = (),
    loss: str | Loss = "cross-entropy",
    mode: Mode | None = None,
    layers: Sequence[str] = (),
    hide: Sequence[str] = (),
    samples: int | None = None,
    defenses: Sequence[str] = (),
    expected_accuracy: float | None = None,
    deployment: str | Path | Deployment | None = None,
    seed: int = 0,
    jobs: int | None = None,
    executor: str | Executor = DEFAULT,
    progress: Progress | None = None,
) -> Report:
    """Audit a model that is already in memory, or one named as on the command line.

    Args:
        model: a module with its weights, on its device; it is not changed.
        data: records, a pair of inputs (records, …) and labels (records,), or a spec.
        audits: names of audits, or their options by name; without it every audit, with the options
            of a plain ``gradaudit scan``.
        checkpoints: files of weights to put into copies of the model, oldest round first.
        prefix: ``OLD=NEW``, a prefix of the checkpoints' keys and what the model has in its place.
        partial: whether what a checkpoint has no weights for stays as it is.
        attributes: the private attributes asked about, of those that the records have.
        loss: the training loss, by name or as an object.
        mode: how BatchNorm and dropout run; without it as the deployment says, else ``eval``.
        layers: only layers that match one of these globs.
        hide: leave out layers that match one of these globs.
        samples: how many records each audit looks at.
        defenses: specs of what is done to updates before they are shared, in order.
        expected_accuracy: what the model is known to reach; the report warns where these records
            give less.
        deployment: the federation, or its YAML file: what it says holds wherever nothing else is
            said.
        seed: root of all randomness.
        jobs: how many units of work are done at a time; without it one, or with an executor as
            many as it has workers. No number depends on it.
        executor: where they are done, as ``--executor`` names it, or a ``concurrent.futures``
            executor whose workers have this package.
        progress: who is told how far the work is.

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
    federation = read_deployment(deployment) if isinstance(deployment, str | Path) else deployment
    settings = settle(
        SubjectSettings,
        {
            "model": model if isinstance(model, str) else None,
            "checkpoint": tuple(checkpoints),
            "prefix": prefix,
            "partial": partial,
            "data": data if isinstance(data, str) else None,
            "attribute": tuple(attributes),
            "loss": loss if isinstance(loss, str) else None,
            "mode": mode,
            "layer": tuple(layers),
            "hide": tuple(hide) or None,
            "samples": samples,
            "defense": tuple(defenses) or None,
            "expected_accuracy": expected_accuracy,
            "seed": seed,
        },
        federation.of_subject() if federation else {},
    )
    given: object = None if isinstance(data, str) else data
    if isinstance(data, Records):
        given = replace(records_of(data, "data"), adapter=data.adapter or "memory")
    subject = open_subject(
        settings,
        model=None if isinstance(model, str) else model,
        records=given,
        loss=None if isinstance(loss, str) else loss,
    )
    subject = replace(subject, jobs=use_cluster(executor, jobs), deployment=federation)
    return run(subject, _configured(audits, federation), progress=progress)


def _configured(
    chosen: Sequence[str] | Mapping[str, Mapping[str, Any]] | None, federation: Deployment | None
) -> list[Audit[Any]]:
    known = all_audits()
    if isinstance(chosen, Mapping):
        return [_audit(name, values, known, federation) for name, values in chosen.items()]
    names, presets = chosen or known, {} if chosen else {n: a.plain for n, a in known.items()}
    return [_audit(name, {}, known, federation, presets.get(name, {})) for name in names]


def _audit(
    name: str,
    values: Mapping[str, Any],
    known: Mapping[str, type[Audit[Any]]],
    federation: Deployment | None,
    preset: Mapping[str, Any] = MappingProxyType({}),
) -> Audit[Any]:
    """The audit with what the federation says over a preset, and given values over both."""
    if name not in known:
        raise UsageError(
            f"audits: no audit {name!r}{suggest(name, known)}; there are: {', '.join(known)}"
        )
    takes = known[name].Options.model_fields
    for option in values:
        if option not in takes:
            raise UsageError(
                f"{name}: no option {option!r}{suggest(option, takes)}; "
                f"it takes: {', '.join(takes) or 'none'}"
            )
    options = known[name].Options
    said = options.deployed(federation) if federation else {}
    return known[name](settle(options, dict(values), {**preset, **said}))
