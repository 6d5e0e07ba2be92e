"""Canaries in a training: what joins the mean, what is seen of it, and what the whole run shows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from subjects import seeded
from torch import Tensor, nn

from gradaudit.audits.dp_audit.law.estimates import gaussian_bound
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.errors import CheckpointError, UsageError
from gradaudit.federation.canaries import FILE, CanaryScores
from gradaudit.federation.federated_training import FederatedTraining
from gradaudit.federation.settings import TrainingOptions
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from tests.command_line import run

RATE, CLIENTS, RECORDS = 0.1, 3, 30


def make(canaries: int, *defenses: str, width: int = 6, **how: Any) -> FederatedTraining:
    generator = torch.Generator().manual_seed(0)
    with seeded(0):
        model = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3))
    return FederatedTraining(
        Target(model, CrossEntropy()),
        Records(torch.randn(RECORDS, 5, generator=generator), torch.arange(RECORDS) % 3),
        TrainingOptions(clients=CLIENTS, rate=RATE, canaries=canaries, **how),
        defenses=[parse_defense(text) for text in defenses],
    )


def flat(training: FederatedTraining) -> Tensor:
    return torch.cat([p.detach().flatten() for p in training.server.parameters.values()]).clone()


def update(training: FederatedTraining) -> Tensor:
    """What one round averages, as the weights moved."""
    before = flat(training)
    training.advance()
    return (before - flat(training)) / RATE


def directions(training: FederatedTraining, count: int) -> Tensor:
    """(canaries, elements)."""
    assert training.canaries is not None
    found = training.canaries.directions(np.arange(count))
    return torch.cat([found[name] for name in training.server.parameters], dim=1)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
def test_those_that_are_in_join_the_mean_as_clients_of_the_clip_norm(algorithm: str) -> None:
    """A clip of 0.5 that no client's gradient reaches, and canaries as long as it."""
    clip = "dp:clip=0.5,sigma=0,per=release"
    without, training = make(0, clip, algorithm=algorithm), make(8, clip, algorithm=algorithm)
    alone, together, all_of_them = update(without), update(training), directions(training, 8)
    assert training.canaries is not None
    inside = torch.from_numpy(training.canaries.included)
    assert 0 < inside.sum() < 8
    weight = RECORDS // CLIENTS
    sums = RECORDS * alone + weight * 0.5 * all_of_them[inside].sum(0)
    torch.testing.assert_close(
        together, sums / (RECORDS + weight * inside.sum()), rtol=1e-4, atol=1e-5
    )
    scores = training.canaries.scores
    expected = torch.cosine_similarity(all_of_them, together[None], dim=1)
    torch.testing.assert_close(
        torch.from_numpy(scores.cosines[0, :, 0]).float(), expected, rtol=1e-3, atol=1e-4
    )
    assert scores.layers == ("0", "2")
    of_last = torch.cosine_similarity(all_of_them[:, 36:], together[None, 36:], dim=1)
    torch.testing.assert_close(
        torch.from_numpy(scores.cosines[0, :, 2]).float(), of_last, rtol=1e-3, atol=1e-4
    )
    assert torch.allclose(all_of_them.norm(dim=1), torch.ones(8))
    assert training.loss == pytest.approx(without.loss)


def test_without_a_clip_they_are_as_long_as_the_median_client() -> None:
    training = make(6, algorithm="fedsgd")
    assert training.canaries is not None
    assert training.canaries.norm is None
    sent = training.canaries._sent(np.arange(6), 0.3, 1)
    norms = torch.cat(list(sent.values()), dim=1).norm(dim=1)
    torch.testing.assert_close(norms, torch.full((6,), 0.3))


@pytest.mark.slow
def test_the_shift_of_a_noisy_run_is_that_of_its_law() -> None:
    """R rounds of noise σ√N in a sum of N updates, and the other canaries' constant part.

    A canary's direction meets noise of deviation σ√(NR), and R√(m/d) of m others in d dimensions.
    """
    canaries, rounds, sigma = 400, 4, 0.1
    training = make(canaries, f"dp:clip=1,sigma={sigma},per=release", width=200)
    for _ in range(rounds):
        training.advance()
    assert training.canaries is not None
    scores = training.canaries.scores
    totals, inside = scores.cosines.sum(axis=0)[:, 0], scores.included
    found = gaussian_bound(totals[~inside], totals[inside], delta=1e-5)
    members, elements = CLIENTS + inside.sum(), len(flat(training))
    spread = sigma**2 * members * rounds + rounds**2 * inside.sum() / elements
    truth = rounds / np.sqrt(spread)
    assert abs(found.mu_estimate - truth) < 4 * np.sqrt(4 / canaries + truth**2 / (2 * canaries))
    assert found.normality_p > 1e-3


def test_coins_directions_and_scores_depend_on_the_seed_alone() -> None:
    once, again = make(6), make(6)
    for training in (once, again):
        training.advance()
    assert once.canaries is not None
    assert again.canaries is not None
    assert np.array_equal(once.canaries.scores.cosines, again.canaries.scores.cosines)


def test_round_robin_has_no_mean_to_join() -> None:
    with pytest.raises(UsageError, match="--canaries: with round-robin there is no mean"):
        make(6, algorithm="round-robin")


