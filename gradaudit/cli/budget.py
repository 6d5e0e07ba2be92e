"""Runs audits within a time budget: the sizes that they may have, the clock, and the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradaudit.audits import Audit
from gradaudit.audits.sizes import OF_SUBJECT, SIZES, Size, SizeName
from gradaudit.cli.perform import asked, finish, opened, presentable, show, unfinished
from gradaudit.cli.terminal import watcher
from gradaudit.config import BudgetSettings, settle
from gradaudit.judging import Policy
from gradaudit.report import Report


def time_left(seconds: float) -> Callable[[], float]:
    """Returns a clock of the seconds that are left from now on."""
    end = time.monotonic() + seconds
    return lambda: end - time.monotonic()


def sizes_of(audit: type[Audit[Any]], most: SizeName, given: Mapping[str, Any]) -> tuple[Size, ...]:
    """Returns the sizes of an audit, from the least exact to the most exact that is wanted.

    Those that come to the same are one, named as the largest of them.

    Args:
        audit: its class, with a preset of each name.
        most: the largest size.
        given: options that the user set, which win over every preset.

    Raises:
        UsageError: a value is out of range.
    """
    sizes: dict[object, Size] = {}
    for name in SIZES[: SIZES.index(most) + 1]:
        preset = getattr(audit, name)
        if preset is None:
            continue
        options = settle(audit.Options, {}, {**preset, **given})
        looked_at = {key: preset[key] for key in OF_SUBJECT if key in preset}
        key = (options, *looked_at.items())
        sizes.pop(key, None)
        sizes[key] = Size(name, audit(options), **looked_at)
    return tuple(sizes.values())


def survey(
    settings: BudgetSettings,
    config: Path | None,
    ladders: Sequence[Sequence[Size]],
    left: Callable[[], float],
    *,
    others: Sequence[Audit[Any]] = (),
    policy: Policy | None = None,
) -> Report:
    """Run audits within a time and show the report, also of finished audits at an interrupt.

    Args:
        settings: of the command, with a budget.
        config: the configuration file that it read, if any.
        ladders: the sizes of each audit.
        left: the time.
        others: audits that are not run, as they read no captured update.
        policy: what the report's files are judged by.

    Raises:
        AuditError: the report cannot stand as an audit that was done.
    """
    with unfinished(settings) as units:
        with opened(settings) as subject:
            from gradaudit.planning.survey import Survey

            done = Survey(subject, ladders, left, others)
            done.go(watcher(settings.quiet), units)
        report = done.report({**asked(config), "budget": settings.seconds})
        if done.stopped:
            show(presentable(report, settings, subject), settings, policy)
            raise done.stopped
        finish(report, settings, subject, units, policy)
    return report
