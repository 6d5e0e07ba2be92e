"""``capture`` and ``scan --update``: what left a client, saved and looked at."""

from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import run
from observer.training import model, state_of, trained
from safetensors.torch import save_file

from gradaudit.models.checkpoint import load_checkpoint
from gradaudit.report import Report

FACTORY = "from observer.training import model\ndef factory(): return model()\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Weights that came and left, in several formats, the factory and data."""
    monkeypatch.chdir(tmp_path)
    before = state_of(model())
    after = trained(before)
    save_file(before, "old.safetensors")
    save_file(after, "new.safetensors")
    save_file({name: after[name] - before[name] for name in before}, "difference.safetensors")
    for name, state in (("old", before), ("new", after)):
        np.savez(f"{name}.npz", *(tensor.numpy() for tensor in state.values()))
    Path("net.py").write_text(FACTORY)
    rows = [",".join([f"{(i * j) % 7}" for j in range(12)] + [f"{i % 4}"]) for i in range(1, 40)]
    header = ",".join([f"c{j}" for j in range(12)] + ["y"])
    Path("data.csv").write_text("\n".join([header, *rows]))
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        "old.safetensors new.safetensors",
        "old.safetensors new.safetensors -m net.py:factory",
        "old.safetensors difference.safetensors",
        "old.npz new.npz -m net.py:factory",
    ],
)
def test_an_update_is_what_left_over_the_rate_whatever_it_came_as(words: str, folder: Path) -> None:
    done = run("capture", *words.split(), "--rate", "0.1", "-o", "u.safetensors")
    assert done.status == 0, done.err
    assert "8 arrays" in done.out
    assert "3.running_mean (buffer)" in done.out
    before, after = (load_checkpoint(f"{name}.safetensors").state for name in ("old", "new"))
    update = load_checkpoint("u.safetensors").state
    assert set(update) == {name for name, _ in model().named_parameters()}
    for name, found in update.items():
        torch.testing.assert_close(found, (before[name] - after[name]) / 0.1)


@pytest.mark.parametrize(
    ("words", "status", "fault"),
    [
        ("old.npz new.npz -o u.safetensors", 3, "old.npz: its arrays have no names"),
        ("old.safetensors gone.safetensors -o u.safetensors", 2, "gone.safetensors"),
        ("old.safetensors old.safetensors -o u.safetensors", 3, "holds the same weights"),
        ("old.safetensors new.safetensors -o u.pt", 2, "name a file .safetensors"),
        ("old.safetensors new.safetensors -o old.safetensors", 2, "old.safetensors"),
        ("old.safetensors new.safetensors --rate 0 -o u.safetensors", 2, "--rate 0"),
        ("old.safetensors new.npz -o u.safetensors", 3, "new.npz"),
        ("old.safetensors other.safetensors -o u.safetensors", 3, "other.safetensors: what"),
    ],
)
def test_what_cannot_be_captured_is_refused_in_a_line(
    words: str, status: int, fault: str, folder: Path
) -> None:
    save_file({"head": torch.ones(2)}, "other.safetensors")
    done = run("capture", *words.split())
    assert done.status == status
    assert fault in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not Path("u.safetensors").exists()


@pytest.mark.slow
def test_a_scan_of_an_update_runs_what_needs_no_more(folder: Path) -> None:
    run("capture", "old.safetensors", "new.safetensors", "-o", "u.safetensors")
    subject = ["-m", "net.py:factory", "-c", "old.safetensors", "-d", "csv:data.csv?label=y"]
    done = run("scan", *subject, "--update", "u.safetensors", "--quick", "-o", "report.json")
    assert done.status == 0, done.err
    report = Report.from_file("report.json")
    measured = {row.id for row in report.measurements if row.status == "measured"}
    assert "observe.labels_named" in measured
    reasons = {row.reason for row in report.measurements if row.audit == "vinfo"}
    assert reasons == {"it needs the clients' data, and this scan reads a captured update alone"}
    wrong = run("scan", *subject, "--update", "u.safetensors", "--audits", "vinfo")
    assert wrong.status == 2
    assert "none of the chosen audits reads an update" in wrong.err


@pytest.mark.parametrize("rate", ["nan", "inf", "0", "-1"])
def test_a_rate_that_is_none_is_refused_and_nothing_written(rate: str, folder: Path) -> None:
    done = run(
        "capture", "old.safetensors", "new.safetensors", "--rate", rate, "-o", "u.safetensors"
    )
    assert (done.status, Path("u.safetensors").exists()) == (2, False)
    assert "a learning rate is above 0, and finite" in done.err
