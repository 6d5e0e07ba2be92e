"""Import of the user's own code: ``path/file.py:NAME`` and ``package.module:NAME``.

This runs the user's code, as any import does. Besides it only ``torch.export`` archives named by
``--model`` are run (``models.exported``).
"""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from gradaudit.errors import UsageError
from gradaudit.files import read_file
from gradaudit.specs import suggest

MAX_BYTES = 16 << 20
"""What a file of code may have."""


def load_callable(location: str, option: str) -> Callable[..., Any]:
    """The callable that ``path/file.py:NAME`` or ``package.module:NAME`` names.

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
    found = getattr(module, name, None)
    if not callable(found):
        raise UsageError(f"{option} {location}: {_no_such_name(module, name)}")
    return found  # type: ignore[no-any-return]


def first_line(error: BaseException) -> str:
    """``Kind: message`` of an exception, on one line."""
    message = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _no_such_name(module: ModuleType, name: str) -> str:
    if hasattr(module, name):
        return f"{name!r} is a {type(getattr(module, name)).__name__} and cannot be called"
    names = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
    own = [n for n in names if getattr(getattr(module, n), "__module__", "") == module.__name__]
    return f"there is no {name!r} in it{suggest(name, names)}; it defines: {', '.join(own) or '-'}"


def _import(source: str, where: str) -> ModuleType:
    content = _read(Path(source), where) if source.endswith(".py") else None
    try:
        if content is not None:
            return _run(Path(source).resolve(), content)
        with _on_path(Path.cwd()):
            return importlib.import_module(source)
    except SyntaxError as error:
        at = f"{error.filename or source}:{error.lineno}"
        raise UsageError(f"{where}: {at}: syntax error: {error.msg}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"{where}: importing it failed with {first_line(error)}") from error


def _read(file: Path, where: str) -> bytes:
    try:
        return read_file(file, MAX_BYTES)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


@cache
def _run(file: Path, content: bytes) -> ModuleType:
    """Run a file as a module of its own name, from exactly this content."""
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
