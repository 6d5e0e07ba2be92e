"""Fingerprints by which the same command takes up the finished audits of an interrupted scan."""

import hashlib
import inspect
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from gradaudit._version import __version__
from gradaudit.audits import Audit
from gradaudit.core.files import digest_of
from gradaudit.core.specs import files_in_spec
from gradaudit.data.records import fingerprint as fingerprint_of_records
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.target import Target
from gradaudit.subject import Subject

_RECORDS = 8
"""Records whose loss and gradient stand for the code of the model and of the loss."""


def identity(subject: Subject) -> str:
    """Return a digest of weights, loss and gradient of the first records, data and settings.

    Neither workers nor memory are in it, for no number depends on them.
    """
    return _digest(
        [__version__, *(version(name) for name in ("numpy", "scipy", "scikit-learn", "torch"))],
        [list(_of_target(target, subject)) for target in subject.targets],
        [fingerprint_of_records(subject.records), repr(subject.records.features)],
        [subject.attributes, subject.hidden, subject.seed, *map(str, subject.defenses)],
    )


def fingerprint(subject: str, at_preset: Subject, audit: Audit[Any]) -> str:
    """Returns a digest of an audit's run.

    Args:
        subject: the subject's ``identity``.
        at_preset: the subject as the audit measures it.
        audit: with its options, of whose files the content counts, as that of its own file does.
    """
    options = audit.options.model_dump(mode="json")
    layers = [layer.name for layer in at_preset.layers]
    run = [at_preset.samples, str(at_preset.target.precision), layers]
    code = digest_of(Path(inspect.getfile(type(audit))))
    return _digest(subject, audit.name, code, options, [*_files_of(options)], run)


def _digest(*facts: object) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _of_target(target: Target, subject: Subject) -> Iterator[str]:
    yield from (str(target.model), target.mode, str(target.device), target.loss.name)
    weights = hashlib.sha256()
    for name, tensor in sorted(target.model.state_dict().items()):
        if isinstance(tensor, torch.Tensor):
            plain = tensor.detach().cpu().contiguous().view(-1)
            weights.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            weights.update(plain.view(torch.uint8).numpy().data if plain.numel() else b"")
    yield weights.hexdigest()
    model, records = FunctionalModel.of(replace(target, mode="eval")), subject.records
    inputs, labels = model.cast(records.inputs[:_RECORDS]), model.cast(records.labels[:_RECORDS])
    parameters = {name: x.clone().requires_grad_() for name, x in model.parameters.items()}
    loss = model.batch_loss(parameters, inputs, labels)
    asked = list(parameters.values()) if loss.requires_grad else []
    gradients = torch.autograd.grad(loss, asked, allow_unused=True) if asked else ()
    yield repr([float(loss), *(None if g is None else float(g.norm()) for g in gradients)])


def _files_of(value: object) -> Iterator[str]:
    """Yields digests of the files that options name."""
    if isinstance(value, str):
        for path in sorted(set(files_in_spec(value))):
            with suppress(OSError, ValueError):
                if path.is_file():
                    yield digest_of(path)
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _files_of(part)
