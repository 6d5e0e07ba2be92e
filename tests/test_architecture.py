"""The arrows between the rooms of the package, and what is light, read from the imports."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest
from command_line import expect_light

PACKAGE = Path(__file__).parents[1] / "gradaudit"
HEAVY = {"torch", "torchvision", "scipy", "sklearn", "safetensors", "matplotlib"}

TOOLS = "_version core errors executors measurement presentation progress report trust"
"""What every room may import, and what imports nothing but tools."""
SHARED = {
    "zoo": "",
    "deployment": "",
    "data": "",
    "models": "data zoo",
    "gradients": "data models",
    "defenses": "gradients models",
    "subject": "data defenses deployment gradients models",
    "sharing": "data defenses gradients models",
    "accuracy": "data gradients models",
    "federation": "accuracy data defenses gradients models sharing subject",
    "families": "",
    "games": "",
    "ranks": "gradients models",
    "attacks": "data gradients models ranks sharing subject",
    "audits": "defenses deployment models sharing subject",
}
"""What several audits use, and of the audits what declares them all."""
AUDITS = {
    "sensitivity": "",
    "vinfo": "sensitivity",
    "subspace": "",
    "forward": "",
    "copa_metric": "",
    "floor": "",
    "dp_audit": "",
    "job": "dp_audit",
    "attack_inference": "",
    "attack_reconstruct": "",
    "attack_labels": "attack_reconstruct",
    "attack_tracing": "attack_reconstruct",
    "attack_text": "attack_reconstruct",
    "attack_table": "attack_reconstruct attack_text",
    "attack_record": "attack_reconstruct attack_table",
    "attack_attribution": "attack_table",
    "attack_malicious_server": "",
    "tradeoff": "attack_inference",
    "observe": "attack_table",
}
"""Each audit's folder holds its mathematics; beside what is shared it imports these audits."""
ROOMS = {
    **SHARED,
    **{
        f"audits.{name}": " ".join([*SHARED, *(f"audits.{other}" for other in others.split())])
        for name, others in AUDITS.items()
    },
    "judging": "audits deployment",
    "view": "audits judging",
    "formats": "audits judging view",
    "sweeping": "audits deployment formats",
    "evidence": "audits formats judging sweeping view",
    "config": "audits deployment federation",
    "run": "accuracy audits config data defenses deployment federation gradients models subject",
    "observer": "attacks audits audits.observe formats judging models sharing subject",
    "integrations": "federation judging observer sharing",
    "protection": "audits audits.floor data defenses gradients judging models run sharing subject",
    "measures": "attacks audits audits.attack_inference audits.attack_text audits.dp_audit "
    "audits.floor audits.forward audits.sensitivity audits.subspace audits.tradeoff audits.vinfo "
    "games ranks",
    "api": "attacks audits config data defenses deployment models run sharing subject",
    "testing": "api attacks audits audits.dp_audit data defenses families federation formats "
    "protection",
    "cli": "audits audits.job config defenses deployment evidence formats judging models observer "
    "protection run subject sweeping view zoo",
    "__init__": "api formats judging models observer",
    "__main__": "cli",
}
"""Every room of the package and which it may import, each of them above it in this table."""

LIGHT = (
    "__init__ __main__ _version audits cli config core deployment errors evidence formats judging "
    "measurement presentation progress report trust view"
)
"""Rooms that are imported before anything is measured; of an audit's folder, its declaration."""
NOT_LIGHT = ("gradaudit.core.huggingface", "gradaudit.core.statistics")
"""Modules and folders of light rooms that load torch, SciPy or scikit-learn."""


PRIVATE = {
    "os._exit": "the documented way to end a process at once",
    "torch.utils._pytree": "torch.func takes and gives nested gradients, and torch has no public "
    "name for what maps over them",
    "torch.utils._python_dispatch": "TorchDispatchMode sees the operators of a backward pass, as "
    "torch documents; no public module has it",
    "torch._ops": "OpOverload, the type of operators in graphs of torch.fx and torch.export, which "
    "no public module exports",
}
"""Names of other packages that begin with ``_`` and that the package uses, with the reasons."""


