"""The check of a server's model as a command: honest rounds pass the gate, fished ones do not."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.command_line import run

SAMPLE = Path("sample_models")
MODEL = ("-m", f"{SAMPLE}/models.py:digits_cnn", "-d", "digits", "--device", "cpu", "-q")
ROUNDS = (SAMPLE / "digits" / "round-03.safetensors", SAMPLE / "digits" / "round-10.safetensors")


def fished(folder: Path) -> Path:
    """The newest round, whose last layer hears of one class alone."""
    state = load_file(ROUNDS[1])
    others = torch.arange(10) != 3
    state["fc2.weight"][others] = 0
    state["fc2.bias"][others] = 1000
    save_file(state, folder / "fished.safetensors")
    return folder / "fished.safetensors"


@pytest.mark.slow
@pytest.mark.parametrize("honest", [True, False])
def test_the_gate_tells_an_honest_round_from_a_fished_one(*, honest: bool, tmp_path: Path) -> None:
    last = ROUNDS[1] if honest else fished(tmp_path)
    report, command = tmp_path / "report.json", ("attack", "malicious-server", *MODEL)
    done = run(*command, "-c", ROUNDS[0], "-c", last, "--samples", 64, "-o", report)
    assert done.status == 0, done.err
    judged = run("gate", report)
    assert judged.status == int(not honest), judged.out
    rows = json.loads(report.read_text(encoding="utf-8"))["measurements"]
    values = {(row["metric"], row["layer"]): row for row in rows}
    assert {layer for _, layer in values if layer} == {"conv1", "conv2", "fc1", "fc2"}
    if not honest:
        assert values["imprint_score", "fc2"]["value"] == pytest.approx(1 / 0.7)
        assert values["imprint_score", "fc2"]["details"]["sign"] == "concentration"
        assert values["imprint_score", "fc2"]["n"] == values["imprint_score", "fc1"]["n"] > 0
        assert values["imprint_score", "fc1"]["details"]["sign"] == "starved"
        assert values["movement", "fc2"]["value"] > 1000
        assert "fc1 attack.imprint_score" in judged.out


@pytest.mark.slow
def test_one_round_tells_no_movement_and_too_few_records_no_share() -> None:
    command = ("attack", "malicious-server", *MODEL, "-c", ROUNDS[1])
    done = run(*command, "--samples", 40, "-f", "json")
    rows = json.loads(done.out)["measurements"]
    moved = [row for row in rows if row["metric"] == "movement"]
    assert {row["status"] for row in moved} == {"skipped"}
    assert "-c, oldest first" in moved[0]["reason"]
    shares = [row for row in rows if row["metric"] == "record_share"]
    assert all(1 / 16 <= row["value"] <= 1 and row["n"] == 2 for row in shares)
    few = run(*command, "--samples", 40, "--batch-size", 41, "-f", "json")
    reasons = {(row["metric"], row["reason"]) for row in json.loads(few.out)["measurements"]}
    assert ("record_share", "--batch-size 41: only 40 records are looked at") in reasons
    assert ("imprint_score", None) in reasons
    assert run(*command, "--samples", 31).status == 3
