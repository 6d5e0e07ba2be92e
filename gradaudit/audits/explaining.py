"""Explanations of audits, metrics, other parts, faults of jobs, errors and words of reports."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic.fields import FieldInfo

import gradaudit.errors as errors
from gradaudit.audits import Audit, Metric, audits, named
from gradaudit.core.parts import offered, part_named, summaries
from gradaudit.core.specs import suggest
from gradaudit.core.text import number
from gradaudit.errors import GradauditError, UsageError

Entry = tuple[str, str]
"""A term and its explanation."""
PARTS = {
    "reconstructions": "gradaudit.attacks.reconstruction",
    "defenses": "gradaudit.defenses",
    "data": "gradaudit.data",
    "families": "gradaudit.families",
    "mechanisms": "gradaudit.audits.dp_audit.mechanisms",
    "algorithms": "gradaudit.federation.algorithms",
    "losses": "gradaudit.models.losses",
    "formats": "gradaudit.formats",
}
"""Packages of the parts that are listed without being imported, by their kind in ``list``."""


@dataclass(frozen=True)
class Section:
    """Paragraphs and a list under a heading; names are in backticks, as in docstrings."""

    heading: str
    paragraphs: Sequence[str] = ()
    entries: Sequence[Entry] = ()


@dataclass(frozen=True)
class Explanation:
    """An explanation: its title, its first paragraph, and its sections.

    Attributes:
        address: where the paper can be read; empty where none is declared.
    """

    title: str
    lead: str
    parts: Sequence[Section]
    address: str = ""


def names() -> list[str]:
    """Return all names that can be explained: audits, metrics, other parts, faults, errors."""
    others = [*_parts(), *PARTS, *_faults(), *_errors(), *_glossary()]
    return list(dict.fromkeys([*audits(), *_measuring(), *others]))


def explain(name: str) -> Explanation:
    """Explain an audit, a metric, a part, a fault of a job or an error by its name.

    Metrics are named as in policies, parts and their kinds as by ``list``, faults as in the rows
    of ``job``.
    Where parts of several kinds have the name, the kind before it decides: ``mechanisms dp``.

    Words of reports (AUROC, OPEN, verdict) are found in any case, and the end of a metric's name
    (``psnr``) where one metric alone has it.

    Raises:
        UsageError: there is none.
    """
    spoken = [*audits(), *(alias for audit in audits().values() for alias in audit.aliases)]
    known = {one.replace(" ", "-"): named(one) for one in spoken}
    known |= {one: named(one) for one in (*spoken, *_measuring())}
    if meant := known.get(name):
        return _of_audit(audits()[meant]) if meant in audits() else _of_metric(meant)
    if error := _errors().get(name):
        return _of_error(error)
    others = _parts()
    if kind := others.get(name):
        return _of_part(kind, name.rpartition(" ")[2])
    if package := PARTS.get(name):
        entries = [*summaries(package, "example").items()]
        return Explanation(name, f"Parts of the kind {name}.", [Section("Parts", (), entries)])
    if fault := _faults().get(name):
        return _of_fault(name, fault)
    if word := _glossary().get(name.casefold()):
        return word
    if metric := _nouns().get(name.casefold()):
        return _of_metric(metric)
    if len(ends := [each for each in _measuring() if each.endswith(f".{name}")]) == 1:
        return _of_metric(ends[0])
    every = [*known, *others, *PARTS, *_faults(), *_errors(), *_glossary(), *_nouns()]
    raise UsageError(
        f"explain {name}: no audit, metric, part, fault or error of this name"
        f"{suggest(name, every)}; `gradaudit list` has them"
    )


def _parts() -> dict[str, str]:
    """Returns the kind of every part that is not imported, by its name and by kind and name."""
    kinds: dict[str, str] = {}
    for kind, package in PARTS.items():
        for name in offered(package):
            kinds.setdefault(name, kind)
            kinds[f"{kind} {name}"] = kind
    return kinds


def _errors() -> dict[str, type[GradauditError]]:
    return {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, GradauditError)
    }


@cache
def _glossary() -> Mapping[str, Explanation]:
    """Return the words of reports by each of their spellings, in lower case."""
    table = yaml.safe_load((Path(__file__).parent / "glossary.yaml").read_text(encoding="utf-8"))
    return {
        spelling.casefold(): Explanation(f"{term} (word of reports)", entry["says"], ())
        for term, entry in table.items()
        for spelling in (term, *entry.get("also", ()))
    }


def _nouns() -> dict[str, str]:
    """Return the first metric of each noun that findings and columns print, in lower case."""
    nouns: dict[str, str] = {}
    for audit in audits().values():
        for metric in filter(lambda each: each.noun, audit.metrics):
            nouns.setdefault(metric.noun.casefold(), f"{audit.reports_as()}.{metric.id}")
    return nouns


@cache
def _faults() -> Mapping[str, Mapping[str, str]]:
    """Return the table of a job's faults by their names."""
    table = Path(__file__).parent / "job" / "loading" / "faults.yaml"
    faults: Mapping[str, Mapping[str, str]] = yaml.safe_load(table.read_text(encoding="utf-8"))
    return faults


def _of_fault(name: str, fault: Mapping[str, str]) -> Explanation:
    says, repair = (re.sub(r"\{(\w+)[^}]*\}", r"<\1>", fault[key]) for key in ("says", "repair"))
    level = fault.get("level", "error")
    return Explanation(
        f"{name} (fault of a job, {level})",
        f"{says[:1].upper()}{says[1:]}.",
        [Section("Repair", [f"{repair[:1].upper()}{repair[1:]}."])],
    )


