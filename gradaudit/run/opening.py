"""Opens the subject of an audit from settings: model, checkpoints, records, device."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import nn

from gradaudit.config import SubjectSettings
from gradaudit.core.randomness import rng
from gradaudit.data import expect_attributes, load_records
from gradaudit.data.common.packing import InputPart, Kind
from gradaudit.data.common.packing import in_order as in_places
from gradaudit.data.common.roles import in_order
from gradaudit.data.common.user_data import records_of
from gradaudit.data.records import Records
from gradaudit.defenses import Chain, Defense, parse_defense
from gradaudit.deployment import read_deployment
from gradaudit.errors import DataError, UsageError
from gradaudit.executors.workers import use_executor
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.memory import keep_freed_memory
from gradaudit.gradients.precision import usual_precision
from gradaudit.models.building import brought_by, load_loss, load_model
from gradaudit.models.checkpoint import Fit, apply_checkpoint, load_checkpoint, parse_rename
from gradaudit.models.custom_loss import CustomLoss
from gradaudit.models.exported import expect_as_exported
from gradaudit.models.hf_folder import class_names, expect_data_of, reading_of
from gradaudit.models.hf_weights import as_named_here
from gradaudit.models.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    Loss,
    MeanSquaredError,
    ModelLoss,
)
from gradaudit.models.target import (
    Target,
    choose_layers,
    hidden_layers,
    shared_parameters,
)
from gradaudit.models.unwrapping import unwrapped
from gradaudit.subject import Subject, defended_target, with_private_part

_COMPANY = 32
"""Records of the batch on which their independence is tested."""


def load(settings: SubjectSettings) -> Subject:
    """Set torch and linear algebra to one thread, and open the subject.

    Other cores are for units of work, which are done where ``--executor`` says from now on.

    Raises:
        UsageError: more ``--samples`` are asked for than there are records, or as ``open_subject``.
    """
    keep_freed_memory()
    torch.set_num_threads(1)
    threadpool_limits(limits=1, user_api="blas")
    jobs = use_executor(
        settings.executor, settings.jobs if "jobs" in settings.model_fields_set else None
    )
    subject = open_subject(settings)
    if settings.samples and settings.samples > len(subject.records):
        raise UsageError(f"--samples {settings.samples}: there are {len(subject.records)} records")
    return replace(subject, jobs=jobs)


def open_subject(
    settings: SubjectSettings,
    *,
    model: nn.Module | None = None,
    records: object | None = None,
    loss: Loss | None = None,
    defenses: tuple[Defense[Any], ...] = (),
) -> Subject:
    """Loads everything that an audit needs; a model or data in memory is taken as it is.

    Records in memory that are no ``Records`` are made such, as of a user's function.

    Raises:
        UsageError: a model, loss, data set, defense or device is missing or unknown.
        CheckpointError: a checkpoint is refused or does not fit the model.
        DataError: the data set's content cannot be used.
        AuditError: no layer is left to audit.
    """
    checkpoints = settings.checkpoint
    if model is None:
        spec = _needed(settings.model, "--model")
        model = load_model(spec, seed=settings.seed)
        checkpoints = checkpoints or brought_by(spec)
        model, notes = unwrapped(model)
        model = model.to(choose_device(settings.device))
    else:
        model, notes = unwrapped(model)
    if not isinstance(records, Records):
        records = _records_for(model, settings, records)
    untrained = Target(
        model=model,
        loss=loss or load_loss(settings.loss),
        mode=settings.mode,
        description=settings.model or type(model).__name__,
        parts=records.parts,
        notes=notes,
    )
    expect_as_exported(model, settings.mode, records.inputs)
    named = {"float32": torch.float32, "float64": torch.float64}
    precision = named.get(settings.dtype) or usual_precision(untrained.device)
    untrained = replace(untrained, precision=precision)
    records = with_fitting_labels(records, untrained.loss)
    if isinstance(untrained.loss, ModelLoss):
        records = with_labels_as_input(records)
    expect_labels_for(untrained.loss, records)
    untrained = replace(untrained, parts=records.parts)
    defenses = (*map(parse_defense, settings.defense), *defenses)
    untrained = defended_target(untrained, defenses, settings.seed)
    rename = parse_rename(settings.prefix) if settings.prefix else None
    how = Fit(rename, settings.partial, or_in_part="take what fits with --partial")
    targets = tuple(
        _with_weights(untrained, path, how, settings.state_dict) for path in checkpoints
    )
    newest = (targets or (untrained,))[-1]
    layers = choose_layers(newest.layers, settings.layer, settings.hide)
    hidden = hidden_layers(newest.layers, settings.hide)
    Chain(defenses).check(shared_parameters(newest.model, hidden))
    targets = _tested(targets or (untrained,), records, settings.seed)
    return Subject(
        targets=targets,
        records=records,
        layers=layers,
        samples=settings.samples,
        attributes=expect_attributes(records, settings.attribute, settings.data or "data"),
        defenses=defenses,
        hidden=hidden,
        seed=settings.seed,
        jobs=settings.jobs,
        expected=settings.expected_accuracy,
        deployment=read_deployment(settings.deployment) if settings.deployment else None,
    )


def _tested(targets: tuple[Target, ...], records: Records, seed: int) -> tuple[Target, ...]:
    """Test on every target, once for a run, whether records are independent."""
    batch = torch.from_numpy(rng(seed, "coupling").permutation(len(records))[:_COMPANY])
    view = FunctionalModel.of(targets[-1])
    inputs, labels = view.cast(records.inputs[batch]), view.cast(records.labels[batch])
    found = (FunctionalModel.of(target).coupling(inputs, labels) for target in reversed(targets))
    coupled = next(filter(None, found), None)
    notes = [f"updates are computed batch by batch: {coupled}"] if coupled else []
    notes += _probabilities(view, inputs) + ([view.loss.note] if view.loss.note else [])
    return tuple(replace(x, coupled=coupled or "", notes=(*x.notes, *notes)) for x in targets)


def _probabilities(view: FunctionalModel, inputs: torch.Tensor) -> list[str]:
    """Say that outputs look like probabilities, of which the loss takes the logits."""
    if not isinstance(view.loss, CrossEntropy | BinaryCrossEntropy):
        return []
    try:
        with torch.no_grad():
            outputs = view.loss.predictions(view.outputs({}, inputs))
    except Exception:  # it cannot be run at all: ``check`` says why
        return []
    shares = bool(((outputs >= 0) & (outputs <= 1)).all())
    sums = outputs.sum(dim=1) if outputs.dim() > 1 else outputs
    if not shares or (isinstance(view.loss, CrossEntropy) and not (sums - 1).abs().lt(1e-5).all()):
        return []
    return [f"all outputs are probabilities, and --loss {view.loss.name} takes logits"]


def _records_for(model: nn.Module, settings: SubjectSettings, data: object | None) -> Records:
    """Returns data in memory, or what ``--data`` names, in the form that the model takes."""
    if data is not None:
        records = records_of(data, "data")
        return replace(records, adapter=records.adapter or "memory")
    spec = _needed(settings.data, "--data")
    expect_data_of(model, spec)
    records = load_records(spec, attributes=settings.attribute, reading=reading_of(model))
    return records if "classes=" in spec else _in_order_of(class_names(model), records, spec)


def with_fitting_labels(records: Records, loss: Loss) -> Records:
    """Give the loss the numbers that the data has; cross-entropy alone takes codes of classes.

    Whole numbers become real targets where the loss compares numbers, unless they are the classes
    0 … C−1. Codes that are not the data's own numbers stand in the notes.

    Raises:
        DataError: all records have the same label, which cross-entropy cannot number.
    """
    compares = isinstance(loss, MeanSquaredError | BinaryCrossEntropy)
    whole = not records.labels.is_floating_point()
    if whole and compares and (records.labels.dim() > 1 or not records.classes):
        return replace(records, labels=records.labels.float(), classes=())
    numbers = np.array(records.class_numbers)
    classes = numbers[numbers != loss.ignored]
    counted = bool((classes == np.arange(len(classes))).all())
    if not len(numbers) or (counted and len(classes) == len(numbers)):
        return records
    if isinstance(loss, CrossEntropy) and not counted:
        if len(numbers) == 1:
            raise DataError(
                f"--data: every record has the label {records.classes[0]}; name the model's "
                "classes in their order with classes=…"
            )
        return replace(records, notes={**records.notes, "labels_encoded": True})
    labels = torch.from_numpy(numbers)[records.labels]
    if compares or not (numbers == numbers.round()).all():
        return replace(records, labels=labels.float(), classes=(), class_numbers=())
    known = range(int(numbers.max()) + 1) if numbers.min() >= 0 or counted else ()
    return replace(records, labels=labels.long(), classes=tuple(map(str, known)), class_numbers=())


def with_labels_as_input(records: Records) -> Records:
    """Put the labels behind the inputs, as the last argument of a model that returns its loss.

    Raises:
        UsageError: inputs have names, so that the labels have no place behind them.
    """
    if records.unlabelled:
        return records
    if not in_places(records.parts):
        raise UsageError(
            "--loss model: inputs have names; return the labels among the inputs, by the name "
            "that forward takes them by, and None for the labels, as in --data FILE.py:factory"
        )
    shape, labels = tuple(records.inputs.shape[1:]), records.labels
    given = records.parts or (InputPart("0", shape, "tokens" if records.discrete else "numbers"),)
    kind: Kind = "numbers" if labels.is_floating_point() else "tokens"
    parts = (*given, InputPart(str(len(given)), tuple(labels.shape[1:]), kind))
    blocks = [block.reshape(len(records), -1) for block in (records.inputs, labels)]
    return replace(
        records,
        inputs=torch.cat([block.to(torch.result_type(*blocks)) for block in blocks], dim=1),
        parts=tuple(replace(part, name=str(place)) for place, part in enumerate(parts)),
        labels=torch.zeros(len(records), 0),
        classes=(),
        class_numbers=(),
        notes={**records.notes, "labels": "the model's last argument"},
    )


def expect_labels_for(loss: Loss, records: Records) -> None:
    """Raise a UsageError where there are no labels, and the loss cannot do without."""
    whole = isinstance(loss, CustomLoss) and loss.takes_whole
    if records.unlabelled and not whole and not isinstance(loss, ModelLoss):
        raise UsageError(
            f"--loss {loss.name}: the records have no labels; name a function that takes None for "
            "them, --loss FILE.py:NAME"
        )


def _in_order_of(names: tuple[str, ...], records: Records, spec: str) -> Records:
    """Returns the records with their classes numbered in the model's own order."""
    named = len(records.classes) > 0 and set(records.classes) <= set(names)
    single = records.labels.dim() == 1 and len(set(names)) == len(names)
    return in_order(records, names, spec) if named and single else records


def _needed(spec: str | None, option: str) -> str:
    if spec is None:
        raise UsageError(f"{option} is needed: name what to audit (see `gradaudit list`)")
    return spec


def _with_weights(target: Target, path: Path, how: Fit, weights: str | None) -> Target:
    model = copy.deepcopy(target.model)
    loaded = as_named_here(load_checkpoint(path, weights), model)
    record = apply_checkpoint(model, with_private_part(loaded, model), how)
    return replace(target, model=model, checkpoint=record)


def choose_device(name: str) -> torch.device:
    """Returns the device to compute on; ``auto`` takes CUDA where there is one.

    Raises:
        UsageError: CUDA is asked for and absent.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: no CUDA device is available; use --device cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