@pytest.mark.parametrize(
    ("arrays", "metadata"),
    [
        ({"included": np.zeros(4, bool)}, {"layers": "[]"}),
        ({"included": np.zeros(4, bool), "cosines": np.zeros((2, 4, 1))}, None),
        ({"included": np.zeros(4, bool), "cosines": np.zeros((2, 4, 2))}, {"layers": "[]"}),
        ({"included": np.zeros(4), "cosines": np.zeros((2, 4, 1))}, {"layers": "[]"}),
        ({"included": np.zeros(4, bool), "cosines": np.full((2, 4, 1), np.nan)}, {"layers": "[]"}),
        ({"included": np.zeros(4, bool), "cosines": np.zeros((2, 4, 1))}, {"layers": "{"}),
        ({"included": np.zeros(4, bool), "cosines": np.zeros((2, 4, 1))}, {"layers": "3"}),
        ({"included": np.zeros(4, bool), "cosines": np.zeros((2, 4, 2))}, {"layers": '"a"'}),
        ({"included": np.zeros(4, bool), "cosines": np.zeros((2, 4, 1))}, {"layers": "[" * 99999}),
        ({"included": np.zeros(4, bool), "cosines": np.zeros((2, 4, 1))}, {"about": "[]"}),
        ({"included": np.array(True), "cosines": np.zeros((2, 4, 1))}, {"layers": "[]"}),
    ],
)
def test_damaged_scores_are_refused(
    arrays: dict[str, Any], metadata: dict[str, str] | None, tmp_path: Path
) -> None:
    save_file(arrays, tmp_path / FILE, metadata)
    with pytest.raises(CheckpointError, match="is damaged"):
        CanaryScores.read(tmp_path)


@pytest.mark.parametrize("one_entry", [True, False], ids=["now", "earlier"])
def test_scores_are_kept_in_the_same_bytes_and_read_as_they_were(
    one_entry: bool, tmp_path: Path
) -> None:
    arrays = {"included": np.arange(4) > 1, "cosines": np.arange(8.0).reshape(1, 4, 2)}
    kept = CanaryScores(**arrays, layers=("fc",), unit="record", facts={"steps": 1})
    assert len({kept.packed() for _ in range(9)}) == 1
    (tmp_path / FILE).write_bytes(kept.packed())
    if not one_entry:
        save_file(
            arrays,
            tmp_path / FILE,
            {"layers": '["fc"]', "unit": '"record"', "facts": '{"steps": 1}'},
        )
    found = CanaryScores.read(tmp_path)
    assert (found.layers, found.unit, found.facts) == (("fc",), "record", {"steps": 1})
    assert np.array_equal(found.cosines, kept.cosines)


def test_the_folder_is_asked_for_where_there_is_none_or_its_file_is_named(tmp_path: Path) -> None:
    save_file({"included": np.ones(3, bool)}, tmp_path / FILE)
    for folder in (tmp_path / "no", tmp_path / FILE):
        with pytest.raises(CheckpointError, match=r"no such file; .* name the folder of the run"):
            CanaryScores.read(folder)


def test_the_command_may_stand_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("dp-audit", "-m", "zoo:mlp?inputs=10&classes=2", "-d", "diabetes", "-q")
    refused = run(*command, "--mode", "one-run", "--canaries", ".")
    assert refused.status == 3
    assert "no such file; train with --canaries K" in refused.err


@pytest.mark.slow
def test_a_run_is_audited_by_the_command(tmp_path: Path) -> None:
    """A claim that one run refutes exits with 1, one that it does not with 0."""
    out, model = tmp_path / "run", ("-m", "zoo:mlp?inputs=10&classes=2", "-d", "diabetes", "-q")
    trained = run(
        *("train", *model, "--rounds", 3, "--clients", 5, "--canaries", 200, "--out", out),
        *("--defense", "dp:clip=1,sigma=0.02,per=release"),
    )
    assert trained.status == 0, trained.err
    assert "let in" in trained.out
    command = ("dp-audit", *model, "--mode", "one-run", "--canaries", out)
    done = run(*command, "-f", "json")
    rows = {
        (row["metric"], json.dumps(row["variant"])): row
        for row in json.loads(done.out)["measurements"]
        if row["status"] == "measured"
    }
    lower = rows["epsilon_lower", "{}"]
    assert lower["details"]["canaries"] == 200
    assert lower["details"]["rounds"] == 3
    assert set(lower["details"]["shift_by_layer"]) == {"fc1", "output"}
    shift = rows["epsilon_lower_gaussian", '{"estimator": "mean shift"}']
    assert "of the largest of the three bounds only 85% is promised" in shift["details"]["remark"]
    assert 1 < lower["value"] <= rows["epsilon_ceiling", "{}"]["value"]
    refuted = run(*command, "--claimed-epsilon", 1)
    assert refuted.status == 1
    assert "values of the client's presence" in " ".join(refuted.out.split())
    assert run(*command, "--claimed-epsilon", 50).status == 0
    refused = run("dp-audit", *model, "--mode", "one-run", "--canaries", tmp_path)
    assert refused.status == 3
    assert "train with --canaries K" in refused.err
    assert run("dp-audit", *model, "--mode", "one-run").status == 2
