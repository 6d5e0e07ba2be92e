"""Judging: policies, findings, baselines and risk levels. Judges reports, never measures."""

from gradaudit.judging.judge import (
    differences,
    gate,
    passed,
    refuse_another_model,
    says,
    verdict,
)
from gradaudit.judging.policy import (
    Ignore,
    Policy,
    Rule,
    default_policy,
    default_policy_yaml,
    known_metrics,
    read_policy,
)
from gradaudit.judging.risk import Risk, layer_risks

__all__ = [
    "Ignore",
    "Policy",
    "Risk",
    "Rule",
    "default_policy",
    "default_policy_yaml",
    "differences",
    "gate",
    "known_metrics",
    "layer_risks",
    "passed",
    "read_policy",
    "refuse_another_model",
    "says",
    "verdict",
]
