"""The frontier: how far the worst row is beyond its limit, against cost."""

from collections.abc import Sequence
from pathlib import Path

from gradaudit.pictures import picture
from gradaudit.protection.plan import Plan, Trial


def draw_frontier(path: Path, plan: Plan, cost: str) -> None:
    """Every trial, the best for each cost, the plan and the simple strategies.

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
    """The trials that no cheaper one is better than, the cheapest first."""
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
