"""Loads an NVFlare job folder: the filters that a client's results pass through, no executor.

Source: NVFlare 2.9, ``private/fed_json_config.py``, ``private/fed/client/client_runner.py`` and
``apis/utils/task_utils.py`` (``apply_filters``), whose own code composes the chains here.
"""

import io
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NoReturn

from nvflare.apis.dxo import MetaKey
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, SystemVarName
from nvflare.apis.shareable import ReservedHeaderKey
from nvflare.apis.utils.task_utils import apply_filters
from nvflare.app_common.app_constant import AppConstants
from nvflare.fuel.utils.class_utils import instantiate_class
from nvflare.fuel.utils.config import ConfigFormat
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.private.fed.app.fl_conf import PrivacyConfiger
from nvflare.private.fed_json_config import FedJsonConfigurator
from nvflare.private.privacy_manager import Scope
from torch import nn

from gradaudit.audits.dp_audit.middleware import quiet
from gradaudit.audits.dp_audit.middleware.nvflare_messages import (
    context_of,
    outgoing,
    shareable_of,
)
from gradaudit.audits.dp_audit.middleware.payload import (
    Arrays,
    Exchange,
    Form,
    Layout,
    Outgoing,
)
from gradaudit.audits.job.loading import fresh_imports, models_in
from gradaudit.audits.job.loading.chains import Fault, JobChain, Link, LoadedJob, fault
from gradaudit.audits.job.loading.job_files import inside, read_job_file
from gradaudit.core.text import first_line
from gradaudit.errors import UsageError
from gradaudit.models.building import load_model

RESULTS, DATA = Scope.TASK_RESULT_FILTERS_NAME, Scope.TASK_DATA_FILTERS_NAME
STEPS = MetaKey.NUM_STEPS_CURRENT_ROUND
NUMBERS = {STEPS: 1.0, str(MetaKey.INITIAL_METRICS): 0.3}
"""Meta data that NVFlare's client API sends beside an update."""
_NOT_BUILT = re.compile(r"^(components|executors|handlers|workflows)\b")
_USUAL_TASKS = ("train", "validate", "submit_model")
_EVALUATES = re.compile("eval|validat", re.IGNORECASE)
"""Of workflows that ask for more than training, the path."""
EXCHANGES: tuple[Exchange, ...] = ("numpy", "pytorch")
MOST_TASKS = 100
"""Most tasks of a client, each of whose chains is run on simulated updates."""
_ARGUMENT = re.compile(r"--?([a-z][\w-]*)[ =]([\w.+-]+)")
"""An argument of a script and its value, as in ``--epochs 2``."""


class FilterTables(FedJsonConfigurator):  # type: ignore[misc]
    """NVFlare's own tables of filters, with executors, components and workflows not built."""

    def process_config_element(self, config_ctx: Any, node: Any) -> None:
        """Build only filters from the configuration."""
        if not _NOT_BUILT.match(node.path()):
            super().process_config_element(config_ctx, node)


class ReferencesOnly(FilterTables):
    """NVFlare's own configuration with its references resolved, and nothing built."""

    def process_config_element(self, config_ctx: Any, node: Any) -> None:
        """Build nothing."""

    def finalize_config(self, config_ctx: Any) -> None:
        """Check nothing."""


