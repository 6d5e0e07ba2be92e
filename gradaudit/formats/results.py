"""Turns a policy's findings into one result a row, for formats that list results."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from gradaudit.core.files import read_file
from gradaudit.core.text import printable, variant_text
from gradaudit.errors import UsageError
from gradaudit.judging.risk import BEYOND, OPEN, why
from gradaudit.measurement import dict_of, text_of
from gradaudit.report import Finding, Report
from gradaudit.view.faults import faults_of
from gradaudit.view.model import view
from gradaudit.view.verdict_sentence import policy_of

MAX_SOURCE = 1 << 20
NOTHING_MEASURED = "report.incomplete"
GRAVEST = ("error", "warning", "unclear", "known", "ignored", "passed", "not-applicable")


@dataclass(frozen=True)
class Result:
    """A row that is not within all of its limits.

    Attributes:
        finding: the gravest that rules say of it.
        open: level of a graver rule that neither shows nor excludes a value beyond its limit.
    """

    finding: Finding
    open: Sequence[Finding] = ()

    @property
    def says(self) -> str:
        """``error``, ``warning``, ``unclear``, ``known`` or ``ignored``."""
        return self.finding.says

    @property
    def rule(self) -> str:
        """The metric, or a name in its place where a report holds nothing to judge."""
        return rule_of(self.finding)

    @property
    def sentence(self) -> str:
        """The result in one sentence: the layer, the value, its limit, and the meaning."""
        finding = self.finding
        where = f"Layer {finding.layer}" if finding.layer is not None else "The whole model"
        variant = f" ({variant_text(finding.variant)})" if finding.variant else ""
        stands = [finding.message, *(unclear.message for unclear in self.open)]
        meaning = why(finding.metric) if finding.outcome in BEYOND else ""
        named = "" if not finding.rule else f"{where}: {finding.metric}{variant} "
        claim = f"{named}{'; and '.join(stands)}."
        return printable(f"{claim} {meaning[:1].upper()}{meaning[1:]}".strip(), limit=None)


def rule_of(finding: Finding) -> str:
    """Returns the metric that a finding is about, as harmless text."""
    return NOTHING_MEASURED if finding.rule == 0 else printable(finding.metric, limit=None)


def results(judged: Report) -> Iterator[Result]:
    """Returns a result for each row that a rule finds beyond its limit or leaves undecided."""
    for findings in by_row(judged):
        gravest = gravest_of(findings)
        if gravest.outcome in BEYOND | OPEN:
            errors = [x for x in findings if x.level == "error" and x.says == "unclear"]
            yield Result(gravest, errors if gravest.level == "warning" else ())


def by_finding(judged: Report) -> list[list[Result]]:
    """Groups results by metric and level, the gravest first, each with its worst row first."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results(judged):
        groups.setdefault((result.rule, result.says), []).append(result)
    rows = judged.by_key()

    def badness(result: Result) -> float:
        row = rows.get(result.finding.key)
        value = None if row is None else row.number
        return 0.0 if value is None else value if result.finding.max is not None else -value

    ranked = sorted(groups.values(), key=lambda group: GRAVEST.index(group[0].says))
    return [sorted(group, key=badness, reverse=True) for group in ranked]


def asked(judged: Report) -> list[Finding]:
    """Return the findings without rows that do not apply and that only a default rule is about."""
    own = dict_of(judged.provenance.get("policy")).get("own_rules", 0)
    own = own if isinstance(own, int) else 0
    return [x for x in judged.findings if x.outcome != "not-applicable" or x.rule <= own]


def by_row(judged: Report) -> Iterator[Sequence[Finding]]:
    """Groups findings by row; a finding about missing rows is a group of its own."""
    rows: dict[object, list[Finding]] = {}
    for place, finding in enumerate(asked(judged)):
        rows.setdefault(place if finding.about_missing_rows else finding.key, []).append(finding)
    yield from rows.values()


def gravest_of(found: Sequence[Finding]) -> Finding:
    """Returns the gravest findings of one row; an error hides its own warning."""
    return min(found, key=lambda each: GRAVEST.index(each.says))


def summary(judged: Report) -> str:
    """States the verdict in one sentence: the adversary, the policy and the worst finding."""
    return printable(view(judged).verdict.sentence, limit=None)


def policy_name(judged: Report) -> str:
    """Returns the name of the policy that judged the report, where the report has it."""
    return printable(policy_of(judged)[0])


def line_of(report: Report) -> int:
    """Returns the line on which the model's factory begins in its file; 1 where it is unknown."""
    named = re.match(r"(.+\.py):([^?]+)", report.target.model)
    if named is None:
        return 1
    try:
        source = read_file(Path(named[1]), MAX_SOURCE).decode("utf-8", "replace")
    except UsageError:
        return 1
    name = re.escape(named[2])
    found = re.search(rf"^(?:(?:async )?def |class )?{name}\b(?=\s*[\[(:=])", source, re.MULTILINE)
    return source.count("\n", 0, found.start()) + 1 if found else 1


def artifact(report: Report) -> str | None:
    """Returns the file to look into: the model's code, else the configuration or the checkpoint.

    Relative to the repository that holds the working directory, or else to that directory, where
    it lies in it; None where the model is no file's.
    """
    config = report.provenance.get("config")
    checkpoints = [checkpoint.file for checkpoint in report.target.checkpoints]
    source = re.match(r"(.+\.py):", report.target.model)
    named = [source[1] if source else None, config, *checkpoints[-1:], *_job_files(report)]
    model = next((name for name in named if isinstance(name, str) and name), None)
    if model is None:
        return None
    path, root = Path.cwd() / model, repository()
    known = PurePath(model).is_absolute() or path.exists()
    return str(path.relative_to(root)) if known and path.is_relative_to(root) else model


def _job_files(report: Report) -> Iterator[str]:
    """List a job's files: those of its faults, the gravest first, then its manifest."""
    yield from (fault.path for fault in faults_of(report))
    if folder := text_of(dict_of(report.options.get("job")).get("folder")):
        flower = report.target.model.startswith("flower:")
        found = Path(folder).glob("pyproject.toml" if flower else "meta.*")
        yield from sorted(map(str, found))


def repository() -> Path:
    """Returns the root of the repository around the working directory, or else that directory."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
