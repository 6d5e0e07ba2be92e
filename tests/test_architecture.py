"""The arrows between the packages, read from the imports themselves."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "gradaudit"
HEAVY = {"torch", "torchvision", "scipy", "sklearn", "safetensors", "matplotlib"}
LIGHT = ("cli", "judging", "formats", "audits", "report", "parts", "config", "errors", "progress")


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_at_the_top(tree: ast.Module) -> set[str]:
    """Modules imported when the file is: not inside functions, not under TYPE_CHECKING."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def all_imports(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def packages_of(names: set[str]) -> set[str]:
    """First part below ``gradaudit`` of the names that lie in it."""
    return {name.split(".")[1] for name in names if name.startswith("gradaudit.")}


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_nothing_imports_the_command_line(path: Path) -> None:
    if path.relative_to(PACKAGE).parts[0] in ("cli", "__main__.py"):
        return
    assert "cli" not in packages_of(all_imports(ast.parse(path.read_text())))


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_light_modules_import_nothing_heavy_when_loaded(path: Path) -> None:
    if path.relative_to(PACKAGE).with_suffix("").parts[0] not in LIGHT:
        return
    names = imports_at_the_top(ast.parse(path.read_text()))
    assert not HEAVY & {name.split(".")[0] for name in names}


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_measuring_and_judging_are_separate(path: Path) -> None:
    imported = packages_of(all_imports(ast.parse(path.read_text())))
    home = path.relative_to(PACKAGE).with_suffix("").parts[0]
    if home in ("judging", "formats"):
        assert not imported & {"gradients", "loading", "target", "subject", "runner", "ranks"}
    if home in ("audits", "gradients", "ranks", "loading", "runner", "zoo", "dp"):
        assert not imported & {"judging", "formats"}
    if home == "report":
        assert imported <= {"errors", "files"}


OPENED_IN = {
    "torch.load": {"gradaudit.loading.checkpoint.reading"},
    "torch.export.load": {"gradaudit.loading.exported.module"},
    "torch.jit.load": set(),
    "torch.hub.load": set(),
    "safe_open": {"gradaudit.loading.checkpoint.reading", "gradaudit.federation.resume"},
    "pickle.load": set(),
    "pickle.loads": set(),
    "cloudpickle.loads": {"gradaudit.workers"},
    "joblib.load": set(),
    "np.load": {"gradaudit.attacks.reconstruction.initial"},
    "npy.read_array": {"gradaudit.loading.datasets.common.arrays"},
    "zipfile.ZipFile": {
        "gradaudit.loading.datasets.common.arrays",
        "gradaudit.loading.exported.module",
    },
    "tarfile.open": set(),
    "csv.reader": {"gradaudit.loading.datasets.common.tables"},
    "Image.open": {"gradaudit.loading.datasets.common.pictures"},
    "yaml.load": set(),
    "yaml.safe_load": set(),
    "eval": set(),
    "exec": {"gradaudit.loading.user_code", "gradaudit.loading.exported.module"},
    "os.system": set(),
}
"""Where each kind of file is opened and code is run: nowhere else."""


def called_in(tree: ast.Module) -> set[str]:
    """What is called, as it is written."""
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_each_kind_of_file_is_opened_in_one_place() -> None:
    calls = {name_of(path): called_in(ast.parse(path.read_text())) for path in modules()}
    found = {
        function: {module for module, called in calls.items() if function in called}
        for function in OPENED_IN
    }
    assert found == OPENED_IN


def test_what_opens_files_of_people_is_imported_by_no_other_name() -> None:
    """So that the calls above are all there are."""
    owners = {"torch.serialization", "pickle", "marshal", "shelve", "dill", "tarfile", "joblib"}
    for path in modules():
        imported = {
            (node.module, alias.name)
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        foreign = {name for module, name in imported if not module.startswith("gradaudit")}
        assert not foreign & {"ZipFile", "load", "loads"}
        assert {name for module, name in imported if module in owners} <= {"PicklingError"}
        assert not owners - {"pickle"} & all_imports(ast.parse(path.read_text()))


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["list"], ["schema"], ["gate", "--help"], ["scan", "--help"]],
    ids=" ".join,
)
def test_light_commands_never_import_torch(arguments: list[str]) -> None:
    script = (
        "import sys\n"
        f"sys.argv = ['gradaudit', *{arguments!r}]\n"
        "from gradaudit.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert end.code in (None, 0), end.code\n"
        "heavy = {'torch', 'scipy', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