def load(folder: Path, site_policy: Path | None, model: str | None, site: str) -> LoadedJob:
    """Load an NVFlare job, with its chains under every scope of the site's privacy policy.

    Args:
        folder: of the job, with ``meta.json`` (or ``.conf``, ``.yml``).
        site_policy: the site's ``privacy.json``.
        model: where the job names no model that can be built.
        site: name of the client.

    Raises:
        UsageError: a file is missing or wrong, or the model is not known.
    """
    meta = _configuration(folder, _needed(folder, "meta.json"))
    root = inside(folder, folder / _app(folder, meta, site))
    inside(folder, root / "custom")
    with fresh_imports([root / "custom"]), quiet():
        file = _needed(root / "config", "config_fed_client.json")
        conf = _tables(folder, root, file, site)
        client = dict(conf.config_data)
        server = _configuration(folder, _file(root / "config", "config_fed_server.json"))
        named, layout = _model([server, client], model, folder)
        scopes = _scopes(site_policy, meta)
        job = LoadedJob("nvflare", named, layout, [], config=dict(_settings(client)))
        job.models = models_in([root / "custom"])
        where = str(file.resolve().relative_to(folder.resolve()))
        evaluates = any(_EVALUATES.search(str(w.get("path"))) for w in server.get("workflows", []))
        tasks = _tasks(client, conf, _USUAL_TASKS if evaluates else _USUAL_TASKS[:1])
        for name, scope, chosen in scopes:
            for task in tasks:
                job.chains.append(_chain(task, conf, client, layout, (name, scope, chosen), where))
        job.faults += [*_dead_chains(conf, client, tasks, where), *_unwired(client, where)]
        job.rounds, job.clients = _told(server, "num_rounds"), _told(server, "num_clients")
        job.online = job.clients = job.clients or _told(server, "min_clients")
    return job


def _file(folder: Path, name: str) -> Path | None:
    """Find a configuration in any format that NVFlare reads, by the name of its JSON file."""
    base = folder / name.removesuffix(".json")
    paths = (base.with_name(base.name + ending) for ending in ConfigFormat.config_ext_formats())
    return next((path for path in paths if path.exists()), None)


def _configuration(folder: Path, path: Path | None) -> dict[str, Any]:
    """Read a configuration of a job."""
    return {} if path is None else read_job_file(inside(folder, path), _parsed)


def _needed(folder: Path, name: str) -> Path:
    path = _file(folder, name)
    if path is None:
        raise UsageError(f"{folder / name}: is missing (.conf and .yml need pyhocon and omegaconf)")
    return path


def _parsed(path: Path) -> Any:
    """Parse a configuration by NVFlare's own loader of its format, without includes of HOCON."""
    kinds = ConfigFormat.config_ext_formats()
    kind = next(kinds[ending] for ending in kinds if path.name.endswith(ending))
    loader = ConfigFactory.get_config_loader(kind)
    if loader is None:
        raise UsageError(f"{path}: needs pyhocon (.conf) or omegaconf (.yml); install it")
    if kind != ConfigFormat.PYHOCON:
        return loader.load_config(str(path)).to_dict()
    hocon = import_module("pyhocon").ConfigFactory
    hocon.parse_URL = hocon.parse_file = _refuse_include  # in the child process alone
    return loader.load_config_from_str(path.read_text(encoding="utf-8")).to_dict()


def _refuse_include(name: Any, *_: Any, **__: Any) -> NoReturn:
    raise UsageError(f"include {str(name)!r}: gradaudit follows no includes; write it out")


def _app(folder: Path, meta: Mapping[str, Any], site: str) -> str:
    """Find the folder of the app that is deployed to this client."""
    deployed = meta.get("deploy_map")
    for app, sites in deployed.items() if isinstance(deployed, Mapping) else ():
        names = [s if isinstance(s, str) else s.get("sites", []) for s in sites]
        flat = [x for n in names for x in ([n] if isinstance(n, str) else n)]
        if "@ALL" in flat or site in flat:
            return str(app)
    raise UsageError(
        f"{folder}/meta.json: deploy_map deploys no app to {site!r}; name the client with --client"
    )


