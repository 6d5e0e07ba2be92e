"""Chooses the audits that a policy's rules need, and sizes that leave time for trials."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from gradaudit.audits import Audit, Metric, audits
from gradaudit.audits.presets import Preset
from gradaudit.errors import UsageError
from gradaudit.judging import Policy, Rule
from gradaudit.run.scan_plan import CORES, RATE, work_of
from gradaudit.subject import Subject


def needed(policy: Policy, ladders: Sequence[Sequence[Preset]]) -> tuple[Sequence[Preset], ...]:
    """The ladders of the audits whose metrics a rule of level error names.

    Args:
        policy: the rules.
        ladders: the sizes of each audit, the most exact last.

    Raises:
        UsageError: no audit measures what a rule names, or there is no rule of level error.
    """
    rules = [rule for rule in policy.rules if rule.level == "error"]
    if not rules:
        raise UsageError(f"{policy.name}: no rule of level error, so that anything passes; add one")
    known = [sizes[-1] for sizes in ladders]
    for rule in rules:
        if not any(asks(rule, size.audit) for size in known):
            raise UsageError(
                f"{policy.name}: metric {rule.metric}: no audit measures it"
                f"{' under these --audits' if len(known) < 2 else ''}; see `gradaudit list metrics`"
            )
    asked = [sizes for sizes in ladders if any(asks(rule, sizes[-1].audit) for rule in rules)]
    return tuple(asked)


def out_of_reach(policy: Policy, ladders: Sequence[Sequence[Preset]]) -> tuple[Rule, ...]:
    """Returns the rules that no plan can follow, as they judge audits that open their own model.

    Such an audit, as of a whole job, measures nothing of the subject that is to be protected.

    Args:
        policy: the rules.
        ladders: the sizes of each audit of the plan.
    """
    planned = [sizes[-1].audit for sizes in ladders]
    apart = [audit for audit in audits().values() if audit.brings_model]
    return tuple(
        rule
        for rule in policy.rules
        if any(asks(rule, audit) for audit in apart)
        and not any(asks(rule, audit) for audit in planned)
    )


def asks(rule: Rule, audit: Audit[Any] | type[Audit[Any]]) -> bool:
    """Whether a rule is about rows of this audit."""
    return any(judges(rule, audit, metric) for metric in audit.metrics)


def judges(rule: Rule, audit: Audit[Any] | type[Audit[Any]], metric: Metric) -> bool:
    """Whether a rule is about an audit's rows of a metric; some rules only are about one audit."""
    name = audit.reports_as()
    wanted = rule.variant.get(name)
    if isinstance(wanted, str) and not fnmatchcase(audit.name.removeprefix(name).strip(), wanted):
        return False
    return fnmatchcase(f"{name}.{metric.id}", rule.metric)


_SHARE = 0.25
"""Share of the time for the first measurement; an equal share is kept for the measurement on fresh
records, and half of the time is left for trials."""


def fitting(
    ladders: Sequence[Sequence[Preset]], subject: Subject, seconds: float
) -> tuple[Preset, ...]:
    """Chooses a preset for every audit: the largest presets that fit together by counted work.

    Else those that are most work are made smaller, as long as there is a smaller preset.

    Args:
        ladders: the presets of each audit, the largest last.
        subject: what is to be protected.
        seconds: of two usual cores that a plan is made for.
    """
    left = [[(work_of(subject, each), each) for each in presets] for presets in ladders]
    while sum(presets[-1][0] for presets in left) > _SHARE * seconds * CORES * RATE:
        shorter = [presets for presets in left if len(presets) > 1]
        if not shorter:
            break
        max(shorter, key=lambda presets: presets[-1][0]).pop()
    return tuple(presets[-1][1] for presets in left)
