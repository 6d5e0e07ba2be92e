"""A captured update: gradients from a file, or the difference of two checkpoints.

Both are untrusted data and go through the checkpoint readers.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.core.text import listed
from gradaudit.errors import CheckpointError, UsageError
from gradaudit.models.checkpoint import (
    LoadedCheckpoint,
    apply_checkpoint,
    fit_state,
    load_checkpoint,
)
from gradaudit.models.checkpoint.shards import metadata_of
from gradaudit.models.target import Target, shared_parameters
from gradaudit.report import CheckpointRecord

OPTION = "--update"


@dataclass(frozen=True)
class CapturedUpdate:
    """An update from a file.

    Attributes:
        target: the model that it was made from.
        update: by parameter, in the parameters' shapes, float64; a parameter that is not in it was
            not in the file.
        details: files, hashes and what was done to make them fit, for the report.
        length_known: whether it is the update itself, or known up to a factor alone.
        subtracted_at: the learning rate that a difference of weights was divided by; None of what
            was no such difference, and is not rounded as one.
    """

    target: Target
    update: dict[str, Tensor]
    details: dict[str, JsonValue]
    length_known: bool = True
    subtracted_at: float | None = None


def captured_update(text: str, target: Target, rate: float | None = None) -> CapturedUpdate:
    """The update that ``FILE``, or ``OLD,NEW``, holds.

    Args:
        text: a file of gradients by parameter name (any of the parameters), or two checkpoints
            with a comma between them; their update is (OLD − NEW) / rate.
        target: the model; with two checkpoints it takes OLD's weights.
        rate: learning rate; where it is not known, the difference itself is the update, which has
            the gradient's direction and not its length.

    Raises:
        UsageError: a file is missing.
        CheckpointError: a file is refused, or does not fit the model.
    """
    if Path(text).is_file() or "," not in text:
        return _of_gradients(load_checkpoint(text), target, metadata_of(Path(text)))
    old, _, new = text.partition(",")
    if not (old and new) or "," in new:
        raise UsageError(f"{OPTION} {text}: write FILE, or OLD,NEW for two checkpoints")
    return _of_difference(load_checkpoint(old), load_checkpoint(new), target, rate)


def _of_gradients(
    loaded: LoadedCheckpoint, target: Target, metadata: Mapping[str, str]
) -> CapturedUpdate:
    parameters = dict(target.model.named_parameters())
    expected = {
        name: torch.empty_like(parameters[name], dtype=torch.float64)
        for name in shared_parameters(target.model)
    }
    present = {name: part for name, part in expected.items() if name in loaded.state}
    fitted = fit_state(present or expected, loaded)
    notes = [*loaded.notes, *fitted.notes]
    if missing := [name for name in expected if name not in fitted.state]:
        notes.append(f"not in the file, taken as hidden: {listed(missing)}")
    details = _details("gradient", [loaded.record], notes)
    return CapturedUpdate(target, fitted.state, details, subtracted_at=_subtracted_at(metadata))


def _subtracted_at(metadata: Mapping[str, str]) -> float | None:
    """The learning rate that weights were subtracted at, as ``gradaudit capture`` writes it."""
    if metadata.get("kind") != "weights":
        return None
    try:
        rate = float(metadata.get("scale", ""))
    except ValueError:
        return None
    return rate if 0 < rate < math.inf else None


def _of_difference(
    old: LoadedCheckpoint, new: LoadedCheckpoint, target: Target, rate: float | None
) -> CapturedUpdate:
    before, after = copy.deepcopy(target.model), copy.deepcopy(target.model)
    notes = [*apply_checkpoint(before, old).notes, *apply_checkpoint(after, new).notes]
    earlier, later = dict(before.named_parameters()), dict(after.named_parameters())
    scale = 1.0 if rate is None else rate
    update = {
        name: (earlier[name].detach().double() - later[name].detach().double()) / scale
        for name in shared_parameters(target.model)
    }
    if not any(bool(part.any()) for part in update.values()):
        raise CheckpointError(
            f"{new.record.file}: holds the same weights as {old.record.file}; "
            "their difference is no update"
        )
    if rate is None:
        notes.append("learning rate unknown: the update's length is not the gradient's")
    at_old = replace(target, model=before, checkpoint=old.record)
    details = _details("difference of two checkpoints", [old.record, new.record], notes)
    return CapturedUpdate(at_old, update, details, rate is not None, subtracted_at=scale)


def _details(kind: str, files: list[CheckpointRecord], notes: list[str]) -> dict[str, JsonValue]:
    return {
        "captured": kind,
        "files": [{"file": record.file, "sha256": record.sha256} for record in files],
        "notes": list(notes),
    }
