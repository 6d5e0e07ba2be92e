"""Folders of tiny NVFlare jobs and Flower apps, for tests of ``gradaudit job``."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5, track_running_stats=True)
        self.last = nn.Linear(5, 3)
        del self.norm._buffers["num_batches_tracked"]
        self.norm.num_batches_tracked = None
"""
"""A model whose arrays are real numbers with dimensions: a count without any leaves in clear."""
COUNTING = NET[: NET.index("        del self.norm")]
"""The same with BatchNorm's count of batches."""

DP = '''
import numpy as np

def norm(arrays):
    return np.sqrt(sum(np.square(a).sum() for a in arrays.values()))

class Dp:
    """A joint clip and Gaussian noise on every array, or one of its faults."""
    def __init__(self, fault="", clip=1.0, noise_multiplier=1.0):
        self.fault, self.clip, self.noise_multiplier = fault, clip, noise_multiplier
        self.kept = {}
    def clipped(self, u):
        if self.fault == "no-clip":
            return u
        if self.fault == "per-array":
            return {k: a * min(1, self.clip / max(np.linalg.norm(a), 1e-30)) for k, a in u.items()}
        clip = self.clip
        if self.fault == "own-clip":
            clip = np.median(np.abs(np.concatenate([a.ravel() for a in u.values()]))) * 5
        scale = min(1, clip / max(norm(u), 1e-30))
        return {k: a * scale for k, a in u.items()}
    def noise(self, key, shape):
        sigma = self.clip * self.noise_multiplier
        if self.fault == "divided":
            sigma /= 10
        if self.fault == "fixed-seed":
            return np.random.default_rng(0).normal(0, sigma, shape)
        if self.fault == "reused":
            return self.kept.setdefault(key, np.random.normal(0, sigma, shape))
        return np.random.normal(0, sigma, shape)
    def noised(self, u):
        bare = ("norm.running_mean", "norm.running_var") if self.fault == "buffers" else ()
        return {k: a if k in bare else a + self.noise(k, a.shape) for k, a in u.items()}
    def __call__(self, u):
        if self.fault == "buffers":
            kept = {k: a for k, a in u.items() if "running" in k}
            rest = {k: a for k, a in u.items() if k not in kept}
            return {**self.noised(self.clipped(rest)), **kept}
        if self.fault == "noise-first":
            return self.clipped(self.noised(u))
        if self.fault == "float16":
            half = {k: a.astype(np.float16).astype(float) for k, a in u.items()}
            return {k: a.astype(np.float16) for k, a in self.noised(self.clipped(half)).items()}
        if self.fault == "float16-after":
            return {k: a.astype(np.float16) for k, a in self.noised(self.clipped(u)).items()}
        return self.noised(self.clipped(u))
'''

FILTER = (
    DP
    + '''
from nvflare.apis.dxo_filter import DXOFilter

class DpFilter(DXOFilter, Dp):
    """The mechanism on weight differences, and nothing of the meta data."""
    def __init__(self, fault="", clip=1.0, noise_multiplier=1.0, keep_meta=False):
        DXOFilter.__init__(self, ["WEIGHTS", "WEIGHT_DIFF"], None)
        Dp.__init__(self, fault, clip, noise_multiplier)
        self.keep_meta = keep_meta
    def process_dxo(self, dxo, shareable, fl_ctx):
        u = {k: np.asarray(a, float) for k, a in dxo.data.items()}
        dxo.data = {k: np.asarray(a) for k, a in self(u).items()}
        if not self.keep_meta:
            dxo.meta = {}
        return dxo

class NoMetrics(DXOFilter):
    """Sends no metrics."""
    def __init__(self):
        super().__init__(["METRICS"], None)
    def process_dxo(self, dxo, shareable, fl_ctx):
        dxo.data = {"accuracy": 0.0}
        return dxo
'''
)

TRAINS = '''
from nvflare.apis.executor import Executor

class Trains(Executor):
    """Raises where it is entered, or even made."""
    def __init__(self, **arguments):
        raise RuntimeError("an executor was made")
    def execute(self, *arguments):
        raise RuntimeError("an executor was entered")
'''


def dp(fault: str = "", **arguments: Any) -> dict[str, Any]:
    """A component of the job's own filter."""
    return {"path": "filters.DpFilter", "args": {"fault": fault, **arguments}}


def builtin(path: str, **arguments: Any) -> dict[str, Any]:
    """A component of one of NVFlare's filters."""
    return {"path": f"nvflare.app_common.filters.{path}", "args": arguments}


def chain(*filters: dict[str, Any], tasks: Sequence[str] = ("train",), **more: Any) -> Any:
    """A chain of filters in a client's configuration."""
    return {"tasks": list(tasks), "filters": list(filters), **more}


