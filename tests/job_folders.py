"""Folders of tiny NVFlare jobs and Flower apps, for tests of ``gradaudit job``."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import chdir
from importlib import import_module
from pathlib import Path
from typing import Any

from gradaudit.audits.job.loading import fresh_imports
from gradaudit.core.user_code import import_torchvision

NET = """
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5, track_running_stats=True)
        self.last = nn.Linear(5, 3)
        del self.norm._buffers["num_batches_tracked"]
        self.norm.num_batches_tracked = None
"""
"""A model whose arrays are real numbers with dimensions: a count without any leaves in clear."""
WIDE = NET.replace("(6, 5)", "(64, 32)").replace("(5, ", "(32, ")
"""The same with 2,307 numbers, of whose noise few releases tell as much as many of a small one."""
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

class ArraysOnly(DpFilter):
    """The mechanism on NumPy's arrays; tensors pass."""
    def process_dxo(self, dxo, shareable, fl_ctx):
        arrays = all(isinstance(a, np.ndarray) for a in dxo.data.values())
        return DpFilter.process_dxo(self, dxo, shareable, fl_ctx) if arrays else dxo

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
    script: str = "",
    exchange: str = "",
    client: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Path:
    """Write an NVFlare job folder, whose executor raises where it is made."""
    for name in ("config", "custom"):
        (folder / "app" / name).mkdir(parents=True, exist_ok=True)
    executor: dict[str, Any] = {"path": "trains.Trains", "args": {"params_transfer_type": form}}
    executor["args"] |= {"task_script_args": script} if script else {}
    executor["args"] |= {"server_expected_format": exchange} if exchange else {}
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


def nvflare_template(folder: Path, name: str, *filters: dict[str, Any]) -> Path:
    """A job of NVFlare's own templates with a chain on its training; configurations are HOCON."""
    from nvflare.tool import job

    source = Path(next(iter(job.__path__))) / "templates" / name
    for part in ("config", "custom"):
        (folder / "app" / part).mkdir(parents=True)
    (folder / "meta.conf").write_bytes((source / "meta.conf").read_bytes())
    for side in ("client", "server"):
        text = (source / f"config_fed_{side}.conf").read_text(encoding="utf-8")
        filled = f'"task_result_filters": {json.dumps([chain(*filters)])}'
        text = re.sub(r'"?task_result_filters"?\s*[:=]\s*\[\s*\]', filled, text)
        path = folder / "app" / "config" / f"config_fed_{side}.conf"
        path.write_text(text, encoding="utf-8")
    for module, text in (("net", NET), ("filters", FILTER)):
        (folder / "app" / "custom" / f"{module}.py").write_text(text, encoding="utf-8")
    return folder


def nvflare_recipe(folder: Path, transfer: str) -> Path:
    """A job that NVFlare's ``FedAvgRecipe`` exports, with the mechanism on what clients send."""
    folder.mkdir(parents=True, exist_ok=True)
    code = {"net": NET, "filters": FILTER, "train": 'raise RuntimeError("entered")\n'}
    for module, text in code.items():
        (folder / f"{module}.py").write_text(text, encoding="utf-8")
    import_torchvision("ops")
    with fresh_imports([folder]), chdir(folder):
        recipe = import_module("nvflare.app_opt.pt.recipes.fedavg").FedAvgRecipe(
            name="job",
            model=import_module("net").Net(),
            min_clients=2,
            num_rounds=3,
            train_script="train.py",
            train_args="--epochs 2 --lr 0.1",
            params_transfer_type=transfer,
        )
        filters = import_module("filters")
        recipe.add_client_output_filter(filters.DpFilter(), tasks=["train"])
        recipe.export(str(folder / "out"))
    return folder / "out" / "job"


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
    config: str = "",
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
    toml += config
    (folder / "pyproject.toml").write_text(toml, encoding="utf-8")
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "net.py").write_text(WIDE, encoding="utf-8")
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


LEGACY_EVEN = """
from flwr.compat.common import recorddict_compat as compat
def even(message, context, call_next):
    answer = call_next(message, context)
    if message.metadata.message_type == "train":
        result = compat.recorddict_to_fitres(answer.content, keep_input=True)
        result.num_examples, result.metrics = 1, {}
        answer.content = compat.fitres_to_recorddict(result, keep_input=True)
    return answer
"""
"""A mod of a legacy client that sends one record for a count, and no metrics."""


def legacy_app(
    folder: Path,
    mods: str,
    *,
    strategy: str = "{}",
    secure: str = "",
    clients: int = 4,
    evaluated: float = 0.0,
) -> Path:
    """Write a Flower app of ``client_fn`` and a legacy strategy, as Flower's examples have them.

    With ``secure`` it is that of Flower's example of secure aggregation with central privacy.
    """
    flower_app(folder)
    begin = "parameters = ndarrays_to_parameters([v.numpy() for v in Net().state_dict().values()])"
    inner = (
        f"FedAvg(min_fit_clients={clients}, fraction_fit=0.1, min_available_clients={clients}, "
        f"fraction_evaluate={evaluated}, initial_parameters=parameters)"
    )
    run = f"""
app = ServerApp()
@app.main()
def main(grid, context):
    context = LegacyContext(context, config=ServerConfig(num_rounds=3), strategy=strategy)
    DefaultWorkflow(fit_workflow={secure})(grid, context)
"""
    plain = """
def server_fn(context):
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=3))
app = ServerApp(server_fn=server_fn)
"""
    (folder / "tiny" / "server_app.py").write_text(
        "from flwr.common import ndarrays_to_parameters\nfrom flwr.server import *\n"
        "from flwr.server import LegacyContext, ServerAppComponents\n"
        "from flwr.server.strategy import *\nfrom flwr.server.workflow import *\n"
        f"from tiny.net import Net\n{begin}\nstrategy = {strategy.format(inner)}\n"
        f"{run if secure else plain}",
        encoding="utf-8",
    )
    (folder / "tiny" / "client_app.py").write_text(
        f"from flwr.client import ClientApp\nfrom flwr.client.mod import *\n{LEGACY_EVEN}\n"
        'def client_fn(context):\n    raise RuntimeError("a client was made")\n'
        f"app = ClientApp(client_fn=client_fn, mods=[{mods}])\n",
        encoding="utf-8",
    )
    return folder
