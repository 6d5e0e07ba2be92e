"""``gradaudit init``, and the configuration that commands find where they are called."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from command_line import run

from gradaudit.cli.commands.init import SpecCandidates, configuration
from gradaudit.config import ScanSettings, read_file, settle
from gradaudit.core.text import REPLACEMENT
from gradaudit.judging import Policy, default_policy, read_policy

SAMPLE = Path(__file__).parents[2] / "sample_models"
CONFIG, POLICY = Path("gradaudit.yaml"), Path("policy.yaml")
KEYS = "|".join(name.replace("_", "-") for name in ScanSettings.model_fields)
OFFER = re.compile(rf"^# ((?:{KEYS}): .*)$", re.MULTILINE)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_is_named_is_opened_and_stands_in_the_file() -> None:
    shutil.copy(SAMPLE / "models.py", "models.py")
    named = ("-m", "models.py:diabetes_mlp", "-d", "diabetes", "-a", "sex", "--mode", "train")
    done = run("init", *named)
    assert done.status == 0, done.err
    assert read_file(CONFIG) == {
        "model": "models.py:diabetes_mlp",
        "data": "diabetes?scale=none",
        "attribute": ("sex",),
        "mode": "train",
    }
    text = CONFIG.read_text()
    assert "# fc1 (Linear, 320 parameters)\n# fc2 (Linear, 64 parameters)\n" in text
    assert re.search(r"^# The data has sex: \S+ \(\d+\), \S+ \(\d+\)$", text, re.MULTILINE)
    assert "task accuracy" in text
    found = run("scan", "--dry-run")
    assert found.err == "gradaudit: options of gradaudit.yaml (flags win over it)\n"
    assert found.out.startswith("models.py:diabetes_mlp on 442 records:\n")


def test_the_policy_extends_the_default_one() -> None:
    run("init")
    policy = read_policy(POLICY)
    assert policy == Policy(name="policy.yaml", extends="default")
    assert policy.written_out().rules == default_policy().rules


def test_what_is_not_named_is_offered_and_nothing_is_run() -> None:
    Path("net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module): ...\n"
        "def make(width: int = 3) -> nn.Module: ...\n"
        "def helper(): ...\n"
        "raise SystemExit('this is run')\n"
    )
    Path("broken.py").write_text("def (")
    Path("w.safetensors").touch()
    Path("gpt").mkdir()
    Path("gpt/config.json").touch()
    Path("people.csv").write_text("age,sex\n1,f\n")
    done = run("init")
    assert done.status == 0, done.err
    assert "fill in model and data" in done.out
    assert read_file(CONFIG) == {}
    offers = OFFER.findall(CONFIG.read_text())
    assert offers[:5] == [
        "model: net.py:Net",
        "model: net.py:make",
        "model: hf:gpt",
        "checkpoint: [w.safetensors]",
        "data: csv:people.csv?label=COL",
    ]
    assert "# people.csv has age, sex\n" in CONFIG.read_text()


def test_every_offer_can_be_taken() -> None:
    run("init")
    for offer in OFFER.findall(CONFIG.read_text()):
        Path("taken.yaml").write_text(offer)
        (given,) = read_file(Path("taken.yaml")).values()
        assert given
    settle(ScanSettings, {}, read_file(CONFIG))


@pytest.mark.parametrize("there", [CONFIG, POLICY], ids=str)
def test_nothing_is_overwritten(there: Path) -> None:
    there.write_text("mine")
    done = run("init")
    assert (done.status, done.out) == (2, "")
    assert f"{there}: is there already" in done.err
    assert [path.name for path in Path().iterdir()] == [there.name]
    assert there.read_text() == "mine"


def test_names_of_files_are_no_lines_of_the_file() -> None:
    name = "a\nseed: 3\n\x1b[31m\u202e.csv"
    Path(name).write_text("x\x1b,y\n")
    text = configuration({}, SpecCandidates.of(Path()), None)
    assert yaml.safe_load(text) is None
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert f"has x{REPLACEMENT}, y" in text


def test_flags_win_over_the_file_that_is_found() -> None:
    CONFIG.write_text("model: zoo:mlp?inputs=10&classes=2\ndata: diabetes\nsamples: 2\nseed: 7\n")
    done = run("copa-metric", "-f", "json", "--seed", 8, "-q")
    report = json.loads(done.out)
    assert done.err.startswith("gradaudit: nothing could be measured")
    assert (report["provenance"]["seed"], report["provenance"]["config"]) == (8, "gradaudit.yaml")
    assert report["target"]["model"].startswith("zoo:mlp")


def test_a_file_that_is_named_is_read_in_its_place() -> None:
    CONFIG.write_text("sed: 3\n")
    Path("other.yaml").write_text("model: zoo:mlp?inputs=10&classes=2\ndata: diabetes\n")
    done = run("scan", "--dry-run", "--config", "other.yaml")
    assert (done.status, done.err) == (0, "")
    refused = run("scan", "--dry-run")
    assert refused.status == 2
    assert "gradaudit.yaml, line 1: sed: unknown key" in refused.err


def test_the_file_that_is_found_is_not_written_over() -> None:
    CONFIG.write_text("data: diabetes\nmodel: zoo:mlp?inputs=10\n")
    Path("gradaudit.json").symlink_to(CONFIG)
    done = run("forward", "-o", "gradaudit.json")
    assert done.status == 2
    assert "is read by this command" in done.err


def test_pictures_are_no_table_to_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pictures = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 1), dtype=np.uint8)
    np.savez("pictures.npz", x=pictures, y=np.arange(40) % 3)
    Path("net.py").write_text(
        "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))\n"
    )
    done = run("init", "-m", "net.py:net", "-d", "npz:pictures.npz?inputs=x&label=y")
    assert done.status == 0, done.err
    assert "scale=" not in Path("gradaudit.yaml").read_text()
    assert run("scan", "--dry-run").status == 0