class Module(NamedTuple):
    """A module of the package, and what it imports.

    Attributes:
        room: the first part of its name below ``gradaudit``, and of an audit's the folder too.
        when_loaded: imported when it is: not inside functions, not for types alone.
        ever: all that it imports, for types alone too.
    """

    room: str
    when_loaded: set[str]
    ever: set[str]


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    """Modules, and whatever is taken from them, which may be modules too."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
        elif isinstance(node, ast.Call) and _is_import_module(node.func):
            names.update(str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant))
    return names


def _is_import_module(function: ast.expr) -> bool:
    return isinstance(function, ast.Name | ast.Attribute) and "import_module" in (
        getattr(function, "id", ""),
        getattr(function, "attr", ""),
    )


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Every node of a file's syntax tree, the module first."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def read(path: Path) -> Module:
    module = nodes_of(path)[0]
    assert isinstance(module, ast.Module)
    room = room_of(".".join(path.relative_to(PACKAGE).with_suffix("").parts))
    return Module(room, imported(module.body), imported(nodes_of(path)))


def room_of(name: str) -> str:
    """The room of a module by its name below ``gradaudit``; each audit's folder is one."""
    first, *rest = name.split(".")
    return f"{first}.{rest[0]}" if first == "audits" and rest and rest[0] in AUDITS else first


def name_of(path: Path) -> str:
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    return name.removesuffix(".__init__")


PATHS = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
PLACES = {room: place for place, room in enumerate(ROOMS)}


@cache
def modules() -> dict[str, Module]:
    """Every module of the package, by its name."""
    return {name: read(path) for name, path in PATHS.items()}


def ours(names: Iterable[str]) -> set[str]:
    """The modules of the package among names, with the packages that they lie in."""
    parts = [name.split(".") for name in names]
    return {".".join(name[:end]) for name in parts for end in range(1, len(name) + 1)} & set(PATHS)


@cache
def loads(name: str) -> set[str]:
    """What of the package a module imports when it is loaded."""
    return ours(modules()[name].when_loaded)


def rooms(names: Iterable[str]) -> set[str]:
    return {room_of(name.removeprefix("gradaudit.")) for name in ours(names) if "." in name}


def is_light(name: str) -> bool:
    """Whether a module must be; helpers of audits whose names begin with ``_`` may be or not."""
    folders = PATHS[name].relative_to(PACKAGE).parts
    if folders[0] == "audits" and len(folders) > 1:
        declared = len(folders) == 2 or folders[2:] in (("__init__.py",), ("options.py",))
        return declared and (folders[1] == "__init__.py" or not folders[1].startswith("_"))
    return modules()[name].room in LIGHT.split() and not name.startswith(NOT_LIGHT)


def loaded_with(name: str) -> set[str]:
    """A module and all of the package that are loaded with it."""
    known, left = set[str](), {name}
    while left:
        known |= left
        left = {more for one in left for more in loads(one)} - known
    return known


def test_every_room_is_in_the_table_below_all_that_it_imports() -> None:
    assert {module.room for module in modules().values()} == {*TOOLS.split(), *ROOMS}
    for room, may in ROOMS.items():
        assert all(PLACES[other] < PLACES[room] for other in may.split()), room


def test_arrows_point_downwards() -> None:
    tools = set(TOOLS.split())
    for name, module in modules().items():
        may = {module.room, *tools, *ROOMS.get(module.room, "").split()}
        may |= {"audits"} if module.room.startswith("audits.") else set()
        assert rooms(module.ever) <= may, f"{name} may not import {rooms(module.ever) - may}"


def test_the_report_imports_nothing_above_it() -> None:
    assert rooms(modules()["gradaudit.report"].ever) == {
        *("core", "errors", "measurement", "presentation"),
    }
    assert rooms(modules()["gradaudit.measurement"].ever) == {"core"}
    assert rooms(modules()["gradaudit.core.text"].ever) == set()


