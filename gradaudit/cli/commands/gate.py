"""``gradaudit gate`` judges a report by limits, without torch, model or data."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from gradaudit.cli.reports import OptionalShape, Output, Quiet, Verbose, remark, writers
from gradaudit.core.files import FOUND
from gradaudit.core.text import variant_text
from gradaudit.errors import UsageError
from gradaudit.formats import format_named
from gradaudit.formats.base import Stdout
from gradaudit.formats.page import OUTCOMES, Page
from gradaudit.formats.results import (
    GRAVEST,
    Result,
    by_row,
    gravest_of,
    policy_name,
    results,
    summary,
)
from gradaudit.judging import (
    Word,
    default_policy_yaml,
    fails,
    known_rows,
    notes,
    passed,
    read_policy,
    refuse_another_model,
    rule_name,
)
from gradaudit.judging import gate as judge
from gradaudit.judging import verdict as word
from gradaudit.presentation import shape_of
from gradaudit.report import Report

FAILED = 1
_ORDER: tuple[Word, ...] = ("failed", "undecided", "measured", "passed")
_OF_SEVERAL = ("table", "github")
"""Formats in which several reports can follow each other."""
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
    reports: Annotated[
        list[Path],
        typer.Argument(
            metavar="REPORT...",
            help="JSON reports, as `gradaudit scan -o report.json` writes; - is standard input.",
        ),
    ],
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            help=f"YAML file of the limits (without it that of {FOUND}, else the default policy).",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline",
            help="Earlier JSON report; only rows that are new or worse than there fail.",
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit with 1 where the verdict is UNDECIDED, whatever the policy says."
        ),
    ] = False,
    fail_on: Annotated[
        Literal["error", "warning"],
        typer.Option("--fail-on", help="Level of the rules that fail a report."),
    ] = "error",
    output: Output = None,
    shape: OptionalShape = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    print_default_policy: Annotated[
        bool,
        typer.Option(
            "--print-default-policy",
            help="Print the limits that hold without --policy, and exit.",
            is_eager=True,
            callback=_print_default_policy,
        ),
    ] = False,
) -> None:
    """Judge reports by limits per layer, without torch, model or data.

    gradaudit gate report.json --policy policy.yaml --strict -o judged.html
    gradaudit gate old.json new.json --policy policy.yaml

    The verdict is FAILED where a value lies beyond the limit of a rule of level `error`, with its
    whole interval; PASSED where every row that such a rule judges lies within its limit; and else
    UNDECIDED, with the questions that are open and what would settle each.

    Exits with 1 where the report FAILED (with `--fail-on warning` by a rule of either level), and
    where it is UNDECIDED for want of a measurement that
    a rule of level `error` demands, for want of any evidence about a named attribute or attacks,
    by a policy that says `unclear: fail`, or with --strict; else with 0. -o writes a copy of the
    report with the findings. Of several reports, each has a line with its verdict, the gravest
    first, and one that fails is enough for 1.
    """
    policy = policy or _configured_policy(quiet)
    files = writers(output, (*reports, policy, baseline))
    several, chosen = len(reports) > 1, shape_of(shape, output)
    if several and (output or chosen not in _OF_SEVERAL):
        raise UsageError(f"{len(reports)} reports: -o and -f {chosen} take one; name one report")
    rules = read_policy(policy) if policy else None
    earlier = Report.from_file(baseline) if baseline else None
    verdicts: list[tuple[Word, str]] = []
    failed = 0
    for name in reports:
        audited = Report.from_file(name)
        if earlier is not None:
            refuse_another_model(audited, earlier)
        judged = judge(audited, rules, baseline=earlier, strict=strict, fail_on=fail_on)
        failed += fails(judged) or (strict and not passed(judged))
        verdicts.append((word(judged), f"{name}: {summary(judged)}"))
        for path, format_ in files:
            format_.write(judged, path)
        if chosen != "table":
            format_named(chosen).show(judged)
        elif not several:
            print_verdict(judged, Stdout())
        else:
            for note in notes(judged):
                remark(f"{name}: {note}", quiet)
    if several and chosen == "table":
        print_verdicts(verdicts, failed, Stdout())
    if failed:
        raise typer.Exit(FAILED)


def _configured_policy(quiet: bool) -> Path | None:
    """Returns the policy that the configuration in the working directory names, and says so."""
    from gradaudit.config import read_file

    if not FOUND.is_file():
        return None
    found: Path | None = read_file(FOUND).get("policy")
    if found is not None:
        remark(f"policy {found} of {FOUND} (--policy wins over it)", quiet)
    return found


def print_verdicts(verdicts: Sequence[tuple[Word, str]], failed: int, console: Console) -> None:
    """Print a line for each report, FAILED first, then how many end the gate with status 1."""
    page = Page(console)
    for outcome, line in sorted(verdicts, key=lambda each: _ORDER.index(each[0])):
        page.print(page.prose(line, rest="  ", style=OUTCOMES[outcome]))
    page.print(page.prose(f"gate: {failed} of {len(verdicts)} reports fail"))


def print_verdict(judged: Report, console: Console) -> None:
    """Print a line for every row beyond its limits, then the counts, and the verdict last."""
    page = Page(console)
    for result in sorted(results(judged), key=lambda result: GRAVEST.index(result.says)):
        page.print([_line(page, result, judged)])
    for note in notes(judged):
        page.print(page.prose(f"note     {note}", rest=" " * 9))
    page.print(page.prose(f"gate: {tally(judged)}"))
    page.print(page.prose(summary(judged), style=OUTCOMES[word(judged)]))


def verdict(judged: Report) -> str:
    """The verdict's word with the policy and the counts of rows behind it."""
    return f"{word(judged).upper()} by {policy_name(judged)}: {tally(judged)}"


def tally(judged: Report) -> str:
    """Counts of rows by outcome: ``2 failed, 1 unclear``."""
    gravest = [gravest_of(findings) for findings in by_row(judged)]
    known = known_rows(judged)
    counts = Counter[str](
        "known" if x.key in known else x.outcome if x.says == "error" else x.says for x in gravest
    )
    words = {
        "failed": "failed",
        "unmeasured": "not measured",
        "warning": "warned of",
        "unclear": "unclear",
        "passed": "passed",
        "not-applicable": "not applicable",
        "known": "known from the baseline",
        "ignored": "ignored",
    }
    return ", ".join(f"{counts[key]} {word}" for key, word in words.items() if counts[key])


def _line(page: Page, result: Result, judged: Report) -> Text:
    """A judged row: ``error    conv1 leak.bits (round=2) 3.10 exceeds the max of 2 (rule 1)``."""
    finding = result.finding
    variant = f"({variant_text(finding.variant)})" if finding.variant else ""
    by = f"({rule_name(finding.rule, judged)})"
    parts = (finding.layer, finding.metric, variant, finding.message, by)
    sentence = " ".join(filter(None, parts)) if finding.rule else finding.message
    unclear = [f"{x.level} ({rule_name(x.rule, judged)})" for x in result.open]
    left = "".join(f"; that of level {x} is unclear" for x in unclear)
    line = page.text(f"{result.says:<8} {sentence}{left}")
    line.stylize(STYLES[result.says], 0, len(result.says))
    return line
