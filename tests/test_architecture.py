"""The arrows between the packages, read from the imports themselves."""

import ast
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from command_line import expect_light

PACKAGE = Path(__file__).parents[1] / "gradaudit"
HEAVY = {"torch", "torchvision", "scipy", "sklearn", "safetensors", "matplotlib"}
LIGHT = ("cli", "judging", "formats", "audits", "report", "parts", "config", "errors", "progress")
MEASURING = ("audits", "data", "dp", "gradients", "models", "ranks", "runner", "zoo")


class Module(NamedTuple):
    """A module of the package, and what it imports.

    Attributes:
        home: the first part of its name below ``gradaudit``.
        when_loaded: modules imported when it is: not inside functions, not under TYPE_CHECKING.
        ever: all modules that it imports.
    """

    home: str
    when_loaded: set[str]
    ever: set[str]

    @property
    def rooms(self) -> set[str]:
        """First part below ``gradaudit`` of what it imports of it."""
        return {name.split(".")[1] for name in self.ever if name.startswith("gradaudit.")}


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def read(path: Path) -> Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    home = path.relative_to(PACKAGE).with_suffix("").parts[0]
    return Module(home, imported(tree.body), imported(ast.walk(tree)))


MODULES = {str(path.relative_to(PACKAGE)): read(path) for path in sorted(PACKAGE.rglob("*.py"))}


def offenders(homes: Collection[str], bad: Callable[[Module], set[str]]) -> dict[str, set[str]]:
    """What modules of these homes import and should not."""
    found = {path: bad(module) for path, module in MODULES.items() if module.home in homes}
    assert found
    return {path: names for path, names in found.items() if names}


def measures(path: str) -> bool:
    """Whether a module lies beside the declaration of an audit, and is imported when it is run."""
    home, *folders, name = Path(path).parts
    return home == "audits" and bool(folders) and name not in ("__init__.py", "options.py")


def test_nothing_imports_the_command_line() -> None:
    others = {module.home for module in MODULES.values()} - {"cli", "__main__"}
    assert not offenders(others, lambda module: module.rooms & {"cli"})


def test_light_modules_import_nothing_heavy_when_loaded() -> None:
    def heavy(module: Module) -> set[str]:
        return HEAVY & {name.split(".")[0] for name in module.when_loaded}

    found = offenders(LIGHT, heavy)
    assert not {path for path in found if not measures(path)}


def test_judging_and_formats_do_not_measure() -> None:
    measuring = {"data", "gradients", "models", "ranks", "runner", "subject"}
    assert not offenders(["judging", "formats"], lambda module: module.rooms & measuring)


def test_measuring_does_not_judge() -> None:
    assert not offenders(MEASURING, lambda module: module.rooms & {"judging", "formats"})


def test_the_report_knows_nothing_but_errors_and_files() -> None:
    assert not offenders(["report"], lambda module: module.rooms - {"errors", "files"})


def test_light_commands_never_import_torch() -> None:
    expect_light(
        [
            ["--help"],
            ["--version"],
            ["list"],
            ["schema"],
            ["gate", "--help"],
            ["scan", "--help"],
        ],
        {"torch", "scipy", "sklearn"},
    )
