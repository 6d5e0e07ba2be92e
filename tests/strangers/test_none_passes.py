"""Whole scans of models whose records are coupled or whose derivatives are cut: none is PASSED."""

import json
from pathlib import Path

import pytest
from command_line import run

FILE = Path(__file__).parent / "models_of_strangers.py"
CASES = {
    "experts": ("experts", "data", "cross-entropy"),
    "contrastive": ("mlp", "data", f"{FILE}:supcon"),
    "cox": ("risk", "survival", f"{FILE}:cox"),
    "relu under no_grad": ("no_grad_relu", "data", "cross-entropy"),
    "tanh under no_grad": ("no_grad_tanh", "data", "cross-entropy"),
    "detach": ("detached", "data", "cross-entropy"),
    "numpy": ("by_numpy", "data", "cross-entropy"),
    "frozen backbone": ("Frozen", "data", "cross-entropy"),
    "sparse": ("Sparse", "data", "cross-entropy"),
    "autograd in forward": ("Force", "data", "cross-entropy"),
}
CUT = ("relu under no_grad", "tanh under no_grad", "detach", "numpy", "frozen backbone")
COUPLED = ("experts", "contrastive", "cox")


def subject(case: str) -> tuple[str, ...]:
    model, data, loss = CASES[case]
    return ("-m", f"{FILE}:{model}", "-d", f"{FILE}:{data}", "--loss", loss)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_scan_passes_none_and_crashes_nowhere(case: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run("scan", "--quick", *subject(case), "-a", "group", "-q", "-o", report)
    assert done.status in (0, 1), done.err
    assert "PASSED" not in done.out
    rows = json.loads(report.read_text())["measurements"]
    assert not [row["reason"] for row in rows if row["status"] == "failed"]
    raw = [
        r for r in rows if r["metric"] in ("sensitivity.input_f", "input_f") and not r["variant"]
    ]
    assert raw
    if case in COUPLED:
        assert {row["status"] for row in raw} == {"skipped"}
        assert all("a function of several records" in row["reason"] for row in raw)
    else:
        head = raw[-1]
        assert head["status"] == "measured"
        assert head["value"] > 0.1
    if case in CUT:
        attacks = [r for r in rows if r["metric"] == "relative_error" and r["status"] == "measured"]
        assert {row["details"]["effort"] for row in attacks} == {"below"}


@pytest.mark.parametrize("case", CUT)
def test_an_attack_that_cannot_follow_the_derivative_clears_nothing(case: str) -> None:
    done = run("attack", "reconstruct", *subject(case), "--method", "closed-form", "-q")
    assert done.status == 0
    assert "not reconstructed" not in done.out


@pytest.mark.parametrize("case", ["sparse", "autograd in forward"])
def test_what_is_differentiable_is_no_cut(case: str) -> None:
    done = run(
        "attack", "reconstruct", *subject(case), "--method", "closed-form", "-q", "-f", "json"
    )
    rows = json.loads(done.out)["measurements"]
    assert not any("cut_derivative" in row["details"] for row in rows)


@pytest.mark.parametrize("case", ["detach", "tanh under no_grad"])
def test_a_floor_is_near_that_of_the_derivative_that_the_model_cuts(case: str) -> None:
    """Both compute the same function.

    By the cut derivative the floor would be 1: nobody learns anything.
    """
    _, _, *data = subject(case)
    shares = []
    for model in (CASES[case][0], "head_on_tanh"):
        asked = ("floor", "-m", f"{FILE}:{model}", *data, "--sigma", "0.1", "--samples", "32")
        rows = json.loads(run(*asked, "-f", "json", "-q").out)["measurements"]
        shares += [r["value"] for r in rows if (r["metric"], r["layer"]) == ("mse_share", "head")]
    assert shares[0] == pytest.approx(shares[1], rel=0.3)
    assert max(shares) < 0.2
