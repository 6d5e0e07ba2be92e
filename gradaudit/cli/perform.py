"""Steps of the commands that measure: open the subject, show the report, check it is complete."""

from __future__ import annotations

import gc
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from pydantic import BaseModel, JsonValue

from gradaudit.audits import Audit
from gradaudit.audits.gathering import incomplete
from gradaudit.cli.reports import writers
from gradaudit.config import BudgetSettings, OutputSettings, SubjectSettings
from gradaudit.core.files import clear_temporaries
from gradaudit.core.parts import without_garbage_collection
from gradaudit.core.specs import files_in_spec
from gradaudit.core.text import printable
from gradaudit.errors import AuditError, UsageError
from gradaudit.evidence.redaction import redact
from gradaudit.formats import format_named
from gradaudit.judging import Policy, fails, verdict, with_findings
from gradaudit.judging.verdict import NO_RULE, UNJUDGED, evidence_lacking
from gradaudit.report import Report

if TYPE_CHECKING:
    from gradaudit.subject import Subject


GATE_FAILED = 1
STDOUT, STDERR = 1, 2
RUN_FILE = "run.json"
"""File that ``train`` writes beside its checkpoints; audits read the accuracy from it."""


def expect_writable(settings: OutputSettings, *asked: object) -> None:
    """Check before the work begins that the report's files can be written.

    Args:
        settings: with the files to write.
        asked: all that the command was asked, which names the files that it reads.

    Raises:
        UsageError: no format has an output file's suffix, the folder is missing or not writable,
            a folder has the file's name, or the file is one of those that are read.
    """
    for path, _ in writers(settings.files, list(files_read(asked))):
        folder = path.absolute().parent
        if not folder.is_dir():
            raise UsageError(f"{path}: the folder does not exist; make it first")
        if not os.access(folder, os.W_OK):
            raise UsageError(f"{path}: the folder is not writable; name another")
        if path.is_dir():
            raise UsageError(f"{path}: is a folder; name a file")


_INDICES = ("*.index.json", "state.json", "dataset_info.json", "dataset_dict.json")
"""Index files that are read beside the tensors of shards or the tables of a saved data set."""


def _read_in(folder: Path) -> Iterator[Path]:
    for name in _INDICES:
        yield from folder.glob(name)


def files_read(asked: object) -> Iterator[Path]:
    """Returns every existing file that settings name, except those to be written."""
    if isinstance(asked, Path):
        yield from (asked, asked.parent / RUN_FILE, *_read_in(asked))
    elif isinstance(asked, str):
        for path in files_in_spec(asked):
            yield from (path, *_read_in(path))
    elif isinstance(asked, BaseModel):
        yield from files_read(dict(asked))
    elif isinstance(asked, Mapping):
        yield from files_read([value for key, value in asked.items() if key != "output"])
    elif isinstance(asked, Iterable):
        for part in asked:
            yield from files_read(part)


@contextmanager
def opened(settings: SubjectSettings) -> Iterator[Subject]:
    """Yields the subject of these settings; user code prints to standard error meanwhile."""
    with stdout_for_the_report():
        new = "torch" not in sys.modules
        with without_garbage_collection():
            from gradaudit.run.opening import load
        if new:
            gc.freeze()  # modules stay, so that none of their objects need be looked at again
        yield load(settings)


def asked(config: Path | None = None) -> dict[str, JsonValue]:
    """Returns the command line and the configuration file, for the report's provenance."""
    command = shlex.join(["gradaudit", *sys.argv[1:]])
    return {"command": command} if config is None else {"command": command, "config": str(config)}


@contextmanager
def stdout_for_the_report() -> Iterator[None]:
    """Redirect prints of user code and its child processes to standard error."""
    sys.stdout.flush()
    kept = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, STDOUT)
        os.close(kept)


def write(report: Report, settings: OutputSettings, policy: Policy | None = None) -> str:
    """Write the report's files, and return why some could not be written; empty where all were.

    The report is then kept as JSON in a private temporary file, whose name is in the reason.
    """
    faults = []
    for path, format_ in writers(settings.files):
        clear_temporaries(path)
        try:
            format_.write(report, path, policy)
        except UsageError as error:
            faults.append(str(error))
    return "; ".join([*faults, _kept(report)]) if faults else ""


def _kept(report: Report) -> str:
    """Save a report as a private temporary file, and say where it is."""
    try:
        handle, name = tempfile.mkstemp(prefix="gradaudit-", suffix=".json")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(report.to_json())
    except OSError as error:
        return f"nor is there a temporary file for the report: {error.strerror or error}"
    return f"the report was written to {name}"


