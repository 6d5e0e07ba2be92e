"""The recipes of CONTRIBUTING.md are what it says: one file each, found and usable."""

import ast
import csv
import importlib
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import run

from gradaudit.cli import build
from gradaudit.config import file_model
from gradaudit.core.parts import discover
from gradaudit.testing import check_part

GUIDE = Path(__file__).parents[1] / "CONTRIBUTING.md"
RECIPES = dict(
    re.findall(r"```python\n# (gradaudit/\S+)\.py\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
)
PACKAGE = "contributed_parts"
SUBJECT = ("--model", "zoo:mlp?inputs=8&classes=2&hidden=6", "--data", "parity:24")


def entry_points() -> str:
    """The entry points of a distribution that offers every recipe, as its metadata has them."""
    lines = []
    for path, source in RECIPES.items():
        folder, _, module = path.rpartition("/")
        *_, part = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
        lines += [f"[{folder.replace('/', '.')}]", f"{module} = {PACKAGE}.{module}:{part.name}"]
    return "\n".join(lines)


def forget_parts() -> None:
    """What was found before does not count."""
    for cached in (discover, build, file_model):
        cached.cache_clear()
    importlib.invalidate_caches()


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The recipes as an installed distribution."""
    site = tmp_path_factory.mktemp("site")
    (site / PACKAGE).mkdir()
    for path, source in RECIPES.items():
        (site / PACKAGE / f"{Path(path).name}.py").write_text(source, encoding="utf-8")
    metadata = site / f"{PACKAGE}-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(entry_points())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        forget_parts()
        yield
    forget_parts()
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def test_there_is_a_recipe_for_each_folder() -> None:
    assert [str(Path(path).parent) for path in RECIPES] == [
        "gradaudit/audits",
        "gradaudit/attacks/reconstruction",
        "gradaudit/defenses",
        "gradaudit/data",
        "gradaudit/formats",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize("path", RECIPES)
def test_they_keep_the_contract(path: str) -> None:
    options = {"quantize": {"step": 0.01}, "parity": {"source": "50"}}
    module = importlib.import_module(f"{PACKAGE}.{Path(path).name}")
    *_, part = (x for x in vars(module).values() if getattr(x, "__module__", "") == module.__name__)
    check_part(part, **options.get(part.name, {}))


@pytest.mark.slow
@pytest.mark.usefixtures("offered")
def test_they_are_listed() -> None:
    listed = json.loads(run("list", "-f", "json").out)
    assert "gradient-norm" in listed["audits"]
    assert "gradient-norm.length" in listed["metrics"]
    assert "blank" in listed["reconstructions"]
    assert "quantize:0.01" in listed["defenses"]
    assert "parity:RECORDS?bits=8" in listed["data"]
    assert "tsv (.tsv)" in listed["formats"]


@pytest.mark.usefixtures("offered")
def test_the_audit_measures_the_data_and_the_format_shows_it(tmp_path: Path) -> None:
    report = tmp_path / "report.tsv"
    done = run("gradient-norm", *SUBJECT, "--records", 12, "-o", report)
    assert done.status == 0, done.err
    rows = list(csv.DictReader(report.open(), delimiter="\t"))
    assert [(row["metric"], row["layer"]) for row in rows] == [
        ("gradient-norm.length", "fc1"),
        ("gradient-norm.length", "output"),
    ]
    assert all(0 < float(row["value"]) < math.inf for row in rows)


@pytest.mark.usefixtures("offered")
def test_the_audit_measures_behind_the_defenses(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run("gradient-norm", *SUBJECT, "--defense", "quantize:1000", "-o", report)
    assert done.status == 0, done.err
    assert [row["value"] for row in json.loads(report.read_text())["measurements"]] == [0, 0]
    assert "not applied by" not in done.out


@pytest.mark.usefixtures("offered")
def test_the_attack_is_scored_behind_the_defense() -> None:
    arguments = ("--method", "blank", "--defense", "quantize:0.01", "-f", "json")
    done = run("attack", "reconstruct", *SUBJECT, *arguments)
    assert done.status == 0, done.err
    report = json.loads(done.out)
    rows = [row for row in report["measurements"] if row["metric"] == "relative_error"]
    assert rows[0]["value"] == pytest.approx(1.0)
    assert "quantize:0.01" in done.out