def _of_part(kind: str, name: str) -> Explanation:
    part = part_named(PARTS[kind], name)
    assert part is not None  # it was found under this name
    fields = part.Options.model_fields if hasattr(part, "Options") else {}
    options = [(option, described(option, field)) for option, field in fields.items()]
    also = [other for other in PARTS if other != kind and name in offered(PARTS[other])]
    parts = [
        Section("What it does", _paragraphs(part)),
        Section("Options of its spec", entries=options or list(_fields(part))),
    ]
    if also:
        others = " or ".join(f"`gradaudit explain {other} {name}`" for other in also)
        parts.append(Section("Others of this name", [f"See {others}."]))
    shown = f", as in `{part.example}`" if getattr(part, "example", "") else ""
    summary = str(part.summary).rstrip(".")
    return Explanation(f"{name} ({kind})", f"{summary[:1].upper()}{summary[1:]}{shown}.", parts)


def _of_error(error: type[GradauditError]) -> Explanation:
    paragraphs = _paragraphs(error)
    status = f"A command that ends with it exits with {error.exit_status}."
    return Explanation(error.__name__, paragraphs[0], [Section("More", [*paragraphs[1:], status])])


def _fields(part: type[Any]) -> Iterator[Entry]:
    """Yields the fields that a spec may set, as the docstrings of a class and its bases say."""
    taken_by_a_spec = inspect.signature(part).parameters.keys() - {"source", "target"}
    for base in part.__mro__:
        below = inspect.cleandoc(base.__dict__.get("__doc__") or "").partition("Attributes:\n")[2]
        for names, text in re.findall(r"^    ([\w, ]+): (.*(?:\n     .*)*)", below, re.MULTILINE):
            taken = names.split(", ")[0] in taken_by_a_spec
            if taken and "no option" not in text:
                yield names, " ".join(text.split())


def _paragraphs(part: type[Any]) -> list[str]:
    """Splits a docstring into paragraphs and points, without its list of attributes."""
    text = inspect.cleandoc(part.__doc__ or part.summary).partition("Attributes:\n")[0]
    return [" ".join(paragraph.split()) for paragraph in re.split(r"\n\n|\n(?=- )", text.strip())]


def limits_of(metric: Metric) -> str:
    """Returns the default policy's limit of a metric as a sentence; empty where it has none."""
    beyond = "above" if metric.riskier == "higher" else "below"
    limits = [
        f"{word} {beyond} {number(limit)}"
        for word, limit in (("a warning", metric.warning), ("an error", metric.error))
        if limit is not None
    ]
    because = f": {metric.why}" if metric.why else ""
    return f"By default {' and '.join(limits)}{because}." if limits else ""


def _measuring() -> dict[str, list[tuple[type[Audit[Any]], Metric]]]:
    measuring: dict[str, list[tuple[type[Audit[Any]], Metric]]] = {}
    for audit in audits().values():
        for metric in audit.metrics:
            measuring.setdefault(f"{audit.reports_as()}.{metric.id}", []).append((audit, metric))
    return measuring


def _of_audit(audit: type[Audit[Any]]) -> Explanation:
    shown = [(f"{audit.reports_as()}.{m.id}", _about(m)) for m in audit.metrics]
    options = [
        (f"--{name.replace('_', '-')}", described(name, field))
        for name, field in audit.Options.model_fields.items()
    ]
    parts = (
        _measure(audit),
        Section("Metrics", entries=shown),
        Section("Options", entries=options),
    )
    return Explanation(audit.name, audit.summary, parts, audit.paper)


def _of_metric(name: str) -> Explanation:
    measuring = _measuring()[name]
    audit, metric = measuring[0]
    facts = " ".join([*_facts(metric), limits_of(metric) or "It has no limit by default."])
    parts = (Section("Reading it", [facts]), *(_measure(audit) for audit, _ in measuring))
    return Explanation(name, f"{metric.title}.", parts, audit.paper)


def _measure(audit: type[Audit[Any]]) -> Section:
    """Splits the docstring into paragraphs: the equation, its source and its limits."""
    return Section(f"What {audit.name} measures", _paragraphs(audit))


def _about(metric: Metric) -> str:
    return " ".join(filter(None, (f"{metric.title}.", *_facts(metric), limits_of(metric))))


def _facts(metric: Metric) -> Iterator[str]:
    if metric.unit:
        yield f"Its unit is {metric.unit}."
    if metric.riskier:
        yield f"The {metric.riskier}, the riskier."
    if not metric.per_layer:
        yield "It is of the whole model."
    if metric.proven:
        yield "It is a lower bound of the truth: no value shows that the truth is within a limit."
    if metric.stronger:
        yield f"It is what an adversary got; a stronger one may get more ({metric.stronger})."
    if metric.helps:
        yield f"What helps besides hiding layers: {metric.helps}."
    if metric.counts:
        yield f"Its interval narrows with the root of the number of {metric.counts}."


def described(name: str, field: FieldInfo) -> str:
    """Returns an option's description with its default in words, for help and explanations."""
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    off = f"--no-{name.replace('_', '-')} turns it off"
    if default is True:
        text = f" (default: on; {off})"
    elif default is None and bool in get_args(field.annotation):
        text = f" ({off})"
    elif default in (None, (), False):
        text = ""
    else:
        values = default if isinstance(default, tuple) else (default,)
        texts = [f"{v:g}".replace("e-0", "e-") if isinstance(v, float) else str(v) for v in values]
        text = f" (default: {', '.join(texts)})"
    return f"{field.description or ''}{text}"
