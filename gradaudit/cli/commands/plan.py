"""``gradaudit plan`` finds what to protect so that a policy passes, at a low cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from gradaudit.cli.commands.gate import verdict
from gradaudit.cli.commands.scan import choose_audits, of_sample_unless_named
from gradaudit.cli.flags import CONFIG, configured, options_of, with_options
from gradaudit.cli.perform import (
    GATE_FAILED,
    asked,
    expect_writable,
    opened,
    presentable,
    time_left,
    write,
)
from gradaudit.cli.reports import remark
from gradaudit.cli.scanning import print_plan
from gradaudit.cli.terminal import watcher
from gradaudit.config import (
    OutputSettings,
    PlanSettings,
    RunSettings,
    ScanSettings,
    SubjectSettings,
    settle,
)
from gradaudit.core.text import printable
from gradaudit.errors import AuditError, UsageError
from gradaudit.formats import format_named
from gradaudit.formats.base import Stdout
from gradaudit.formats.page import Column, Page, grid
from gradaudit.judging import Policy, read_policy
from gradaudit.report import Report

if TYPE_CHECKING:
    from gradaudit.audits.presets import Preset
    from gradaudit.protection.protection_plan import Plan
    from gradaudit.subject import Subject


def _plan(**flags: Any) -> None:
    """Find hidden layers and noise with which a policy passes.

    gradaudit plan --policy policy.yaml --quick
    gradaudit plan --policy policy.yaml -m FILE.py:factory -c weights.safetensors -d DATA

    Without a model and data it plans for the bundled sample model. Half of the records serve the
    search; the plan is then measured on others, and judged there as the gate does. Exits with 1
    where no plan passes, and shows the nearest.
    """
    config, file = configured(flags)
    settings = settle(PlanSettings, flags, file)
    left = time_left(settings.made_for)
    if settings.policy is None:
        raise UsageError(
            "--policy is needed: name a file of rules (gradaudit gate --print-default-policy "
            "writes one to begin with)"
        )
    policy = read_policy(settings.policy).written_out()
    settings = of_sample_unless_named(settings)
    ladders = choose_audits(settings, file)
    expect_writable(settings, config, settings)
    from gradaudit.protection.asking import needed
    from gradaudit.protection.protection_plan import plan_report

    if settings.dry_run:
        policy = within_reach(policy, ladders, quiet=settings.quiet)
        typer.echo("each trial of a plan runs these audits, as exactly as time allows:")
        print_plan(settings, needed(policy, ladders), settings.made_for)
        return
    with opened(settings) as subject:
        policy = within_reach(policy, ladders, quiet=settings.quiet)
        plan = found(subject, settings, policy, ladders, left)
        report = plan_report(plan, subject.target.model, settings.cost, asked(config))
    report = presentable(report, settings, subject)
    unwritten = write(report, settings, policy)
    _show(plan, report, settings)
    failed = plan.failed and not settings.exit_zero
    if unwritten and not failed:
        raise AuditError(unwritten)
    if failed:
        for line in filter(None, (unwritten, _why_none(plan, settings))):
            typer.echo(f"gradaudit: {printable(line, limit=2000)}", err=True)
        raise typer.Exit(GATE_FAILED)


def within_reach(policy: Policy, ladders: Sequence[Sequence[Preset]], *, quiet: bool) -> Policy:
    """Returns the policy without rules that no plan can follow, and prints a remark on each."""
    from gradaudit.protection.asking import out_of_reach

    aside = out_of_reach(policy, ladders)
    for rule in aside:
        remark(
            f"{policy.name}: {rule.metric} is left aside: it is measured of a whole job, by "
            "`gradaudit job`, and not of a model and its records",
            quiet,
        )
    return policy.model_copy(update={"rules": tuple(r for r in policy.rules if r not in aside)})


def found(
    subject: Subject,
    settings: PlanSettings,
    policy: Policy,
    ladders: Sequence[Sequence[Preset]],
    left: Callable[[], float],
) -> Plan:
    """Returns the plan for these settings."""
    from gradaudit.protection.asking import fitting, needed
    from gradaudit.protection.planner import Planner

    return Planner(
        subject,
        fitting(needed(policy, ladders), subject, settings.made_for),
        policy,
        cost=settings.cost,
        means=settings.means,
        rounds=settings.rounds,
        strict=settings.strict,
        left=left,
        progress=watcher(settings.quiet),
    ).plan()


def _why_none(plan: Plan, settings: PlanSettings) -> str:
    """Say where the search ended without a plan that passes."""
    if plan.out_of_time:
        return f"no plan was found in time that passes {settings.policy} (a longer --budget may)"
    return f"no plan was found that shares a layer and passes {settings.policy}"


plan = with_options(
    _plan,
    [
        *options_of(PlanSettings, "Plan", without=ScanSettings.model_fields),
        *options_of(ScanSettings, "Plan", without=RunSettings.model_fields),
        *options_of(SubjectSettings, "Subject"),
        CONFIG,
        *options_of(OutputSettings, "Output"),
    ],
)


def _show(plan: Plan, report: Report, settings: PlanSettings) -> None:
    if settings.shape != "table":
        format_named(settings.shape, every=settings.all).show(report)
        return
    page = Page(Stdout())
    page.print(_table(plan, page))
    for paragraph in _summary(plan, report, settings):
        page.print([Text()])
        page.print(page.prose(paragraph))


def _table(plan: Plan, page: Page) -> Iterator[Text]:
    protection, layers = plan.protection, plan.protection.layers
    open_to_all = f"noise {protection.noise:g}" if protection.noise else "shared"
    done = ["hidden" if n in protection.hidden else open_to_all for n in layers]
    lost = [plan.prices[layer] * plan.updates.lost(layer, protection) for layer in layers]
    columns = [
        Column("protection", [page.text(cell) for cell in done]),
        Column("cost of\nhiding", [page.text(f"{plan.prices[n]:.1%}") for n in layers], True),
        Column("cost", [page.text(f"{cell:.1%}") for cell in lost], True),
    ]
    yield from grid(
        [Column("layer", [page.text(n) for n in layers])], columns, page.width, page.rule
    )


def _summary(plan: Plan, report: Report, settings: PlanSettings) -> Iterator[str]:
    """Lines with the plan's cost, the strategies it is compared with, and options to paste."""
    naive = ", ".join(f"{name} {cost:.1%}" for name, cost in plan.naive.items())
    beside = f"; simple strategies: {naive}" if naive else ""
    yield f"cost {plan.cost:.1%} of {settings.cost}{beside}"
    summary = report.provenance["protection"]
    assert isinstance(summary, dict)  # as it was made
    if summary["options"]:
        yield f"options: {summary['options']}"
    if plan.failed:
        yield from (f"still beyond: {words}" for words in plan.failed)
        yield f"FAILED: no plan passes {settings.policy}"
        return
    yield f"measured again on fresh records, round {plan.rounds}: {verdict(plan.judged)}"
