"""The example package of docs/parts.md is installed by pip, found, and does what it says."""

import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import HANGS, run

from gradaudit.core.parts import _GROUPS, discover
from gradaudit.core.user_code import load_callable
from gradaudit.defenses import parse_defense
from gradaudit.testing import check_part

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "rounding"
PAGE = (ROOT / "docs" / "parts.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The example as pip installs it, without a network and outside this environment."""
    source, site = tmp_path_factory.mktemp("source") / "rounding", tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE, source)
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *flags, "--target", site, source],
        check=True,
        timeout=HANGS,
        capture_output=True,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        discover.cache_clear()
        importlib.invalidate_caches()
        yield
    discover.cache_clear()
    sys.modules.pop("gradaudit_rounding", None)


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_it_is_a_defense_like_any_other() -> None:
    listed = json.loads(run("list", "defenses", "-f", "json").out)["defenses"]
    assert listed["rounding:2"] == "Share every element with a few significant digits."
    (named,) = re.findall(r"--defense (rounding\S+)", PAGE)
    updates = torch.tensor([[0.0, 1.2345, -0.00098765, 6.5e4]], dtype=torch.float64)
    shared = parse_defense(named).apply(updates, records=1, generator=torch.Generator())
    assert shared.tolist()[0] == pytest.approx([float(f"{x:.2g}") for x in updates.tolist()[0]])
    model = ("-m", "zoo:mlp?inputs=10&classes=2&hidden=3", "-d", "diabetes")
    done = run("attack", "membership", *model, "--defense", named, "--batches", 1, "-f", "json")
    assert done.status == 0, done.err
    assert named in json.dumps(json.loads(done.out)["provenance"]["defenses"])


def test_the_page_shows_a_mechanism_that_keeps_the_contract(tmp_path: Path) -> None:
    mechanism, uniform, _, _, check = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "FILE.py").write_text(mechanism)
    loaded = load_callable(f"{tmp_path}/FILE.py:mechanism", "--mechanism")
    exec(uniform, shown := {"mechanism": loaded})
    exec(check, shown)
    gradients = torch.tensor([[3.0, 4.0], [0.0, 0.5]], dtype=torch.float64)
    many = loaded.releases(gradients, 20_000, torch.Generator().manual_seed(0))
    assert many.mean(dim=0).tolist() == pytest.approx([0.3, 0.65], abs=0.01)
    assert many.std(dim=0).tolist() == pytest.approx([0.25, 0.25], rel=0.03)


def test_the_page_shows_a_family_that_keeps_the_contract_and_separates_classes() -> None:
    *_, family, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(family, shown := {})
    check_part(shown["NearestMean"])
    labels = np.arange(60) % 3
    features = np.eye(3)[labels] + 0.1 * np.random.default_rng(0).normal(size=(60, 3))
    guesses = shown["NearestMean"]().fit(features, labels, 3, 0).log_probabilities(features)
    assert (guesses.argmax(axis=1) == labels).all()


@pytest.mark.slow
def test_the_mechanism_of_the_page_is_audited_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "FILE.py").write_text(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0])
    monkeypatch.chdir(tmp_path)
    (shown,) = re.findall(r"^    gradaudit (dp-audit .*)", PAGE, re.MULTILINE)
    done = run(*shlex.split(shown), "--trials", 4000, "-f", "json")
    assert done.status == 0, done.err
    rows = json.loads(done.out)["measurements"]
    (mu,) = [row["value"] for row in rows if row["metric"] == "mu_lower"]
    gaps = [row["value"] for row in rows if row["metric"] == "canary_gap"]
    assert 0 < mu < max(gaps) / 0.5  # a gap in the clipped gradients over the noise's deviation


@pytest.mark.slow
def test_noise_that_depends_on_the_batch_is_played_beside_companions(tmp_path: Path) -> None:
    page = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    weak = page.replace("SIGMA * noise", "SIGMA / len(clipped) * noise")
    (tmp_path / "weak.py").write_text(weak)
    given = ("-m", "zoo:mlp?inputs=10&classes=2&hidden=3", "-d", "diabetes", "-a", "sex")
    given = (*given, "--mechanism", f"{tmp_path}/weak.py:mechanism", "--noise", "gaussian")

    def lower(*more: object) -> dict[str, Any]:
        done = run("dp-audit", *given, "--clip", 1, "--trials", 2000, *more, "-f", "json")
        rows = json.loads(done.out)["measurements"]
        return next(row for row in rows if row["metric"] == "epsilon_lower" and not row["variant"])

    alone, beside = lower(), lower("--companions", 15)
    assert "The batch was 1 record: --companions 15" in alone["details"]["remark"]
    assert "The batch was" not in beside["details"]["remark"]
    assert beside["value"] > alone["value"] + 0.5


def test_the_page_shows_how_it_is_declared() -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    written = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    assert tomllib.loads(shown)["project"].items() <= written["project"].items()


def test_every_kind_of_part_has_its_group_and_its_class_on_the_page() -> None:
    named = dict(re.findall(r"^\| `(gradaudit\.[\w.]+)` \| `([\w.]+)` \|", PAGE, re.MULTILINE))
    calls = [
        re.findall(r"discover\((?:\"([\w.]+)\"|__name__), (\w+)", path.read_text("utf-8"))
        for path in (ROOT / "gradaudit").rglob("__init__.py")
    ]
    kinds = {base for found in calls for _, base in found}
    assert {path.rpartition(".")[2] for path in named.values()} == kinds
    for group, base in named.items():
        module, _, name = base.rpartition(".")
        moved = {group: package for package, group in _GROUPS.items()}
        assert base.startswith(moved.get(group, group))
        assert hasattr(importlib.import_module(module), name)
