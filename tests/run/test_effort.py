"""How hard an attack was tried, and that what was hardly tried passes nothing."""

from typing import Any

import pytest

from gradaudit.audits import audits
from gradaudit.audits.attack_inference import AttackProperty
from gradaudit.audits.attack_labels import AttackLabels
from gradaudit.audits.attack_reconstruct import AttackReconstruct
from gradaudit.audits.dp_audit import DpAudit
from gradaudit.judging.case import Case
from gradaudit.judging.policy import Rule
from gradaudit.report import Measurement
from gradaudit.run.effort import with_effort


def row(value: float, **details: Any) -> Measurement:
    return Measurement(
        audit="attack", metric="relative_error", value=value, unit="1", n=4, details=details
    )


@pytest.mark.parametrize(
    ("options", "effort"),
    [
        ({"method": ["dlg"], "iterations": 1, "restarts": 1}, "below"),
        ({"method": ["dlg"]}, "below"),
        ({"method": ["dlg:iterations=1"]}, "below"),
        ({"method": ["closed-form", "idlg", "dlg:iterations=1", "inverting-gradients"]}, "below"),
        ({"method": ["closed-form", "idlg", "dlg:tv=9", "inverting-gradients"]}, "below"),
        (
            {"method": ["closed-form", "idlg", "dlg:iterations=300", "inverting-gradients"]},
            "default",
        ),
        ({"iterations": 4}, "below"),
        ({"tv": 9.0}, "below"),
        ({"learning_rate": 1e-9}, "below"),
        ({"objective": "cosine"}, "below"),
        ({"restarts": 1}, "below"),
        ({"iterations": 5, "restarts": 2, "batches": 1}, "quick"),
        ({}, "default"),
        (AttackReconstruct.thorough, "thorough"),
    ],
)
def test_effort_is_the_most_that_the_options_reach(options: dict[str, Any], effort: str) -> None:
    (found,) = with_effort([row(1.0)], AttackReconstruct(**options))
    assert found.details["effort"] == effort


@pytest.mark.parametrize(
    ("options", "effort"),
    [
        ({}, "default"),
        ({"family": ["logistic"]}, "below"),
        ({"family": ["forest"]}, "below"),
        ({"family": ["logistic", "norms"]}, "below"),
        ({"family": ["forest", "norms", "mlp"]}, "default"),
        ({"reduce": "pca:50"}, "below"),
        ({"reduce": "subset:48"}, "below"),
        ({"reduce": "subset:10000"}, "default"),
        ({"reduce": "none"}, "default"),
        ({"trials": 399}, "below"),
    ],
)
def test_families_and_reductions_count(options: dict[str, Any], effort: str) -> None:
    (found,) = with_effort([row(1.0)], AttackProperty(**options))
    assert found.details["effort"] == effort


def test_lower_bounds_that_are_no_attacks_say_their_effort_too() -> None:
    bound = Measurement(audit="dp-audit", metric="epsilon_lower", value=0.0)
    theory = Measurement(audit="dp-audit", metric="epsilon_theory", value=3.0)
    low, law = with_effort([bound, theory], DpAudit(trials=100))
    assert (low.details, law.details) == ({"effort": "below"}, {})
    (usual,) = with_effort([bound], DpAudit())
    assert usual.details["effort"] == "default"


def test_without_presets_the_defaults_are_its_effort() -> None:
    (found,) = with_effort([row(1.0)], AttackLabels())
    assert found.details["effort"] == "default"


@pytest.mark.parametrize("preset", ["quick", "plain"])
@pytest.mark.parametrize(
    "name",
    [name for name in audits() if name.startswith("attack ") or name in ("vinfo", "dp-audit")],
)
def test_no_preset_of_a_scan_is_below_quick(name: str, preset: str) -> None:
    audit = audits()[name]
    fields = audit.Options.model_fields
    options = {key: v for key, v in getattr(audit, preset).items() if key in fields}
    bounds = [metric.id for metric in audit.metrics if metric.stronger or metric.proven]
    metric = bounds[0] if bounds else audit.metrics[0].id
    (found,) = with_effort([row(1.0).model_copy(update={"metric": metric})], audit(**options))
    assert found.details["effort"] != "below"


@pytest.mark.parametrize(
    ("value", "effort", "outcome"),
    [
        (0.9, "below", "unclear"),
        (0.01, "below", "failed"),
        (0.9, "quick", "passed"),
        (0.01, "quick", "failed"),
    ],
)
def test_below_quick_a_row_fails_but_never_passes(value: float, effort: str, outcome: str) -> None:
    rule = Rule(metric="attack.relative_error", min=0.1)
    case = Case(1, rule, row(value, effort=effort), (value, value))
    assert case.outcome == outcome
    assert ("not shown to do as much as the preset quick" in case.words) is (outcome == "unclear")
