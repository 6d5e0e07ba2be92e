"""Writes a plan as rows, and as settings of the tools that carry it out."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue
from torch import nn

from gradaudit.defenses.base import module_of
from gradaudit.protection.guards import Protection, UndefendedUpdates
from gradaudit.report import Measurement, Report


@dataclass(frozen=True)
class Plan:
    """A protection plan with its report.

    Attributes:
        protection: the plan; where none passes, the nearest.
        cost: of it.
        naive: cost of the fewest first or last layers that pass when hidden, by strategy.
        judged: report of the plan on records that the search did not see.
        failed: rules that it fails there, in words.
        trials: number of protections that were measured on the search's records.
        rounds: how often it was verified.
        out_of_time: whether time ended the search.
        prices: what hiding each layer costs.
        updates: of the layers.
    """

    protection: Protection
    cost: float
    naive: Mapping[str, float]
    judged: Report
    failed: tuple[str, ...]
    trials: int
    rounds: int
    out_of_time: bool
    prices: Mapping[str, float]
    updates: UndefendedUpdates


AUDIT = "plan"


def plan_report(
    plan: Plan, model: nn.Module, cost: str, provenance: Mapping[str, JsonValue]
) -> Report:
    """Make the report on held-out records, with rows of the plan's cost and its settings."""
    rows = [
        Measurement(
            audit=AUDIT,
            metric="cost",
            value=plan.cost,
            unit=cost,
            details={
                "passes": not plan.failed,
                "trials": plan.trials,
                "rounds": plan.rounds,
            },
        ),
        _naive_row(plan, cost),
    ]
    summary: dict[str, JsonValue] = {
        "hidden": list(plan.protection.hidden),
        "noise": plan.protection.noise,
        "options": options(plan.protection, plan.updates),
        "settings": dict(framework_settings(plan.protection, model)),
        "failed": list(plan.failed),
    }
    return plan.judged.model_copy(
        update={
            "measurements": [*plan.judged.measurements, *rows],
            "provenance": {**plan.judged.provenance, **provenance, "protection": summary},
        }
    )


def _naive_row(plan: Plan, cost: str) -> Measurement:
    if not plan.naive:
        reason = "no simple strategy was found to pass"
        return Measurement(audit=AUDIT, metric="cost_naive", status="skipped", reason=reason)
    name = min(plan.naive, key=plan.naive.__getitem__)
    details: dict[str, JsonValue] = {"strategy": name, "strategies": dict(plan.naive)}
    value = plan.naive[name]
    return Measurement(audit=AUDIT, metric="cost_naive", value=value, unit=cost, details=details)


_CLIP = 2.0
"""Clipping norm that goes with noise, over the norm of the longest update; it clips almost none."""


def defense_specs(protection: Protection, updates: UndefendedUpdates) -> tuple[str, ...]:
    """Write the defenses of the shared layers as ``--defense`` takes them.

    Every layer is clipped by itself, so that what it shares depends on no other.
    """
    return tuple(
        f"dp:clip={_CLIP * updates.norm(layer) or 1.0:.3g},sigma={protection.noise:g},per=release,"
        f"layers={layer}"
        for layer in (protection.shared if protection.noise else ())
    )


def options(protection: Protection, updates: UndefendedUpdates) -> str:
    """Returns ``--hide`` and ``--defense`` options, quoted for a shell; empty for no protection."""
    hidden = [("--hide", layer) for layer in protection.hidden]
    defended = [("--defense", spec) for spec in defense_specs(protection, updates)]
    return " ".join(f"{flag} {shlex.quote(value)}" for flag, value in [*hidden, *defended])


def framework_settings(protection: Protection, model: nn.Module) -> Mapping[str, JsonValue]:
    """Returns framework settings that keep the hidden layers' tensors from the server.

    Returns:
        For NVFlare the filters ``ExcludeVars``, which leaves them out of a message, and
        ``HEModelEncryptor``, which encrypts them, either of them by itself; for Flower a line of
        the app's configuration, with the names for a mod that leaves them out.
    """
    hidden = set(protection.hidden)
    names: list[JsonValue] = [n for n in model.state_dict() if module_of(n) in hidden]
    if not names:
        return {}
    return {
        "nvflare": {
            "exclude": _filter("nvflare.app_common.filters.exclude_vars.ExcludeVars", names),
            "encrypt": {
                "path": "nvflare.app_opt.he.model_encryptor.HEModelEncryptor",
                "args": {"encrypt_layers": names},
            },
        },
        "flower": {"exclude-vars": ",".join(map(str, names))},
    }


def _filter(path: str, names: list[JsonValue]) -> JsonValue:
    return {"path": path, "args": {"exclude_vars": names}}
