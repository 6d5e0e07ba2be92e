"""Discovery of parts and of optional libraries.

Audits, adapters and formats are the classes found in their package.

A part is a concrete subclass of its kind's base class with a ``name``. It is found by living in a
module of the kind's package (one whose name begins with ``_`` holds none), or by an entry point of
the group ``gradaudit.<kind>`` of another installed distribution. Nothing keeps a list.
"""

import ast
import gc
import importlib
import inspect
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from gradaudit.core.specs import suggest
from gradaudit.errors import PartWarning, UsageError, foreign, one_line

P = TypeVar("P")
_PARSING = Lock()
_SUMMARY = re.compile(r"^ +summary\b.*=", re.MULTILINE)
_GROUPS = {"gradaudit.audits.dp_audit.mechanisms": "gradaudit.dp.mechanisms"}
"""Entry point groups of packages whose group has another name."""


@cache
def discover(package: str, base: type[P], name: str | None = None) -> dict[str, type[P]]:
    """Returns every concrete subclass of ``base`` in ``package`` and its entry points, by name.

    Args:
        package: full name of the package that holds one part a module, e.g. ``gradaudit.audits``;
            the entry point group has the same name.
        base: the kind's base class.
        name: whose part is enough: modules of the package that declare others are not imported.

    Returns:
        The parts sorted by their ``name``. One of another distribution that cannot be used is left
        out, with a ``PartWarning``.
    """
    called: Callable[[type[P]], str] = attrgetter("name")  # as the kind's base class declares
    parts = {called(part): part for part in _in_package(package, base, name)}
    for entry, part in _from_entry_points(package, base):
        named = called(part)
        if parts.setdefault(named, part) is not part:
            _leave_out_second(entry, named, parts[named].__module__)
    return dict(sorted(parts.items()))


def _in_package(package: str, base: type[P], name: str | None) -> Iterator[type[P]]:
    spec = find_spec(package)
    assert spec is not None
    for info in pkgutil.iter_modules(spec.submodule_search_locations):
        if info.name.startswith("_") or not _may_hold(name, f"{package}.{info.name}"):
            continue
        module = importlib.import_module(f"{package}.{info.name}")
        for _, member in inspect.getmembers(module, inspect.isclass):
            if (
                issubclass(member, base)
                and member.__module__ == module.__name__
                and not inspect.isabstract(member)
                and hasattr(member, "name")
            ):
                yield member


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Import modules with garbage collection off, as imports make many objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _may_hold(name: str | None, module: str) -> bool:
    """Whether a module may hold a part of this name, or any part where the name is None."""
    return name is None or not (others := declared(module)) or name in others


def _from_entry_points(group: str, base: type[P]) -> Iterator[tuple[EntryPoint, type[P]]]:
    for entry, part in _loaded(group):
        if inspect.isclass(part) and issubclass(part, base) and hasattr(part, "name"):
            yield entry, part
        else:
            what = f"{_said(entry)} is no subclass of {base.__name__} with a name"
            _leave_out(what, "repair the distribution that offers it")


def _said(entry: EntryPoint) -> str:
    """Name an entry point, its group and its distribution."""
    of = f" of {entry.dist.name}" if entry.dist else ""
    return f"entry point {entry.name} in {entry.group}{of}"


def _leave_out_second(entry: EntryPoint, name: str, other: str) -> None:
    what = f"{_said(entry)} has the name {name!r} of a part in {other}"
    _leave_out(what, "give it another name")


def _loaded(package: str, besides: Collection[str] = ()) -> Iterator[tuple[EntryPoint, Any]]:
    """Yields entry points of a package's group, each with the object that it names.

    Args:
        package: full name of the package.
        besides: ``MODULE:CLASS`` of those that are left aside.
    """
    for entry in _of_group(package):
        if f"{entry.module}:{entry.attr}" in besides:
            continue
        try:
            with foreign():
                part = entry.load()
        except Exception as error:
            _leave_out(
                f"{_said(entry)} cannot be loaded ({one_line(error)})",
                "repair or uninstall the distribution that offers it",
            )
        else:
            yield entry, part


def _of_group(package: str) -> Any:
    return _entry_points(tuple(sys.path)).select(group=_GROUPS.get(package, package))


def name_unknown_groups(packages: Collection[str], listed: Collection[str]) -> None:
    """Warn of entry points in groups ``gradaudit.…`` of no kind of part.

    Those that seem to mean a kind that is not listed are passed over.

    Args:
        packages: whose parts entry points may name.
        listed: those of them that are looked at.
    """
    known = sorted(_GROUPS.get(package, package) for package in packages)
    wanted = [_GROUPS.get(package, package) for package in listed]
    found = _entry_points(tuple(sys.path))
    for group in sorted(found.groups):
        if not group.startswith("gradaudit.") or group in known:
            continue
        meant = suggest(group, known)
        if meant and not any(repr(each) in meant for each in wanted):
            continue
        for entry in found.select(group=group):
            what = f"{_said(entry)}: the group is of no kind of part{meant}"
            _leave_out(what, "docs/parts.md lists the groups")


@cache
def _entry_points(path: tuple[str, ...]) -> Any:
    """Returns all entry points; this reads a file of every distribution on the path."""
    return entry_points()


def classes_of(package: str, base: Any) -> Callable[[str], Any]:
    """A package's ``__getattr__``, which finds its parts by the names of their classes."""

    def find(name: str) -> Any:
        if name[:1].isupper():
            for part in discover(package, base).values():
                if part.__name__ == name:
                    return part
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find


