"""Fingerprint of an audit's run, over everything that its numbers depend on."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from gradaudit._version import __version__
from gradaudit.audits import Audit
from gradaudit.core.specs import files_in_spec
from gradaudit.data.records import fingerprint as fingerprint_of_records
from gradaudit.models.target import Target
from gradaudit.subject import Subject


def fingerprint(subject: Subject, audit: Audit[Any]) -> str:
    """Returns the SHA-256 of weights, records, settings, options, their code, and versions.

    How many workers there are is not in it, for no number depends on it; nor how much memory a
    chunk takes, which each unit names. What a user's file imports is not in it either.
    """
    facts = {
        "versions": _versions(),
        "targets": [list(_of_target(target)) for target in subject.targets],
        "records": [fingerprint_of_records(subject.records), repr(subject.records.features)],
        "layers": [layer.name for layer in subject.layers],
        "samples": subject.samples,
        "attributes": subject.attributes,
        "defenses": [_with_code(str(defense)) for defense in subject.defenses],
        "hidden": subject.hidden,
        "seed": subject.seed,
        "audit": [audit.name, _digest(Path(inspect.getfile(type(audit))))],
        "options": [*_texts(audit.options.model_dump())],
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _of_target(target: Target) -> Iterator[object]:
    yield from (str(target.model), target.mode, str(target.device), str(target.precision))
    yield from (_with_code(target.description), _with_code(target.loss.name))
    yield _of_weights(target.model)


_KNOWN: WeakKeyDictionary[nn.Module, tuple[object, str]] = WeakKeyDictionary()
"""Digests of models' weights, each with the tensors' versions for which it is valid."""


def _of_weights(model: nn.Module) -> str:
    state = {
        name: tensor
        for name, tensor in sorted(model.state_dict().items())
        if isinstance(tensor, torch.Tensor)
    }
    now = [(name, tensor.data_ptr(), tensor._version) for name, tensor in state.items()]
    before, digest = _KNOWN.get(model, (None, ""))
    if now != before:
        digest = _digest_of(state)
        _KNOWN[model] = now, digest
    return digest


def _digest_of(state: Mapping[str, torch.Tensor]) -> str:
    weights = hashlib.sha256()
    for name, tensor in state.items():
        plain = tensor.detach().cpu().contiguous().view(-1)
        weights.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        weights.update(plain.view(torch.uint8).numpy().data if plain.numel() else b"")
    return weights.hexdigest()


def _texts(value: object) -> Iterator[object]:
    """Yields the values of options, and digests of the files that are read through them."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from _texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)
    else:
        yield _with_code(value) if isinstance(value, str) else str(value)


def _with_code(text: str) -> list[str]:
    """Yields a text and, where it is a spec, digests of the files and modules that it names.

    Of a folder it is those of the settings of a model in it.
    """
    module = getattr(sys.modules.get(text.rpartition(":")[0]), "__file__", None)
    named = set(files_in_spec(text))
    settings = chain.from_iterable(map(_settings, named))
    files = {*named, *settings, *([Path(module)] if module else [])}
    return [text, *(digest for path in sorted(files) if (digest := _digest(path)))]


def _settings(folder: Path) -> list[Path]:
    """Returns the settings files in a folder; none where the folder does not exist."""
    with suppress(OSError, ValueError):
        return list(folder.glob("*config.json"))
    return []


def _digest(path: Path) -> str:
    """Returns the digest of a regular file; empty where it cannot be read."""
    with suppress(OSError, ValueError):
        if path.is_file():
            with path.open("rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()
    return ""


@cache
def _versions() -> list[str]:
    """Returns the versions of numerical libraries, and a digest of this package's code."""
    ours = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        ours.update(path.read_bytes())
    used = [version(name) for name in ("numpy", "scipy", "scikit-learn", "torch")]
    return [__version__, ours.hexdigest(), *used, torch.__config__.show()]