def _tables(folder: Path, root: Path, file: Path, site: str) -> FilterTables:
    """Build NVFlare's filter tables for the client by its own code.

    Its references are resolved in the child process, where they may be bombs.
    """
    nowhere = (SystemVarName.ROOT_URL, SystemVarName.CP_URL, SystemVarName.RELAY_URL)
    variables = dict.fromkeys(nowhere, "") | {
        SystemVarName.SITE_NAME: site,
        SystemVarName.JOB_ID: "job",
        SystemVarName.WORKSPACE: str(root),
        SystemVarName.JOB_CUSTOM_DIR: str(root / "custom"),
        SystemVarName.JOB_CONFIG_DIR: str(root / "config"),
        SystemVarName.SECURE_MODE: True,
    }

    def configured(kind: type[FilterTables], path: Path) -> FilterTables:
        conf = kind(
            config_file_name=str(path),
            base_pkgs=["nvflare"],
            module_names=["apis", "app_common", "widgets"],
            exclude_libs=True,
            is_server=False,
            sys_vars=variables,
        )
        with redirect_stdout(io.StringIO()):  # it prints what it raises
            conf.configure()
        return conf

    with _private_file() as plain:

        def resolved(path: Path) -> Any:
            plain.write_text(json.dumps(_parsed(path)), encoding="utf-8")
            return configured(ReferencesOnly, plain).config_data

        plain.write_text(json.dumps(read_job_file(inside(folder, file), resolved)))
        try:
            return configured(FilterTables, plain)
        except (Exception, SystemExit) as error:  # ConfigError, or whatever a filter raises
            words = first_line(error).replace(str(plain), file.name)
            raise UsageError(f"{file}: {words}") from error


@contextmanager
def _private_file() -> Iterator[Path]:
    """Name a private file for NVFlare's own code, which reads files alone."""
    with TemporaryDirectory() as folder:
        yield Path(folder) / "configuration.json"


def _model(
    configs: Sequence[Mapping[str, Any]], spec: str | None, folder: Path
) -> tuple[str, Layout]:
    """Load the job's model: the user's, else the first module that the configuration names."""
    if spec is not None:
        return spec, Layout.of(load_model(spec).state_dict())
    for config in configs:
        for path, arguments in _modules(config):
            try:
                model = instantiate_class(path, arguments)
            except Exception as error:  # whatever the user's code raises
                raise UsageError(f"{folder}: model {path}: {first_line(error)}") from error
            if isinstance(model, nn.Module):
                return path, Layout.of(model.state_dict())
    raise UsageError(f"{folder}: names no model that can be built; give --model FILE.py:factory")


