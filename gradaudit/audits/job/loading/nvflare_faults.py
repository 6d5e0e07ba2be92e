"""Faults of an NVFlare job's configuration: filters that no result of a client ever passes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey

from gradaudit.audits.job.loading.chains import Fault, fault

_SWARM = "SwarmClientController"
_BY_EVENTS = "ConvertToFedEvent"


def swarm_of(client: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The arguments of the swarm's controller on the client, where there is one."""
    for each in client.get("executors", []):
        executor = each.get("executor", {})
        if str(executor.get("path", "")).endswith(_SWARM):
            return dict(executor.get("args") or {})
    return None


def dead_chains(
    conf: Any, client: Mapping[str, Any], tasks: Sequence[str], where: str
) -> Iterator[Fault]:
    """Filters of the job that no result ever passes through."""
    swarm = swarm_of(client)
    learn = None if swarm is None else swarm.get("learn_task_name", "train")
    for key, filters in conf.result_filter_table.items():
        task, _, direction = key.rpartition("/")
        names = ", ".join(type(each).__name__ for each in filters)
        if direction == FilterKey.IN and f"{task}/{FilterKey.OUT}" not in conf.result_filter_table:
            found = "filter-direction-in"
        elif "*" in task:
            found = "filter-task-wildcard"
        elif learn is not None and task == learn:
            found = "swarm-result-filters-dead"
        elif task not in tasks and not _runs_elsewhere(conf, filters, tasks):
            found = "filter-wrong-task"
        else:
            continue
        about = (where, f"task_result_filters of {task}", task)
        yield fault(found, *about, names=names, tasks=json.dumps(list(tasks)))


def _runs_elsewhere(conf: Any, filters: object, tasks: Sequence[str]) -> bool:
    """Whether the same chain is that of another task too, which an executor has."""
    table = conf.result_filter_table
    return any(table.get(f"{task}/{FilterKey.OUT}") is filters for task in tasks)


def unwired(client: Mapping[str, Any], where: str) -> Iterator[Fault]:
    """Filters among the components, which NVFlare builds and never runs."""
    for i, component in enumerate(client.get("components", [])):
        path = str(component.get("path", ""))
        module, _, name = path.rpartition(".")
        try:
            found = getattr(__import__(module, fromlist=[name]), name, None) if module else None
        except Exception:
            continue
        if name == _BY_EVENTS:
            yield fault("events-in-clear", where, f"components[{i}]")
        if isinstance(found, type) and issubclass(found, Filter):
            yield fault("unwired-filter", where, f"components[{i}]", part=name)
