"""Writes a plan as rows, as a picture, and as settings of the tools that carry it out."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue
from torch import nn

from gradaudit.core.drawing import picture
from gradaudit.defenses.base import module_of
from gradaudit.protection.cheapest import ProtectionVerdict
from gradaudit.protection.guards import OPEN, Guard, Protection, UndefendedUpdates
from gradaudit.report import Measurement, Report


@dataclass(frozen=True)
class Trial:
    """A protection that was measured while the plan was searched for."""

    protection: Protection
    cost: float
    verdict: ProtectionVerdict


@dataclass(frozen=True)
class Plan:
    """A protection plan with its report and trials.

    Attributes:
        protection: the plan; where none passes, the nearest.
        cost: of it.
        least: what every protection that passes costs at least.
        naive: the cheapest of each simple strategy that passes, by its name, with its cost.
        judged: the report of the plan on records that the search did not see.
        verdict: the rules' verdict on that report.
        trials: trials on the search's records, in order, of protections that keep the rules on
            floors.
        rounds: how often it was verified.
        untried: whether time ran out before all protections that may pass were tried.
        prices: what hiding each layer costs.
        updates: what the layers share.
    """

    protection: Protection
    cost: float
    least: float
    naive: Mapping[str, tuple[Protection, float]]
    judged: Report
    verdict: ProtectionVerdict
    trials: Sequence[Trial]
    rounds: int
    untried: bool
    prices: Mapping[str, float]
    updates: UndefendedUpdates

    @property
    def cheapest_naive(self) -> tuple[str, float] | None:
        """The best simple strategy and what it costs; None where none passes."""
        costs = [(name, cost) for name, (_, cost) in self.naive.items()]
        return min(costs, key=lambda pair: pair[1], default=None)


def draw_frontier(path: Path, plan: Plan, cost: str) -> None:
    """Draw every trial, the best for each cost, the plan and the simple strategies.

    Args:
        path: ends in .svg or .png.
        plan: what was found.
        cost: what the axis of cost is called.
    """
    trials = [trial for trial in plan.trials if trial.verdict.excess is not None]
    with picture(path, 1) as (axes,):
        axes.axhline(0, color="lightgrey", linewidth=1, zorder=0)
        axes.scatter(*_points(trials), s=10, color="tab:grey", label="trials")
        axes.step(*_points(frontier(trials)), where="post", linewidth=1, label="frontier")
        excess = plan.verdict.excess
        if excess is not None:
            axes.scatter([plan.cost], [excess], marker="*", s=80, color="tab:red", label="plan")
        by_protection = {trial.protection: trial for trial in trials}
        for marker, (name, (protection, _)) in zip("^v<>", plan.naive.items(), strict=False):
            if trial := by_protection.get(protection):
                axes.scatter(*_points([trial]), marker=marker, s=30, label=name)
        axes.set_yscale("symlog", linthresh=1)
        axes.set(xlabel=f"cost ({cost})", ylabel="worst row beyond its limit / limit")


def frontier(trials: Sequence[Trial]) -> list[Trial]:
    """Returns the trials that no cheaper trial beats, the cheapest first."""
    kept: list[Trial] = []
    for trial in sorted(trials, key=lambda each: (each.cost, each.verdict.excess)):
        if not kept or _risk(trial) < _risk(kept[-1]):
            kept.append(trial)
    return kept


def _risk(trial: Trial) -> float:
    assert trial.verdict.excess is not None  # those without are not drawn
    return trial.verdict.excess


def _points(trials: Sequence[Trial]) -> tuple[list[float], list[float]]:
    return [trial.cost for trial in trials], [_risk(trial) for trial in trials]


AUDIT = "plan"


def plan_report(
    plan: Plan, model: nn.Module, cost: str, provenance: Mapping[str, JsonValue]
) -> Report:
    """Returns the report on fresh records, with rows of the plan's cost and its settings."""
    naive = plan.cheapest_naive
    rows = [
        Measurement(
            audit=AUDIT,
            metric="cost",
            value=plan.cost,
            unit=cost,
            details={
                "at_least": plan.least,
                "passes": plan.verdict.passed,
                "trials": len(plan.trials),
                "rounds": plan.rounds,
            },
        ),
        _naive_row(plan, cost, naive),
    ]
    summary: dict[str, JsonValue] = {
        "guards": {
            layer: [guard.kind, guard.amount] for layer, guard in plan.protection if guard != OPEN
        },
        "options": options(plan.protection, plan.updates),
        "settings": dict(framework_settings(plan.protection, model)),
        "failed": list(plan.verdict.failed),
    }
    return plan.judged.model_copy(
        update={
            "measurements": [*plan.judged.measurements, *rows],
            "provenance": {**plan.judged.provenance, **provenance, "protection": summary},
        }
    )


def _naive_row(plan: Plan, cost: str, naive: tuple[str, float] | None) -> Measurement:
    if naive is None:
        reason = "no simple strategy was found to pass"
        return Measurement(audit=AUDIT, metric="cost_naive", status="skipped", reason=reason)
    name, value = naive
    costs: dict[str, JsonValue] = {key: each for key, (_, each) in plan.naive.items()}
    details: dict[str, JsonValue] = {"strategy": name, "strategies": costs}
    return Measurement(audit=AUDIT, metric="cost_naive", value=value, unit=cost, details=details)


_CLIP = 2.0
"""Clipping norm that goes with noise, over the norm of the longest update; it clips almost none."""


def defense_specs(protection: Protection, updates: UndefendedUpdates) -> tuple[str, ...]:
    """Returns the defenses of the shared layers, as ``--defense`` takes them.

    Every layer is clipped by itself, so that what it shares depends on no other. Where all are
    pruned alike, which is by the tensor anyway, one spec says so.
    """
    blurred = [(layer, g) for layer, g in protection if g.kind in ("noise", "prune")]
    alike = {guard for _, guard in blurred}
    if len(alike) == 1 and len(blurred) == len(protection.shared) and blurred[0][1].kind == "prune":
        return (_spec(alike.pop(), 0.0),)
    return tuple(f"{_spec(g, updates.norm(layer))},layers={layer}" for layer, g in blurred)


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


def _spec(guard: Guard, norm: float) -> str:
    if guard.kind == "prune":
        return f"prune:{guard.amount:g}"
    return f"dp:clip={_CLIP * norm or 1.0:.3g},sigma={guard.amount:g},per=release"