def _modules(config: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every ``model`` among components' arguments: its class path and arguments."""
    for node in _mappings(config):
        model = node.get("model")
        if isinstance(model, Mapping) and isinstance(model.get("path"), str):
            path = re.sub(r"\{(\w+)\}", lambda m: str(config.get(m[1], m[0])), model["path"])
            yield path, dict(model.get("args") or {})


def _mappings(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every mapping in a configuration, the outer ones first."""
    if isinstance(node, Mapping):
        yield node
    inner = node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
    for value in inner:
        yield from _mappings(value)


def _scopes(policy: Path | None, meta: Mapping[str, Any]) -> list[tuple[str, Any, bool]]:
    """List the scopes of the site's policy: name, scope, and whether the job runs in it."""
    if policy is None:
        return [("", None, True)]
    try:
        with _private_file() as plain:
            plain.write_text(json.dumps(read_job_file(policy, _parsed)), encoding="utf-8")
            workspace = SimpleNamespace(get_site_privacy_file_path=lambda: str(plain))
            reader = PrivacyConfiger(workspace, names_only=False)
            reader.configure()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # ConfigError, or whatever a filter raises
        raise UsageError(f"{policy}: {first_line(error)}") from error
    manager, wanted = reader.privacy_manager, meta.get("scope", "")
    chosen = manager.get_scope(wanted)
    if chosen is None:
        raise UsageError(
            f"meta.json: scope {wanted!r} is none of {policy}, so the site refuses the job; its "
            f"scopes are: {', '.join(sorted(manager.name_to_scopes))}"
        )
    return [(n, scope, scope is chosen) for n, scope in manager.name_to_scopes.items()]


def _tasks(client: Mapping[str, Any], conf: FilterTables, usual: Sequence[str]) -> list[str]:
    """List the tasks whose results leave the client: the named ones, or else the usual ones."""
    patterns = [t for e in client.get("executors", []) for t in e.get("tasks", [])]
    keyed = [key.rpartition("/")[0] for key in conf.result_filter_table if "*" not in key]
    known = [*(p for p in patterns if "*" not in p), *usual, *keyed]
    if len(known) > MOST_TASKS:
        raise UsageError(f"the client's executors have {len(known):,} tasks; at most {MOST_TASKS}")
    return list(dict.fromkeys(t for t in known if any(fnmatch(t, p) for p in patterns)))


def _chain(
    task: str,
    conf: FilterTables,
    client: Mapping[str, Any],
    layout: Layout,
    scope: tuple[str, Any, bool],
    where: str,
) -> JobChain:
    """Make the chain of one task under one scope."""
    swarm = _swarm_of(client)
    learns = swarm is not None and task == swarm.get("learn_task_name", "train")
    prefix = (swarm or {}).get("task_name_prefix", "swarm")
    sent_as = f"{prefix}_report_learn_result" if learns else task
    kind, table = (DATA, conf.data_filter_table) if learns else (RESULTS, conf.result_filter_table)
    name, site_scope, chosen = scope
    of_site = [] if site_scope is None else getattr(site_scope, kind).get(FilterKey.OUT, [])
    filters = [*of_site, *table.get(f"{sent_as}{FilterKey.DELIMITER}{FilterKey.OUT}", [])]
    names = {type(each).__name__ for each in filters}
    sent = partial(_sent, kind, table, sent_as, site_scope, names)
    numbers_only = "validate" in task
    exchange = _exchange(client, task)
    links = [
        Link(
            type(each).__name__,
            f"privacy.json scope {name}" if i < len(of_site) else f"{where} {kind}",
            each,
            partial(_through, each, site_scope),
        )
        for i, each in enumerate(filters)
    ]
    chain = JobChain(
        sent_as,
        links,
        _form(client, task),
        partial(sent, 1),
        carries="numbers" if numbers_only else "model" if task == "submit_model" else "update",
        numbers={"accuracy": 0.3} if numbers_only else NUMBERS,
        scope=name,
        chosen=chosen,
        file=where,
        key=f"{kind} of the task {sent_as}, direction out",
        exchange=exchange or "numpy",
        exchanges=EXCHANGES,
        exchange_known=exchange is not None,
        bare=partial(_sent, kind, {}, sent_as, None, (), 1),
        in_round=lambda number, state: partial(sent, number),
    )
    return chain.receiving(layout)


def _form(client: Mapping[str, Any], task: str) -> Form:
    """Find the form in which a task's executor answers: weights or differences."""
    if task == "submit_model":
        return "weights"
    kind = _setting(client, task, "params_transfer_type")
    return "weights" if kind is not None and not kind.endswith("DIFF") else "differences"


def _exchange(client: Mapping[str, Any], task: str) -> Exchange | None:
    """Find what arrays a task's executor answers with; None where that is not known."""
    kind = _setting(client, task, "server_expected_format")
    return next((each for each in EXCHANGES if each.upper() == kind), None)


def _setting(client: Mapping[str, Any], task: str, name: str) -> str | None:
    """Look up an argument of a task's executor, in capitals; NVFlare's own have a default."""
    for each in client.get("executors", []):
        if any(fnmatch(task, pattern) for pattern in each.get("tasks", [])):
            executor = each.get("executor", {})
            value = (executor.get("args") or {}).get(name)
            value = _default(str(executor.get("path", "")), name) if value is None else value
            if value is not None:
                return str(value).upper()
    return None


def _default(path: str, name: str) -> Any:
    """Look up the default of an argument of NVFlare's own executors; None if not known."""
    if not path.startswith("nvflare."):
        return None
    try:
        made = signature(resolve_name(path)).parameters
    except (ImportError, AttributeError, ValueError, RuntimeError):  # as without its extra
        return None
    parameter = made.get(name)
    return None if parameter is None else getattr(parameter.default, "value", parameter.default)


def _sent(
    kind: str,
    table: Any,
    task: str,
    scope: Any,
    names: Collection[str],
    number: int,
    received: Arrays,
    given: Outgoing,
) -> Outgoing:
    """Run NVFlare's own ``apply_filters`` on a result, whose header has the number of its round.

    The list of these filters' names that NVFlare adds is left out, as the header is.
    """
    with quiet():
        context, result = context_of(scope, number), shareable_of(given)
        result.set_header(AppConstants.CURRENT_ROUND, number - 1)
        left = apply_filters(kind, result, context, table, task, FilterKey.OUT)
        headers = left.get(ReservedHeaderKey.HEADERS) or {}
        if headers.get(AppConstants.CURRENT_ROUND) == number - 1:
            del headers[AppConstants.CURRENT_ROUND]
        sent = outgoing(left, given)
        history = sent.extras.get(MetaKey.FILTER_HISTORY, ())
        known = {MetaKey.FILTER_HISTORY} if {*history} <= {*names} else ()
        return replace(sent, extras={k: v for k, v in sent.extras.items() if k not in known})


def _through(filter_: Filter, scope: Any, received: Arrays, given: Outgoing) -> Outgoing:
    """Run one filter on a result."""
    with quiet():
        return outgoing(filter_.process(shareable_of(given), context_of(scope)), given)


def _settings(client: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Collect the client's training settings: arguments of its executors and its script."""
    for node in _mappings(client):
        for key, value in node.items():
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, str):
                    yield from _ARGUMENT.findall(each)
                elif not isinstance(each, Mapping | list):
                    yield key, each


def _told(server: Mapping[str, Any], key: str) -> int | None:
    """Read a number from the server's first workflow that has it."""
    for workflow in server.get("workflows", []):
        value = (workflow.get("args") or {}).get(key)
        if isinstance(value, int) and value > 0:
            return value
    return None


def _swarm_of(client: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the arguments of the client's swarm controller, where there is one."""
    for each in client.get("executors", []):
        executor = each.get("executor", {})
        if str(executor.get("path", "")).endswith("SwarmClientController"):
            return dict(executor.get("args") or {})
    return None


def _dead_chains(
    conf: Any, client: Mapping[str, Any], tasks: Sequence[str], where: str
) -> Iterator[Fault]:
    """Find filters of the job that no result passes through."""
    swarm = _swarm_of(client)
    learn = None if swarm is None else swarm.get("learn_task_name", "train")
    table = conf.result_filter_table  # one chain may be that of several tasks
    for key, filters in table.items():
        task, _, direction = key.rpartition("/")
        names = ", ".join(type(each).__name__ for each in filters)
        if direction == FilterKey.IN and f"{task}/{FilterKey.OUT}" not in table:
            found = "filter-direction-in"
        elif "*" in task:
            found = "filter-task-wildcard"
        elif learn is not None and task == learn:
            found = "swarm-result-filters-dead"
        elif task not in tasks and all(
            table.get(f"{t}/{FilterKey.OUT}") is not filters for t in tasks
        ):
            found = "filter-wrong-task"
        else:
            continue
        about = (where, f"task_result_filters of {task}", task)
        yield fault(found, *about, names=names, tasks=json.dumps(list(tasks)))


def _unwired(client: Mapping[str, Any], where: str) -> Iterator[Fault]:
    """Find filters among the components, which NVFlare builds but never runs."""
    for i, component in enumerate(client.get("components", [])):
        path = str(component.get("path", ""))
        module, _, name = path.rpartition(".")
        try:
            found = getattr(__import__(module, fromlist=[name]), name, None) if module else None
        except Exception:
            continue
        if name == "ConvertToFedEvent":
            yield fault("events-in-clear", where, f"components[{i}]")
        if isinstance(found, type) and issubclass(found, Filter):
            yield fault("unwired-filter", where, f"components[{i}]", part=name)
