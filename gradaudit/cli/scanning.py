"""Steps of the commands that run a plan of audits: presets, the scan itself, and its dry run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gradaudit.audits import Audit, Metric
from gradaudit.audits.presets import OF_SUBJECT, PRESETS, Preset, PresetName
from gradaudit.cli.perform import asked, finish, opened, presentable, show, unjudged, write
from gradaudit.cli.terminal import watcher
from gradaudit.config import BudgetSettings, settle
from gradaudit.core.files import write_atomically
from gradaudit.core.text import duration, listed, printable
from gradaudit.errors import GradauditError, NotApplicable, UsageError
from gradaudit.judging import Policy
from gradaudit.judging.policy import matches
from gradaudit.report import Report

if TYPE_CHECKING:
    from gradaudit.run.scan_plan import Judged, PlannedAudit
    from gradaudit.subject import Subject

Presets = Sequence[Sequence[Preset]]
Left = Callable[[], float]


def presets_of(
    audit: type[Audit[Any]], most: PresetName, given: Mapping[str, Any]
) -> tuple[Preset, ...]:
    """Returns the presets of an audit, from the least work to the most that is wanted.

    Presets with equal options are merged under the largest one's name.

    Args:
        audit: its class, with a preset of each name.
        most: the largest preset.
        given: options that the user set, which win over every preset.

    Raises:
        UsageError: a value is out of range.
    """
    presets: dict[object, Preset] = {}
    for name in PRESETS[: PRESETS.index(most) + 1]:
        preset = getattr(audit, name)
        options = settle(audit.Options, {}, {**preset, **given})
        of_subject = {key: preset[key] for key in OF_SUBJECT if key in preset}
        key = (options, *of_subject.items())
        presets.pop(key, None)
        presets[key] = Preset(name, audit(options), **of_subject)
    return tuple(presets.values())


def judged_by(policy: Policy | None) -> Judged:
    """Returns whether a policy's rules judge a metric; the default policy's limits without one."""
    rules = policy.written_out().rules if policy else ()

    def judged(audit: Audit[Any], metric: Metric) -> bool:
        if policy is None:
            return metric.warning is not None or metric.error is not None
        name = f"{audit.reports_as()}.{metric.id}"
        return any(matches(name, rule.metric) for rule in rules)

    return judged


def survey(
    settings: BudgetSettings,
    config: Path | None,
    presets: Presets,
    seconds: float,
    left: Left | None,
    *,
    share: float | None = None,
    others: Sequence[Audit[Any]] = (),
    policy: Policy | None = None,
    single: bool = False,
) -> Report:
    """Run a plan of audits and show the report, at an interrupt too.

    The unfinished report is kept in the first JSON file, and the same command takes it up.

    Args:
        settings: of the command.
        config: the configuration file that it read, if any.
        presets: of each audit.
        seconds: that all audits are made for.
        left: clock of the seconds until the deadline; None without one.
        share: largest share of the work for one audit.
        others: audits that are not run, as they read no captured update.
        policy: what judges the report.
        single: whether one audit is run by its own command.

    Raises:
        AuditError: the report cannot stand as an audit that was done.
    """
    file = next((path for path in settings.files if path.suffix == ".json"), None)
    file = None if settings.redact else file
    facts = {**asked(config), "budget": settings.seconds}
    facts |= unjudged(presets[0][-1].audit, policy) if single else {}

    def keep(report: Report) -> None:
        if file is not None:
            report.provenance.update(facts)
            with suppress(UsageError):  # at the end it is written again, or elsewhere
                write_atomically(file, report.to_json())

    with opened(settings) as subject:
        from gradaudit.run.survey import Survey

        done = Survey(
            subject, presets, seconds, judged_by(policy), left, share=share, others=others
        )
        done.go(watcher(settings.quiet), _unfinished(file), keep if file else None)
    report = done.report(facts, resumable=bool(done.stopped and file))
    if done.stopped:
        report = presentable(report, settings, subject)
        unwritten = write(report, settings, policy)
        show(report, settings, policy)
        if file is not None and hasattr(done.stopped, "words"):
            done.stopped.words += f"; {unwritten or f'the same command goes on from {file.name}'}"
        raise done.stopped
    finish(report, settings, subject, policy)
    return report


def _unfinished(file: Path | None) -> Report | None:
    """Reads the report of an interrupted scan; None where there is none."""
    if file is None or not file.exists():
        return None
    try:
        report = Report.from_file(file)
    except GradauditError:
        return None
    return report if report.interrupted else None


def print_plan(
    settings: BudgetSettings,
    presets: Presets,
    seconds: float,
    *,
    share: float | None = None,
    policy: Policy | None = None,
) -> None:
    """Open the subject, and print the plan's audits, presets, records, and one estimate of all.

    Raises:
        AuditError: the model cannot be run on the records.
    """
    with opened(settings) as subject:
        from gradaudit.run.survey import Survey, expect_runnable

        expect_runnable(subject)
        judged = judged_by(policy)
        plan = Survey(subject, presets, seconds, judged, share=share).plan
        lines = [plan_line(each, subject) for each in plan]
    typer.echo(f"{subject.target.description} on {len(subject.records)} records:")
    for line in lines:
        typer.echo(f"  {line}")
    whole = sum(each.work for each in plan if each.fits)
    typer.echo(f"  together: {about(whole, settings.jobs)}")


def about(work: float, jobs: int = 1) -> str:
    """Formats the time of some operations on usual cores."""
    from gradaudit.run.scan_plan import seconds_of_work

    seconds = seconds_of_work(work, jobs)
    return f"{duration(seconds)} on {jobs} usual core{'s' * (jobs > 1)}"


def plan_line(each: PlannedAudit, subject: Subject) -> str:
    """Returns a line with the audit, its preset and its records, or why it has nothing to do."""
    name, preset = each.audit.name, each.preset
    if not each.fits:
        return f"{name}: too much work for this preset"
    if not each.work:
        return f"{name}: nothing to do{_why_idle(each.audit, subject)}"
    samples = subject.samples or preset.samples
    records = f", {samples} records" if samples else ""
    sampled = preset.layers is not None and preset.layers < len(subject.layers)
    layers = f", a sample of {preset.layers} layers" if sampled else ""
    return f"{name}: {preset.name}{records}{layers}"


def _why_idle(audit: Audit[Any], subject: Subject) -> str:
    """Says why an audit does not apply: no attribute is named, or the audit's own reason."""
    names = list(subject.records.attributes)
    try:
        audit.gradients(subject)
        named = replace(subject, attributes=(*names[:1],))
        if names and not subject.attributes and audit.gradients(named):
            return f": name an attribute with -a; this data has {listed(names)}"
    except NotApplicable as why:
        return f": {printable(str(why), limit=None)}"
    except GradauditError as error:
        return f": {printable(str(error), limit=None)}"
    return ""
