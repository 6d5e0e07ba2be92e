"""Builds a fresh ``nn.Module`` and a :class:`Loss` from a MODEL spec and ``--loss``."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gradaudit.core.specs import Spec, arguments, parse_spec, suggest
from gradaudit.core.text import first_line
from gradaudit.core.user_code import import_torchvision, load_callable
from gradaudit.errors import GradauditError, UsageError, foreign
from gradaudit.models import hf_folder
from gradaudit.models.exported import load_exported
from gradaudit.models.hf_folder import load_folder
from gradaudit.models.losses import BUILT_IN, Loss
from gradaudit.models.torch_losses import user_loss
from gradaudit.zoo import factory as zoo_factory
from gradaudit.zoo import zoo_names

_FORMS = (
    "zoo:NAME, torchvision:NAME, hf:FOLDER, path/to/file.py:factory, package.module:factory or "
    "a torch.export archive (.pt2)"
)
_NO_OPTIONS = ("weights", "progress")


def load_model(spec: str, *, seed: int = 0) -> nn.Module:
    """Returns the model that a MODEL spec names, on the CPU, with weights drawn under the seed.

    The generators of torch, numpy and Python are left as they were. Nothing is downloaded.

    Args:
        spec: ``zoo:NAME``, ``torchvision:NAME``, ``hf:FOLDER`` of transformers,
            ``path/to/file.py:factory`` or ``package.module:factory``, each with
            ``?option=value&…``, a module in their place, or a ``torch.export``
            archive (``.pt2``), which is run as code too and brings its own weights.
        seed: of the fresh weights.

    Raises:
        UsageError: no such model, an unknown or wrong option, a factory that fails or does not
            return an ``nn.Module``.
        CheckpointError: an archive is refused (see :func:`load_exported`).
    """
    parsed = parse_spec(spec)
    with _drawn_under(seed):  # importing the user's file may draw, but only the first time
        build = _factory(parsed)
    with _drawn_under(seed):
        model = _call(parsed, build)
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"--model {spec}: returned a {type(model).__name__}; return a torch.nn.Module"
        )
    if any(nn.parameter.is_lazy(parameter) for parameter in model.parameters()):
        raise UsageError(
            f"--model {spec}: has lazy layers without a shape; run it on a batch of zeros "
            "in the factory"
        )
    return model


def brought_by(spec: str) -> tuple[Path, ...]:
    """Returns the checkpoint that comes with a MODEL spec; None where none does."""
    parsed = parse_spec(spec)
    if parsed.scheme != "hf":
        return ()
    adapter = arguments(parsed, load_folder, ("folder",)).get("adapter")
    weights = hf_folder.brought_by(Path(parsed.rest), adapter)
    return () if weights is None else (weights,)


def load_loss(spec: str) -> Loss:
    """Returns the loss that ``--loss`` names: a built-in one or ``FILE.py:NAME``.

    Raises:
        UsageError: no such loss, or the file's function cannot be had.
    """
    if spec in BUILT_IN:
        return BUILT_IN[spec]()
    if ":" in spec:
        function = load_callable(spec, "--loss")
        if isinstance(function, type):
            raise UsageError(
                f"--loss {spec}: is a class; name a function of (outputs, targets) or an instance"
            )
        return user_loss(function, spec)
    known = ", ".join([*BUILT_IN, "FILE.py:NAME"])
    raise UsageError(f"--loss {spec}: unknown{suggest(spec, BUILT_IN)}; known: {known}")


def _factory(spec: Spec) -> Callable[[], Any]:
    """Returns the function that builds the model, with the spec's options bound."""
    if spec.scheme == "zoo":
        return _bound(spec, zoo_factory(spec.rest))
    if spec.scheme == "torchvision":
        return partial(_bound(spec, _torchvision(spec.rest), _NO_OPTIONS), weights=None)
    if spec.scheme == "hf":
        return _bound(spec, partial(load_folder, Path(spec.rest)))
    if spec.name.endswith(".pt2"):
        return _bound(spec, partial(load_exported, Path(spec.name)))
    if ":" not in spec.name:
        raise UsageError(f"--model {spec.text}: {_no_form(spec.name)}")
    factory = load_callable(spec.name, "--model")
    if isinstance(factory, nn.Module):
        if spec.options:
            raise UsageError(f"--model {spec.text}: is a model, which takes no options")
        return partial(copy.deepcopy, factory)
    return _bound(spec, factory)


def _bound(
    spec: Spec, factory: Callable[..., Any], given: tuple[str, ...] = ()
) -> Callable[..., Any]:
    return partial(factory, **arguments(spec, factory, given))


def _torchvision(name: str) -> Callable[..., nn.Module]:
    models = import_torchvision("models")
    names: list[str] = models.list_models(module=models)
    if name not in names:
        raise UsageError(
            f"torchvision:{name}: not one of its {len(names)} classification models"
            f"{suggest(name, names)}"
        )
    return models.get_model_builder(name)  # type: ignore[no-any-return]


def _no_form(name: str) -> str:
    if name in zoo_names():
        return f"write zoo:{name}"
    if name.endswith(".py"):
        return f"name the function in it that returns the model, as in {name}:factory"
    if Path(name).is_file():
        return (
            "a file of weights is no model; give it with --checkpoint (a torch.export archive "
            "whose code you trust is named .pt2)"
        )
    return f"unknown; write {_FORMS}"


def _call(spec: Spec, build: Callable[[], Any]) -> Any:
    try:
        with foreign():
            return build()
    except UsageError as error:
        raise UsageError(f"--model {spec.text}: {error}") from error
    except GradauditError:
        raise
    except Exception as error:
        raise UsageError(
            f"--model {spec.text}: building it failed with {first_line(error)}"
        ) from error


@contextmanager
def _drawn_under(seed: int) -> Iterator[None]:
    """Seed the global generators, and restore them afterwards."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - factories draw there
    try:
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            random.seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
