"""Imports the user's code, ``FILE.py:NAME`` or ``package.module:NAME``, and torchvision.

The first runs the user's code, as any import does. Besides it only ``torch.export`` archives named
by ``--model`` are run (``models.exported``).

A torchvision wheel with compiled operators does not import where its extension cannot be loaded
(a CPU-only torch, for one): it registers shapes for the operators ``nms`` and ``qnms``, which then
do not exist. Models and data sets need neither; with their schemas defined the import succeeds.
"""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from gradaudit.core.files import read_file
from gradaudit.core.parts import without_garbage_collection
from gradaudit.core.specs import parse_spec, suggest
from gradaudit.core.text import first_line
from gradaudit.errors import UsageError, foreign

T = TypeVar("T")

MAX_BYTES = 16 << 20
"""Largest size of a file of code, in bytes."""

_OURS = ("zoo", "torchvision")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def load_callable(location: str, option: str) -> Callable[..., Any]:
    """Returns the callable that ``path/file.py:NAME`` or ``package.module:NAME`` names.

    A file may import its neighbours, a package may lie in the working directory. A file is run
    once for each state of its content.

    Args:
        location: file or module, a colon, and the name in it.
        option: the command line option that named it, for messages, e.g. ``--model``.

    Raises:
        UsageError: no name is given, the file or module is missing or cannot be imported, or the
            name is missing in it or not callable.
    """
    source, _, name = location.rpartition(":")
    if not source or not name.isidentifier():
        raise UsageError(
            f"{option} {location}: name a function in it, as in path/file.py:NAME or "
            "package.module:NAME"
        )
    module = _import(source, f"{option} {location}")
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{option} {location}: {_no_such_name(module, name)}")
    return function  # type: ignore[no-any-return]


def _no_such_name(module: ModuleType, name: str) -> str:
    if hasattr(module, name):
        return f"{name!r} is a {type(getattr(module, name)).__name__} and cannot be called"
    names = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
    defined = [n for n in names if getattr(getattr(module, n), "__module__", "") == module.__name__]
    return (
        f"there is no {name!r} in it{suggest(name, names)}; it defines: {', '.join(defined) or '-'}"
    )


def _import(source: str, where: str) -> ModuleType:
    content = _read(Path(source), where) if source.endswith(".py") else None
    try:
        with foreign(), _on_path(Path.cwd()):
            if content is not None:
                return with_operators(partial(_run, Path(source).resolve(), content))
            return with_operators(partial(importlib.import_module, source))
    except SyntaxError as error:
        at = f"{error.filename or source}:{error.lineno}"
        raise UsageError(f"{where}: {at}: syntax error: {error.msg}") from error
    except Exception as error:
        raise UsageError(f"{where}: importing it failed with {first_line(error)}") from error


def _read(file: Path, where: str) -> bytes:
    try:
        return read_file(file, MAX_BYTES)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


@cache
def _run(file: Path, content: bytes) -> ModuleType:
    """Runs a file's content as a module of its own name."""
    digest = hashlib.sha256(bytes(file) + b"\0" + content).hexdigest()
    name = f"_gradaudit_user_{file.stem}_{digest[:16]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None  # a .py file always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _on_path(file.parent):
            exec(compile(content, str(file), "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        sys.path.remove(entry)


def import_torchvision(submodule: str) -> Any:
    """Import ``torchvision.<submodule>``.

    Raises:
        UsageError: torchvision is missing or does not fit the installed torch.
    """
    try:
        return with_operators(partial(importlib.import_module, f"torchvision.{submodule}"))
    except (ImportError, RuntimeError) as error:
        reason = str(error).split("\n")[0]
        raise UsageError(
            f"torchvision cannot be imported ({reason}); install the release that goes with "
            f"torch {version('torch')}"
        ) from error


def with_operators(load: Callable[[], T]) -> T:
    """Loads what may import torchvision, once more with its missing operators if it needs them."""
    with without_garbage_collection():
        try:
            return load()
        except RuntimeError as error:
            if not str(error).startswith("operator torchvision::nms does not exist"):
                raise
        _define_missing_operators()
        return load()


@cache
def _define_missing_operators() -> Any:
    """Define operators for the life of the process, as a library object removes its own.

    Torch is loaded by then: it has refused torchvision's registration.
    """
    library = sys.modules["torch"].library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(operator + _SCHEMA)
    return library


def code_digest(text: str) -> str | None:
    """Returns the SHA-256 of the file that a spec names; None where it names none.

    Of a module it is the file that it was imported from. What a file imports is not in it.

    Args:
        text: a spec of a model or a loss, which was loaded before.

    Returns:
        The digest in hex; None where no file is named.
    """
    spec = parse_spec(text)
    if spec.scheme in _OURS:
        return None
    source = spec.name.rpartition(":")[0]
    imported = getattr(sys.modules.get(source), "__file__", None)
    for file in (spec.name, source, imported):
        if file and Path(file).is_file():
            return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return None
