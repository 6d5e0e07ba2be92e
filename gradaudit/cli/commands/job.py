"""``gradaudit job`` audits what leaves the clients of a whole federated job."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from gradaudit.audits.job import Job, JobOptions
from gradaudit.cli.flags import CONFIG, configured, options_of, parameter, with_options
from gradaudit.cli.perform import (
    asked,
    conclude,
    expect_writable,
    show,
    stdout_for_the_report,
    write,
)
from gradaudit.config import (
    BudgetSettings,
    OutputSettings,
    RunSettings,
    SubjectSettings,
    section,
    settle,
)
from gradaudit.core.text import printable
from gradaudit.errors import AuditError, UsageError
from gradaudit.evidence.redaction import redact
from gradaudit.executors.stopping import TimeIsUp, time_limit
from gradaudit.judging import read_policy

_OF_COMMAND = BudgetSettings.model_fields.keys() - SubjectSettings.model_fields
FOLDER = parameter(
    "place",
    Path | None,
    typer.Argument(
        metavar="JOB", help="Folder of an NVFlare job or a Flower app.", show_default=False
    ),
)


def _job(**flags: Any) -> None:
    """Audit a federated job: every filter and mod, and its epsilon.

    gradaudit job JOB
    gradaudit job JOB --site privacy.json --rounds 50 -o job.json

    JOB is an NVFlare job (meta.json) or a Flower app (pyproject.toml). Its filters and mods are
    code that is run, on simulated updates; its training is not.
    """
    from gradaudit.audits.job.measure import load, report_of

    place = flags.pop("place")
    flags["folder"] = place or flags["folder"]
    config, file = configured(flags)
    output = settle(BudgetSettings, {n: flags.get(n) for n in _OF_COMMAND}, file)
    options = settle(JobOptions, flags, section(file, Job.name))
    if options.folder is None:
        raise UsageError("name the folder of a job: gradaudit job JOB")
    expect_writable(output, config, options)
    policy = read_policy(output.policy) if output.policy else None
    if output.dry_run:
        with stdout_for_the_report():
            chains = load(options.folder, options).chains
        typer.echo(
            f"these {len(chains)} chains would be run on simulated updates, in some seconds:"
        )
        for chain in chains:
            links = " -> ".join([*(link.name for link in chain.links), "server"])
            typer.echo(printable(f"  {chain.task}: training -> {links}", limit=None))
        return
    with stdout_for_the_report(), _ended_in_time(output.seconds):
        report = report_of(options.folder, options, asked(config))
    report = redact(report) if output.redact else report
    unwritten = write(report, output, policy)
    show(report, output, policy)
    conclude(report, output, policy, unwritten)


@contextmanager
def _ended_in_time(seconds: float | None) -> Iterator[None]:
    """Ends the audit of a job when its time is up, as half of it says nothing of the job.

    Raises:
        AuditError: the time is up.
    """
    try:
        with time_limit(seconds):
            yield
    except TimeIsUp:
        message = "the time was up before the job was audited; give a longer --budget"
        raise AuditError(message) from None


job = with_options(
    _job,
    [
        FOLDER,
        *options_of(JobOptions, "Options"),
        *options_of(BudgetSettings, "Options", without=RunSettings.model_fields),
        CONFIG,
        *options_of(OutputSettings, "Output"),
    ],
)
