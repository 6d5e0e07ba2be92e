"""Each kind of file is opened in one place, and code is run in two."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "gradaudit"
TREES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob("*.py"))
}

OPENED_IN = {
    "torch.load": {"gradaudit.models.checkpoint.torch_file"},
    "torch.export.load": {"gradaudit.models.exported"},
    "torch.jit.load": set(),
    "torch.hub.load": set(),
    "safe_open": {
        "gradaudit.models.checkpoint.shards",
        "gradaudit.federation.canaries",
        "gradaudit.federation.resume",
    },
    "pickle.load": set(),
    "cloudpickle.loads": {"gradaudit.executors.workers"},
    "joblib.load": set(),
    "np.load": {
        "gradaudit.core.contained",
        "gradaudit.data.common.arrays",
        "gradaudit.models.checkpoint.npz_weights",
    },
    "zipfile.ZipFile": {
        "gradaudit.models.checkpoint.torch_file",
        "gradaudit.models.exported",
    },
    "tarfile.open": set(),
    "csv.reader": {"gradaudit.data.common.tables", "gradaudit.cli.commands.init"},
    "Image.open": {"gradaudit.data.common.picture_files"},
    "yaml.load": set(),
    "yaml.safe_load": {"gradaudit.audits.explaining", "gradaudit.audits.job.loading.chains"},
    "eval": set(),
    "exec": {"gradaudit.core.user_code"},
    "os.system": set(),
}
"""Where each kind of file is opened and code is run: nowhere else.

Of pickles these are tensors of a checkpoint, in a child process, and what workers of ours send.
YAML that is read without limits is the package's own table of faults. Of tables ``gradaudit init``
reads no more than the header, at most 16 KiB, to show the names of columns before torch is loaded.
"""


def called_in(tree: ast.Module) -> set[str]:
    """What is called, as it is written."""
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


@pytest.mark.slow
def test_each_kind_of_file_is_opened_in_one_place() -> None:
    calls = {name: called_in(tree) for name, tree in TREES.items()}
    found = {
        function: {module for module, called in calls.items() if function in called}
        for function in OPENED_IN
    }
    assert found == OPENED_IN


@pytest.mark.slow
def test_what_opens_files_of_people_is_imported_by_no_other_name() -> None:
    """So that the calls above are all there are."""
    owners = {"torch.serialization", "pickle", "marshal", "shelve", "dill", "tarfile", "joblib"}
    for tree in TREES.values():
        nodes = list(ast.walk(tree))
        whole = {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
        parts = {
            (node.module or "", alias.name)
            for node in nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        foreign = {name for module, name in parts if not module.startswith("gradaudit")}
        assert not foreign & {"ZipFile", "load", "loads"}
        assert {name for module, name in parts if module in owners} <= {
            "PicklingError",
            "Parallel",
            "delayed",
            "parallel_config",
        }
        assert not whole & (owners - {"pickle"})
