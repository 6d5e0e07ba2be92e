"""Judging: policies, findings, baselines and risk levels; it judges reports, never measures."""

from gradaudit.judging.judge import differences, gate, refuse_another_model
from gradaudit.judging.policy import (
    Ignore,
    Policy,
    Rule,
    default_policy,
    default_policy_yaml,
    known_metrics,
    read_policy,
)
from gradaudit.judging.risk import Risk, layer_risks, with_findings
from gradaudit.judging.verdict import (
    Word,
    fails,
    is_known,
    known_rows,
    notes,
    passed,
    rule_name,
    verdict,
)

__all__ = [
    "Ignore",
    "Policy",
    "Risk",
    "Rule",
    "Word",
    "default_policy",
    "default_policy_yaml",
    "differences",
    "fails",
    "gate",
    "is_known",
    "known_metrics",
    "known_rows",
    "layer_risks",
    "notes",
    "passed",
    "read_policy",
    "refuse_another_model",
    "rule_name",
    "verdict",
    "with_findings",
]
