"""``gradaudit gate``: pass or fail by limits, without torch, model or data."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from gradaudit.cli.reports import (
    OptionalShape,
    Output,
    Quiet,
    ReportFile,
    Verbose,
    remark,
    writers,
)
from gradaudit.config import shape_of
from gradaudit.formats import format_named
from gradaudit.formats.base import Stdout
from gradaudit.formats.page import Page
from gradaudit.formats.results import (
    GRAVEST,
    Result,
    gravest_of,
    policy_name,
    results,
    told_of,
)
from gradaudit.judging import (
    default_policy_yaml,
    differences,
    passed,
    read_policy,
    refuse_another_model,
    says,
)
from gradaudit.judging import gate as judge
from gradaudit.report import Report
from gradaudit.text import variant_text

FAILED = 1
STYLES = {
    "error": "bold red",
    "warning": "yellow",
    "unclear": "yellow",
    "ignored": "dim",
    "known": "dim",
}


def _print_default_policy(wanted: bool) -> None:
    if wanted:
        typer.echo(default_policy_yaml(), nl=False)
        raise typer.Exit


def gate(
    report: ReportFile,
    policy: Annotated[
        Path | None, typer.Option("--policy", help="Limits as YAML; the default policy without it.")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", help="An earlier report: fail only what is new or worse."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail what is unclear too, whatever the policy says.")
    ] = False,
    output: Output = None,
    shape: OptionalShape = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    print_default_policy: Annotated[
        bool,
        typer.Option(
            "--print-default-policy",
            help="Print the limits used without --policy, and exit.",
            is_eager=True,
            callback=_print_default_policy,
        ),
    ] = False,
) -> None:
    """Pass or fail by limits per layer, without torch, model or data.

    gradaudit gate report.json
    gradaudit gate report.json --policy policy.yaml --strict -o judged.html

    Exits with 0 where the report passes and with 1 where a rule of level `error` fails: a value
    beyond its limit, and its whole interval with it, or a measurement that is missing or failed.
    Where the limit lies inside the interval it is unclear, which fails with --strict or as the
    policy says. -o writes a copy of the report with the findings.
    """
    files = writers(output, (report, policy, baseline))
    audited = Report.from_file(report)
    rules = read_policy(policy) if policy else None
    earlier = Report.from_file(baseline) if baseline else None
    if earlier is not None:
        refuse_another_model(audited, earlier)
        for note in differences(audited, earlier):
            remark(f"{baseline} {note}", quiet)
    judged = judge(audited, rules, baseline=earlier, strict=strict)
    for path, format_ in files:
        format_.write(judged, path)
    if (chosen := shape_of(shape, output)) == "table":
        print_verdict(judged, Stdout())
    else:
        format_named(chosen).show(judged)
    if not passed(judged):
        raise typer.Exit(FAILED)


def print_verdict(judged: Report, console: Console) -> None:
    """Print a line for every row that is not within its limits, and the verdict last."""
    page = Page(console)
    for result in sorted(results(judged), key=lambda result: GRAVEST.index(result.says)):
        page.print([_line(page, result)])
    style = "bold green" if passed(judged) else "bold red"
    page.print(page.prose(verdict(judged), style=style))


def verdict(judged: Report) -> str:
    """The gate's verdict in one sentence, with the counts of rows behind it and the policy."""
    counts: Counter[str] = Counter(says(gravest_of(findings)) for findings in told_of(judged))
    words = {
        "error": "failed",
        "warning": "warned of",
        "unclear": "unclear",
        "passed": "passed",
        "not-applicable": "not applicable",
        "known": "known from the baseline",
        "ignored": "ignored",
    }
    tally = ", ".join(f"{counts[key]} {word}" for key, word in words.items() if counts[key])
    end = "passed" if passed(judged) else "failed"
    return f"gate {end}: {tally or 'nothing was judged'}, by {policy_name(judged)}"


def _line(page: Page, result: Result) -> Text:
    """``error    conv1 leak.bits (round=2) 3.10 exceeds the max of 2 (rule 1)``."""
    finding = result.finding
    variant = f"({variant_text(finding.variant)})" if finding.variant else ""
    parts = (finding.layer, finding.metric, variant, finding.message, f"(rule {finding.rule})")
    sentence = " ".join(filter(None, parts)) if finding.rule else finding.message
    left = "".join(f"; that of rule {unclear.rule} is unclear" for unclear in result.open)
    line = page.text(f"{result.says:<8} {sentence}{left}")
    line.stylize(STYLES[result.says], 0, len(result.says))
    return line