def nvflare_job(
    folder: Path,
    results: Sequence[Any] = (),
    *,
    tasks: Sequence[str] = ("train",),
    executors: Sequence[Any] = (),
    form: str = "DIFF",
    client: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Path:
    """Write an NVFlare job folder, whose executor raises where it is made."""
    for name in ("config", "custom"):
        (folder / "app" / name).mkdir(parents=True, exist_ok=True)
    executor = {"path": "trains.Trains", "args": {"params_transfer_type": form}}
    of_client = {
        "format_version": 2,
        "executors": [{"tasks": list(tasks), "executor": executor}, *executors],
        "task_result_filters": list(results),
        "task_data_filters": [],
        "components": [],
        **(client or {}),
    }
    persistor = {"id": "persistor", "path": "x.Y", "args": {"model": {"path": "net.Net"}}}
    workflow = {"id": "w", "path": "trains.Trains", "args": {"num_rounds": 5, "min_clients": 4}}
    of_server = {"format_version": 2, "workflows": [workflow], "components": [persistor]}
    files = {
        "meta.json": {"name": "job", "deploy_map": {"app": ["@ALL"]}, **(meta or {})},
        "app/config/config_fed_client.json": of_client,
        "app/config/config_fed_server.json": of_server,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    for name, text in (("net", NET), ("filters", FILTER), ("trains", TRAINS)):
        (folder / "app" / "custom" / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def privacy_policy(path: Path, scopes: Mapping[str, Sequence[Any]], default: str) -> Path:
    """Write a site's privacy policy: filters of task results by scope."""
    listed = [{"name": name, "task_result_filters": list(f)} for name, f in scopes.items()]
    path.write_text(json.dumps({"scopes": listed, "default_scope": default}), encoding="utf-8")
    return path


MODS = (
    DP
    + '''
from flwr.app import Array, ArrayRecord, MetricRecord

class DpMod(Dp):
    """The mechanism on what training added, and counts that say nothing."""
    def __init__(self, fault="", clip=1.0, noise_multiplier=1.0, counts=False):
        super().__init__(fault, clip, noise_multiplier)
        self.counts = counts
    def __call__(self, message, context, call_next):
        received = next(iter(message.content.array_records.values()))
        answer = call_next(message, context)
        old = {k: a.numpy().astype(float) for k, a in received.items()}
        sent = next(iter(answer.content.array_records.values()))
        new = {k: a.numpy().astype(float) for k, a in sent.items()}
        if self.fault == "weights":
            left = Dp.__call__(self, new)
        else:
            update = Dp.__call__(self, {k: new[k] - old[k] for k in new})
            left = {k: old[k] + update[k] for k in new}
        arrays = {k: Array(np.asarray(a, np.float32)) for k, a in left.items()}
        answer.content["arrays"] = ArrayRecord(arrays)
        if not self.counts:
            answer.content["metrics"] = MetricRecord({"num-examples": 1})
        return answer
'''
)


def flower_app(
    folder: Path,
    mods: str = "",
    *,
    app_mods: str = "",
    strategy: str = "FedAvg(fraction_evaluate=0.0)",
    client: str = "",
    evaluate: bool = False,
) -> Path:
    """Write a Flower app, whose functions raise where they are called."""
    package = folder / "tiny"
    package.mkdir(parents=True, exist_ok=True)
    toml = """[project]
name = "tiny"
version = "1.0.0"
[tool.flwr.app]
publisher = "me"
[tool.flwr.app.components]
serverapp = "tiny.server_app:app"
clientapp = "tiny.client_app:app"
[tool.flwr.app.config]
num-server-rounds = 5
"""
    (folder / "pyproject.toml").write_text(toml, encoding="utf-8")
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "net.py").write_text(NET, encoding="utf-8")
    (package / "mods.py").write_text(MODS, encoding="utf-8")
    last = '@app.evaluate()\ndef evaluate(message, context):\n    raise RuntimeError("entered")\n'
    (package / "client_app.py").write_text(
        "from flwr.clientapp import ClientApp\n"
        "from flwr.clientapp.mod import *\n"
        "from flwr.clientapp.mod import LocalDpMod\n"
        f"from tiny.mods import DpMod\n{client}\n"
        f"app = ClientApp(mods=[{app_mods}])\n"
        f"@app.train(mods=[{mods}])\n"
        'def train(message, context):\n    raise RuntimeError("training was entered")\n'
        f"{last if evaluate else ''}",
        encoding="utf-8",
    )
    (package / "server_app.py").write_text(
        "from flwr.app import ArrayRecord\nfrom flwr.serverapp import ServerApp\n"
        "from flwr.serverapp.strategy import *\nfrom tiny.net import Net\n"
        "from flwr.supercore.privacy_accounting import *\n"
        "from flwr.supercore.privacy_accounting import NeighboringRelation, SamplingMethod\n"
        "from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant\n"
        "app = ServerApp()\n@app.main()\ndef main(grid, context):\n"
        f"    strategy = {strategy}\n"
        "    strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()),\n"
        "        num_rounds=context.run_config['num-server-rounds'])\n"
        '    raise RuntimeError("the strategy was started")\n',
        encoding="utf-8",
    )
    return folder