def library(module: str, extra: str, asked: str) -> Any:
    """Returns a module of a library that comes with an extra of this distribution.

    Args:
        module: full name of the module.
        extra: name of the extra.
        asked: what needs it, for the message: an option, or the spec of a file.

    Raises:
        UsageError: the library is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        missing = error.name in (name, module)
        why = "is not installed" if missing else f"cannot be imported ({one_line(error)})"
        raise UsageError(f"{asked}: {name} {why}; install gradaudit[{extra}]") from error


def source_line(thing: Any) -> str:
    """Returns `` (FILE, line N)`` of a class or function; empty where there is no source."""
    source = inspect.unwrap(getattr(thing, "__func__", thing))
    try:
        file, line = inspect.getsourcefile(source), inspect.getsourcelines(source)[1]
    except (OSError, TypeError):
        return ""
    return f" ({Path(str(file)).name}, line {line})"


def _leave_out(what: str, remedy: str) -> None:
    warnings.warn(f"{what}, and is left out; {remedy}", PartWarning, stacklevel=2)


def part_named(package: str, name: str) -> type[Any] | None:
    """Returns the part of ``package`` or of its entry points with this name; None for no part."""
    if found := offered(package).get(name):
        part: type[Any] = getattr(importlib.import_module(found["module"]), found["class"])
        return part
    return next((part for _, part in _loaded(package) if part.name == name), None)


def summaries(package: str, by: str = "name") -> dict[str, str]:
    """Returns each part of ``package`` with its ``summary``, read from the source.

    Of other distributions those parts are imported whose source does not declare both.

    Args:
        package: full name of the package that holds them.
        by: what they are called by: ``name``, or ``example``, a spec that names one.

    Returns:
        The summaries, sorted by the parts' names.
    """
    read = offered(package)
    known = {f"{part['module']}:{part['class']}" for part in read.values()}
    parts = dict(read)
    for entry, part in _loaded(package, known):
        if not all(hasattr(part, key) for key in ("name", by, "summary")):
            continue
        if part.name in parts:
            _leave_out_second(entry, part.name, parts[part.name]["module"])
        else:
            found = {key: getattr(part, key) for key in ("name", by, "summary")}
            parts[part.name] = {**found, "module": part.__module__}
    return {parts[name].get(by, name): parts[name]["summary"] for name in sorted(parts)}


def offered(package: str) -> dict[str, dict[str, Any]]:
    """Returns the declarations of a package's own parts and of those that entry points name.

    Nothing is imported: a part of another distribution stands here where its class holds its
    ``name`` and its ``summary`` as plain strings.
    """
    parts = dict(declared(package))
    for entry in _of_group(package):
        source = _source_of(entry)
        for part in _foundin(source) if source else ():
            if part["class"] == entry.attr:
                parts.setdefault(part["name"], {**part, "module": entry.module})
    return parts


def _source_of(entry: EntryPoint) -> Path | None:
    """Returns the file of an entry point's module, whose packages are not imported."""
    first, *rest = entry.module.split(".")
    try:
        spec = find_spec(first)
    except (ImportError, ValueError):
        return None
    if spec is None or not (folders := spec.submodule_search_locations):
        files = [Path(spec.origin)] if spec and spec.origin and not rest else []
    else:
        places = [Path(folder, *rest) for folder in folders]
        files = [file for p in places for file in (p / "__init__.py", p.with_suffix(".py"))]
    return next((file for file in files if file.suffix == ".py" and file.is_file()), None)


def declared(package: str) -> dict[str, dict[str, Any]]:
    """Returns class attributes of a package's own parts by part name, read from the source.

    Beside them stand the names of the ``module`` and of the ``class``. It is not imported, so that
    parts that need torch are listed without it. The parts of a single module stand in the order of
    its source.
    """
    spec = find_spec(package)
    assert spec is not None
    if spec.submodule_search_locations is None:
        parts = [{**part, "module": package} for part in _foundin(Path(str(spec.origin)))]
    else:
        folders = map(Path, spec.submodule_search_locations)
        files = sorted(file for folder in folders for file in folder.glob("*.py"))
        parts = [
            {**part, "module": f"{package}.{file.stem}"}
            for file in files
            for part in _foundin(file)
        ]
        parts.sort(key=lambda part: str(part["name"]))
    return {part["name"]: part for part in parts}


def forms(package: str) -> str:
    """Lists specs of the parts for help: their examples, or their names."""
    return ", ".join(str(part.get("example", part["name"])) for part in offered(package).values())


def parsed(source: str) -> ast.Module:
    """Parses Python source, in one thread at a time.

    Of two threads that parse at once, Python 3.11 fails one: "recursion depth mismatch".
    """
    with _PARSING:
        return ast.parse(source)


@cache
def _foundin(file: Path) -> list[dict[str, Any]]:
    source = file.read_text(encoding="utf-8")
    if not _SUMMARY.search(source):
        return []  # a module without parts need not be parsed, which takes time
    classes = [
        {"class": node.name, **dict(_constants(node))}
        for node in parsed(source).body
        if isinstance(node, ast.ClassDef)
    ]
    return [constants for constants in classes if constants.keys() >= {"name", "summary"}]


def _constants(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """Returns the class attributes that are constants in the source."""
    for line in node.body:
        if isinstance(line, ast.Assign | ast.AnnAssign) and isinstance(line.value, ast.Constant):
            target = line.targets[0] if isinstance(line, ast.Assign) else line.target
            if isinstance(target, ast.Name):
                yield target.id, line.value.value
