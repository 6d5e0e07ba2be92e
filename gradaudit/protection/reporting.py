"""A plan as rows of a report."""

from collections.abc import Mapping

from pydantic import JsonValue
from torch import nn

from gradaudit.protection.guards import OPEN
from gradaudit.protection.plan import Plan
from gradaudit.protection.settings import framework_settings, options
from gradaudit.report import Measurement, Report

AUDIT = "plan"


def plan_report(
    plan: Plan, model: nn.Module, cost: str, provenance: Mapping[str, JsonValue]
) -> Report:
    """The report of the plan on fresh records, with rows of what it costs, and how to set it up."""
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
