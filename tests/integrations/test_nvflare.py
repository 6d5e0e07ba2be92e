"""NVFlare's own filter chains, in process, and its simulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from late import Late
from observer.training import model, state_of, trained

from gradaudit.report import Report

if TYPE_CHECKING:
    from nvflare.apis.dxo import DXO
    from nvflare.apis.shareable import Shareable

dxo, filters = Late("nvflare.apis.dxo"), Late("nvflare.apis.filter")
constants, contexts = Late("nvflare.apis.fl_constant"), Late("nvflare.apis.fl_context")
shareables = Late("nvflare.apis.shareable")
others = Late("nvflare.app_common.filters.exclude_vars")
observed = Late("gradaudit.integrations.nvflare")
ROOT = Path(__file__).parents[2]
NET = """
import json, torch
from nvflare.apis.dxo import from_shareable
from nvflare.apis.filter import Filter
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(12, 4)
        torch.nn.init.constant_(self.fc.bias, 50.0)
    def forward(self, x): return self.fc(x)
class Sent(Filter):
    def process(self, shareable, fl_ctx):
        left = from_shareable(shareable)
        told = {"kind": left.data_kind, "bias": torch.as_tensor(left.data["fc.bias"]).tolist()}
        number = shareable.get_header("current_round")
        with open(f"{fl_ctx.get_identity_name()}-sent-{number}.json", "w") as file:
            json.dump(told, file)
        return shareable
"""
CLIENT = """
import nvflare.client as flare
import torch
from net import Net
flare.init()
while flare.is_running():
    net = Net()
    net.load_state_dict(flare.receive().params)
    torch.nn.functional.cross_entropy(net(torch.randn(3, 12)), torch.tensor([0, 1, 2])).backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    flare.send(flare.FLModel(params=dict(net.state_dict()), metrics={"accuracy": 0.5}))
"""
JOB = """
from net import Net, Sent
from nvflare.app_common.filters.convert_weights import ConvertWeights
from nvflare.app_opt.pt.job_config.fed_avg import FedAvgJob
from nvflare.job_config.defs import FilterType
from nvflare.job_config.script_runner import ScriptRunner
from gradaudit.integrations.nvflare import ObserverFilter
job = FedAvgJob(name="observed", n_clients=2, num_rounds=2, initial_model=Net())
CONVERTED = {"site-1": ("FULL", "weights_to_diff"), "site-2": ("DIFF", "diff_to_weights")}
for site, (kind, direction) in CONVERTED.items():
    job.to(ScriptRunner(script="client.py", params_transfer_type=kind), site)
    for chain in (FilterType.TASK_DATA, FilterType.TASK_RESULT):
        seen = ObserverFilter(folder="reports", share=1.0)
        job.to(seen, site, filter_type=chain, tasks=["train"])
    for each in (ConvertWeights(direction), Sent()):
        job.to(each, site, filter_type=FilterType.TASK_RESULT, tasks=["train"])
