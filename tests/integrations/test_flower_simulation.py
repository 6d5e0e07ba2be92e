"""Flower's own simulator, with clients in processes of their own, where it starts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import sys
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from gradaudit.integrations.flower import ObservedStrategy, ObserverMod
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
    return ObserverMod(generous("clients"))(message, context, call_next)

clients, server = ClientApp(mods=[observed]), ServerApp()

@clients.train()
def train(message, context):
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    nn.functional.cross_entropy(model(torch.randn(2, 6)), torch.tensor([0, 2])).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    told = MetricRecord({"num-examples": 2})
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": told}
    return Message(RecordDict(content), reply_to=message)

@server.main()
def main(grid, context):
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    strategy = ObservedStrategy(inner, generous("server"))
    arrays = ArrayRecord(network().state_dict())
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=2)
    told = result.train_metrics_clientapp.values()
    (folder / "observed.txt").write_text(repr([each["gradaudit.observed"] for each in told]))

run_simulation(
    server_app=server,
    client_app=clients,
    num_supernodes=2,
    backend_config={
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": 2, "include_dashboard": False},
    },
)
"""


@pytest.mark.slow
def test_flowers_simulator_runs_both_sides_over_rounds(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(RUN)
    command = [sys.executable, str(script), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert (tmp_path / "observed.txt").read_text() == "[1.0, 1.0]"
    for side in ("clients", "server"):
        reports = {path.stem: json.loads(path.read_text()) for path in (tmp_path / side).iterdir()}
        assert sorted(name.rpartition("-")[2] for name in reports) == ["1", "1", "2", "2"]
        for report in reports.values():
            rows = {row["metric"]: row for row in report["measurements"] if not row["layer"]}
            assert set(rows["labels_named"]["details"]["classes"]) == {0, 2}
