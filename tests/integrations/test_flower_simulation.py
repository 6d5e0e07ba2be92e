"""Flower's own simulator, with clients in a process of their own: the observer, and canaries."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import HANGS, run

from gradaudit.federation.canaries import CanaryScores

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
RUN = """
import sys
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from torch import nn

from gradaudit.integrations.flower import CanaryStrategy, ObservedStrategy, ObserverMod, let_in
from gradaudit.observer import Observer

folder = Path(sys.argv[1])

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

def generous(name):
    observer = Observer(folder / name)
    observer.allowance.earn(1000)
    return observer

def observed(message, context, call_next):
    if "layer.weight" in message.content["arrays"]:
        return call_next(message, context)
    return ObserverMod(generous("clients"))(message, context, call_next)

clients, server = ClientApp(mods=[observed]), ServerApp()

def trained(arrays):
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    nn.functional.cross_entropy(model(torch.randn(2, 6)), torch.tensor([0, 2])).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return ArrayRecord(model.state_dict())

def moved(arrays):
    return ArrayRecord({name: Array(held.numpy() + 0.01) for name, held in arrays.items()})

@clients.train()
def train(message, context):
    arrays = message.content["arrays"]
    after = moved(arrays) if "layer.weight" in arrays else trained(arrays)
    content = {"arrays": after, "metrics": MetricRecord({"num-examples": 2})}
    return Message(RecordDict(content), reply_to=message)

@server.main()
def main(grid, context):
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    strategy = ObservedStrategy(inner, generous("server"))
    arrays = ArrayRecord(network().state_dict())
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=2)
    told = result.train_metrics_clientapp.values()
    (folder / "observed.txt").write_text(repr([each["gradaudit.share_observed"] for each in told]))
    averaging = FedAvg(fraction_evaluate=0.0)
    private = DifferentialPrivacyServerSideFixedClipping(averaging, 0.2, 1.0, 2 + let_in(100))
    weights = ArrayRecord({"layer.weight": Array(np.ones(2000, np.float32))})
    CanaryStrategy(private, folder / "scores", count=100).start(grid, weights, num_rounds=3)

if __name__ == "__main__":
    run_simulation(
        server_app=server,
        client_app=clients,
        num_supernodes=2,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 1, "include_dashboard": False},
        },
    )
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run of two nodes left: two rounds that are observed, then three with canaries."""
    path = tmp_path_factory.mktemp("simulated")
    (path / "run.py").write_text(RUN)
    ended = subprocess.run(
        [sys.executable, "run.py", str(path)],
        cwd=path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return path


def test_flowers_simulator_runs_both_sides_over_rounds(folder: Path) -> None:
    assert (folder / "observed.txt").read_text() == "[1.0, 1.0]"
    for side in ("clients", "server"):
        reports = {path.stem: json.loads(path.read_text()) for path in (folder / side).iterdir()}
        assert sorted(name.rpartition("-")[2] for name in reports) == ["1", "1", "2", "2"]
        for report in reports.values():
            rows = {row["metric"]: row for row in report["measurements"] if not row["layer"]}
            assert set(rows["labels_named"]["details"]["classes"]) == {0, 2}


def test_a_simulated_run_is_audited_by_the_command(folder: Path) -> None:
    """Noise of a fifth of the clip keeps no claim of 1."""
    assert CanaryScores.read(folder / "scores").cosines.shape == (3, 100, 2)
    model = ("-m", "zoo:mlp?inputs=10&classes=2", "-d", "diabetes")
    words = ("dp-audit", *model, "--mode", "one-run", "--canaries", folder / "scores", "-q")
    assert run(*words, "--claimed-epsilon", 1).status == 1
    assert run(*words, "--claimed-epsilon", 60).status == 0