def show(report: Report, settings: OutputSettings, policy: Policy | None = None) -> None:
    """Write the report to standard output.

    A single audit that measured nothing has no table: the error says why in one line.
    """
    single = len(report.options) == 1 and settings.shape == "table"
    if not single or any(row.status == "measured" for row in report.rows):
        format_named(settings.shape, every=settings.all).show(report, policy)


def finish(
    report: Report,
    settings: BudgetSettings,
    subject: Subject,
    policy: Policy | None = None,
) -> None:
    """Show the report, redacted where asked, and exit with the status that it calls for.

    Raises:
        AuditError: it cannot stand as an audit that was done, or leaves a claim untested.
    """
    report = presentable(report, settings, subject)
    unwritten = write(report, settings, policy)
    show(report, settings, policy)
    conclude(report, settings, policy, unwritten)


def conclude(
    report: Report, settings: BudgetSettings, policy: Policy | None = None, unwritten: str = ""
) -> None:
    """Exit with 1 where a shown report is FAILED or lacks evidence, but not with ``--exit-zero``.

    An audit that broke, and a file that was not written, are named and hide nothing that others
    have shown.

    Raises:
        AuditError: the report cannot stand as an audit that was done, leaves a claim untested, or
            was not written to its files.
    """
    judged = with_findings(report, policy)
    failed = fails(judged) if policy else verdict(judged) == "failed"
    faults = "; ".join(filter(None, (incomplete(report) or claim_untested(report), unwritten)))
    if faults and (settings.exit_zero or not failed):
        raise AuditError(faults)
    lacking = evidence_lacking(judged)
    if policy is None and not report.provenance.get("attributes"):
        lacking = [each for each in lacking if each != NO_RULE]  # nothing was asked of a policy
    if (failed or lacking) and not settings.exit_zero:
        for line in filter(None, (faults, claim_exceeded(report), *lacking)):
            typer.echo(f"gradaudit: {printable(line, limit=2000)}", err=True)
        if policy:
            typer.echo(f"gradaudit: the report does not pass {settings.policy}", err=True)
        raise typer.Exit(GATE_FAILED)


def unjudged(audit: Audit[Any], policy: Policy | None) -> dict[str, JsonValue]:
    """Return provenance by which a single audit has no verdict: no policy and no claim is given."""
    claimed = getattr(audit.options, "claimed_epsilon", None) is not None
    return {} if policy or claimed else {UNJUDGED: True}


def presentable(report: Report, settings: OutputSettings, subject: Subject) -> Report:
    """Returns the report, with private words replaced where ``--redact`` asks for it."""
    if not settings.redact:
        return report
    return redact(report, {column.name: column.values for column in subject.records.features})


def require_complete(report: Report) -> None:
    """Raise an error where the report lacks what a finished audit must have.

    Raises:
        AuditError: nothing was measured, or an audit broke.
    """
    if reason := incomplete(report):
        raise AuditError(reason)


def claim_exceeded(report: Report) -> str | None:
    """Returns one line of evidence against the claimed epsilon; None where there is none.

    Evidence is the headline bound of ``dp-audit.epsilon_lower``, which is valid at its confidence,
    and where the law is known the exact epsilon of the pair, and that of the mechanism.
    """
    rows = report.select("dp-audit.epsilon_lower", variant={})
    claimed = next((row.details["claimed"] for row in rows if "claimed" in row.details), None)
    for row in rows:
        if row.details.get("exceeded") is True:
            bound = "is infinite" if row.infinite else f"is at least {row.value:.4g}"
            level = f" (confidence {row.confidence:g})" if row.confidence else ""
            return f"dp-audit: epsilon {bound}{level}, claimed was {claimed}"
    for metric, whose in (("pair", "of the pair that was played"), ("theory", "by the law")):
        for row in report.select(f"dp-audit.epsilon_{metric}", variant={}):
            if isinstance(claimed, int | float) and (row.number or 0.0) > claimed:
                return f"dp-audit: epsilon {whose} is {row.number:.4g}, claimed was {claimed}"
    return None


def claim_untested(report: Report) -> str | None:
    """Returns why nothing bounds the claimed epsilon, in one line; None where something does."""
    for row in report.select("dp-audit.epsilon_lower", variant={}):
        if row.status != "measured" and "claimed" in row.details:
            return f"dp-audit: the claim was not tested: {row.reason}"
    return None


def time_left(seconds: float) -> Callable[[], float]:
    """Returns a clock of the seconds that are left from now on."""
    end = time.monotonic() + seconds
    return lambda: end - time.monotonic()
