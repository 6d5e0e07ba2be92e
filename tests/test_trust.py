"""A configuration that was found runs code only once the user has named it, or had it written."""

import os
from pathlib import Path

import pytest
from command_line import run

CONFIG = "model: net.py:make\ndata: csv:table.csv?label=y\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("net.py").write_text("import torch\ndef make(): return torch.nn.Linear(2, 2)\n")
    Path("table.csv").write_text("a,b,y\n" + "1,2,no\n3,5,yes\n" * 8)
    Path("gradaudit.yaml").write_text(CONFIG)
    return tmp_path


def test_code_that_a_named_file_holds_is_trusted_until_it_is_other_code(folder: Path) -> None:
    assert run("forward").status == 2
    assert run("forward", "--config", "gradaudit.yaml").status == 0
    assert run("forward").status == 0
    kept = folder / "state" / "gradaudit" / "trusted"
    assert len(kept.read_text().split()) == 1
    Path("gradaudit.yaml").write_text(f"{CONFIG}seed: 1\n")
    assert run("forward").status == 0
    Path("other.py").write_text(Path("net.py").read_text())
    Path("gradaudit.yaml").write_text(CONFIG.replace("net.py", "other.py"))
    refused = run("forward")
    assert refused.status == 2
    assert refused.err == (
        "gradaudit: gradaudit.yaml: model: 'other.py:make' is code that no installed package "
        "brings, and this file was found and not named; say --config gradaudit.yaml once if you "
        "trust this folder\n"
    )


def test_trust_is_in_one_folder_alone(folder: Path) -> None:
    assert run("forward", "--config", "gradaudit.yaml").status == 0
    (folder / "here").rename(folder / "there")
    (folder / "here").mkdir()
    os.chdir(folder / "there")
    assert run("forward").status == 2


def test_what_init_wrote_is_trusted() -> None:
    Path("gradaudit.yaml").unlink()
    assert run("init", "-m", "net.py:make", "-d", "csv:table.csv?label=y").status == 0
    assert run("forward").status == 0


@pytest.mark.parametrize(
    "text",
    [
        "model: zoo:mlp?inputs=2&hidden=3\ndata: csv:table.csv?label=y\nexecutor: loky\n",
        "model: net.py:make\ndata: csv:table.csv?label=y\n",
        "seed: 3\n",
    ],
)
def test_what_names_no_code_or_is_replaced_needs_no_word(text: str) -> None:
    Path("gradaudit.yaml").write_text(text)
    words = ["-m", "zoo:mlp?inputs=2&hidden=3", "-d", "csv:table.csv?label=y"]
    assert run("forward", *words).status == 0


def test_a_user_without_a_folder_is_asked_again(folder: Path) -> None:
    (folder / "state").write_text("")
    assert run("forward", "--config", "gradaudit.yaml").status == 0
    assert run("forward").status == 2