job.simulator_run("workspace")
"""


class Site:
    """A site with a filter in each chain, as the framework sets them up."""

    def __init__(self, **options: Any) -> None:
        self.contexts = contexts.FLContextManager(
            identity_name="site-1", public_stickers={}, private_stickers={}
        )
        self.filters = {}
        chains = filters.FilterChainType
        for name, chain in (("in", chains.TASK_DATA_CHAIN), ("out", chains.TASK_RESULT_CHAIN)):
            self.filters[name] = observed.ObserverFilter(**options)
            self.filters[name].set_prop(filters.FilterContextKey.CHAIN_TYPE, chain)
        self.filters["out"].observer.allowance.earn(1000)

    def receives(self, arrays: dict[str, Any]) -> Shareable:
        return self._passes("in", dxo.DXO(dxo.DataKind.WEIGHTS, dict(arrays)).to_shareable())

    def sends(self, kind: str, arrays: dict[str, Any]) -> DXO:
        shareable = dxo.DXO(kind, dict(arrays)).to_shareable()
        shareable.set_header("current_round", 2)
        return dxo.from_shareable(self._passes("out", shareable))

    def _passes(self, chain: str, shareable: Shareable) -> Shareable:
        context = self.contexts.new_context()
        filtered: Shareable = self.filters[chain].process(shareable, context)
        return filtered


def plain(state: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in state.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["WEIGHTS", "WEIGHT_DIFF"])
def test_a_filter_reports_at_the_site_and_sends_the_verdict_alone(
    kind: str, tmp_path: Path
) -> None:
    before = state_of(model())
    after, site = trained(before), Site(folder=str(tmp_path))
    site.receives(plain(before))
    difference = {name: after[name] - tensor for name, tensor in before.items()}
    left = plain(after if kind == dxo.DataKind.WEIGHTS else difference)
    sent = site.sends(kind, left)
    report = Report.from_file(tmp_path / "site-1-round-2.json")
    for row in report.select("observe.norm"):
        names = [f"{row.layer}.weight", f"{row.layer}.bias"]
        expected = sum(float(difference[name].square().sum()) for name in names) ** 0.5
        assert row.value == pytest.approx(expected, rel=1e-4)
    assert report.select("observe.labels_named")[0].value
    assert sent.data.keys() == left.keys()
    assert all(sent.data[name] is array for name, array in left.items())
    assert sent.get_meta_prop(observed.META)["gradaudit.share_observed"] == 1.0


def test_what_another_filter_kept_is_told(tmp_path: Path) -> None:
    before = state_of(model())
    site = Site(folder=str(tmp_path))
    site.receives(plain(before))
    excluded = others.ExcludeVars(exclude_vars="^2\\.")
    kept = excluded.process_dxo(
        dxo.DXO(dxo.DataKind.WEIGHTS, plain(trained(before))),
        shareables.Shareable(),
        contexts.FLContext(),
    )
    kept.data = {name: array for name, array in kept.data.items() if array is not None}
    site.sends(dxo.DataKind.WEIGHTS, kept.data)
    report = Report.from_file(tmp_path / "site-1-round-2.json")
    assert {"2.weight", "2.bias"} & set(report.select("observe.beside")[0].details["kept"])


def test_a_policy_blocks_or_withholds(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules:\n  - {metric: observe.labels_named, layers: '', max: 0}\n")
    before = state_of(model())
    after = plain(trained(before))
    blocking, holding = (Site(policy=str(policy), on_fail=how) for how in ("raise", "withhold"))
    for site in (blocking, holding):
        site.receives(plain(before))
    with pytest.raises(filters.ContentBlockedException, match="may not leave"):
        blocking.sends(dxo.DataKind.WEIGHTS, after)
    left = holding.sends(dxo.DataKind.WEIGHTS, after).data
    assert all(np.array_equal(left[name], array) for name, array in plain(before).items())


def test_nothing_of_a_difference_that_is_withheld_is_left() -> None:
    before = state_of(model())
    site = Site(on_fail="withhold")
    site.receives(plain(before))
    broken = {
        name: np.full_like(array, np.nan) if array.dtype.kind == "f" else array
        for name, array in plain(before).items()
    }
    left = site.sends(dxo.DataKind.WEIGHT_DIFF, broken).data
    assert left.keys() == broken.keys()
    assert not any(array.any() for array in left.values())


def test_a_server_keeps_the_reports_of_its_clients_apart(tmp_path: Path) -> None:
    before, server = state_of(model()), Site(folder=str(tmp_path))
    for name in ("site-1", "site-2"):
        context = server.contexts.new_context()
        context.set_prop(
            constants.FLContextKey.PROCESS_TYPE, constants.ProcessType.SERVER_JOB, sticky=False
        )
        context.set_peer_context(contexts.FLContextManager(identity_name=name).new_context())
        for chain, state in (("in", before), ("out", trained(before))):
            arrived = dxo.DXO(dxo.DataKind.WEIGHTS, plain(state)).to_shareable()
            server.filters[chain].process(arrived, context)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"from-site-1-round-0.json", "from-site-2-round-0.json"}


@pytest.mark.slow
def test_a_job_that_is_written_keeps_every_option(tmp_path: Path) -> None:
    given = {"folder": "r", "policy": "p.yaml", "share": 0.5, "on_fail": "raise", "capture": "c"}
    job = Late("nvflare.job_config.api").FedJob(name="job")
    chain = Late("nvflare.job_config.defs").FilterType.TASK_RESULT
    job.to(observed.ObserverFilter(**given), "site-1", filter_type=chain, tasks=["train"])
    job.to(Late("nvflare.app_common.workflows.fedavg").FedAvg(num_clients=1), "server")
    job.export_job(str(tmp_path))
    (file,) = tmp_path.rglob("config_fed_client.json")
    (result,) = json.loads(file.read_text(encoding="utf-8"))["task_result_filters"]
    assert result["filters"][0]["args"] == given


def test_a_client_that_fails_passes_as_it_is(tmp_path: Path) -> None:
    site = Site(folder=str(tmp_path))
    site.receives(plain(state_of(model())))
    failed = shareables.make_reply(constants.ReturnCode.EXECUTION_EXCEPTION)
    assert site._passes("out", failed) is failed
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a job of two clients and two rounds left, which NVFlare's simulator ran."""
    folder = tmp_path_factory.mktemp("simulated")
    for name, text in (("net", NET), ("client", CLIENT), ("job", JOB)):
        (folder / f"{name}.py").write_text(text)
    paths = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    done = subprocess.run(
        [sys.executable, "job.py"], cwd=folder, env=paths, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return folder


@pytest.mark.processes
def test_the_simulator_runs_a_job_with_filters_in_both_chains(simulated: Path) -> None:
    names = {f"site-{site}-round-{number}.json" for site in (1, 2) for number in (0, 1)}
    found = list(simulated.rglob("site-*-round-*.json"))
    assert {path.name for path in found} == names
    for path in found:
        told = Report.from_file(path).select("observe.labels_named")[0].details["classes"]
        assert set(told) <= {0, 1, 2}  # type: ignore[arg-type]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("site", "kind", "near"), [("site-1", "WEIGHTS", 50.0), ("site-2", "WEIGHT_DIFF", 0.0)]
)
def test_a_result_filter_of_the_simulator_converts_nothing(
    site: str, kind: str, near: float, simulated: Path
) -> None:
    """Biases begin at 50, and a step moves each by less than 0.1: that tells which were sent.

    The first client sends weights through weights_to_diff, the second differences through
    diff_to_weights; the filter behind the conversion writes what it gets.
    """
    (path,) = simulated.rglob(f"{site}-sent-0.json")
    sent = json.loads(path.read_text(encoding="utf-8"))
    assert sent["kind"] == kind
    assert sent["bias"] == pytest.approx([near] * 4, abs=0.1)