def test_no_module_imports_itself_through_others() -> None:
    arrows = {name: ours_alone(module.ever) - {name} for name, module in modules().items()}
    while leaves := [name for name, above in arrows.items() if not above & arrows.keys()]:
        for name in leaves:
            del arrows[name]
    assert not arrows


def ours_alone(names: Iterable[str]) -> set[str]:
    """The modules of the package among names."""
    return set(names) & set(PATHS)


def test_private_names_of_other_packages_are_in_the_table() -> None:
    used = set().union(*(private(nodes_of(path)) for path in PATHS.values()))
    assert used == PRIVATE.keys()


def test_private_names_are_found() -> None:
    code = """
        import torch._C as C, torch.nn as nn
        from torch._ops import OpOverload
        from torch.nn.modules.conv import _ConvNd, Conv2d
        from gradaudit._version import __version__
        nn.functional._pad(1), self._own, torch.__version__
    """
    found = private(list(ast.walk(ast.parse(dedent(code)))))
    pad = "torch.nn.functional._pad"
    assert found == {"torch._C", "torch._ops", "torch.nn.modules.conv._ConvNd", pad}


def private(nodes: Sequence[ast.AST]) -> set[str]:
    """The private names of other packages, up to the first part that begins with ``_``."""
    known: dict[str, str] = {}
    names = imported(nodes)
    for node in nodes:
        if isinstance(node, ast.Import):
            firsts = [each.name if each.asname else each.name.split(".")[0] for each in node.names]
            known |= {
                each.asname or first: first for each, first in zip(node.names, firsts, strict=True)
            }
        elif isinstance(node, ast.ImportFrom):
            known |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            first, *rest = ast.unparse(node).split(".")
            names.add(".".join([known.get(first, ""), *rest]))
    found = (
        re.match(r"(?!gradaudit\b)[a-z]\w*(\.[a-zA-Z]\w*)*\._(?!_)\w+", name) for name in names
    )
    return {match[0] for match in found if match}


def test_light_modules_load_nothing_heavy() -> None:
    light = [name for name in PATHS if is_light(name)]
    assert len(light) > 80
    for name in light:
        for loaded in loaded_with(name):
            heavy = HEAVY & {imported.split(".")[0] for imported in modules()[loaded].when_loaded}
            assert not heavy, f"{name} loads {loaded}, which imports {heavy}"


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


@pytest.mark.processes
def test_an_audit_loads_no_library_that_it_does_not_use(tmp_path: Path) -> None:
    """Loading one of these libraries takes as long as an audit of a small model does."""
    sample = PACKAGE.parent / "sample_models"
    model = ["--model", f"{sample / 'models.py'}:digits_cnn", "--data", "digits"]
    weights = ["--checkpoint", sample / "digits" / "round-10.safetensors"]
    output = ["--samples", 4, "-o", tmp_path / "report.json", "-q"]
    expect_light(
        [[audit, *model, *weights, *output] for audit in ("forward", "sensitivity")],
        {
            *("scipy.stats", "scipy.optimize", "sklearn", "matplotlib", "torchvision", "pandas"),
            "transformers",
        },
    )


def test_a_class_name_stands_for_one_class() -> None:
    homes: dict[str, list[str]] = {}
    for name, path in PATHS.items():
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name)
    assert {kind: where for kind, where in homes.items() if len(where) > 1} == {}


def test_a_file_name_stands_for_one_file() -> None:
    homes: dict[str, list[str]] = {}
    for name, path in PATHS.items():
        homes.setdefault(path.name, []).append(name)
    shared = {"__init__.py", "base.py", "measure.py"}
    assert {n: where for n, where in homes.items() if len(where) > 1 and n not in shared} == {}


def test_a_folder_holds_at_most_fourteen_files() -> None:
    counts = Counter(path.parent for path in PATHS.values())
    assert {str(folder): count for folder, count in counts.items() if count > 14} == {}
