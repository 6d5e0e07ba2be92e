"""Explanations of audits and metrics from their declarations: question, equation, limits."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic.fields import FieldInfo

from gradaudit.audits import Audit, Metric, audits, named
from gradaudit.core.specs import suggest
from gradaudit.core.text import number
from gradaudit.errors import UsageError

Entry = tuple[str, str]
"""A term and its explanation."""


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
    """Returns all names that can be explained: audits, then metrics."""
    return [*audits(), *_measuring()]


def explain(name: str) -> Explanation:
    """Explains an audit by its name, or a metric as policies name it.

    Raises:
        UsageError: there is neither.
    """
    spoken = [*audits(), *(alias for audit in audits().values() for alias in audit.aliases)]
    known = {one.replace(" ", "-"): named(one) for one in spoken}
    known |= {one: named(one) for one in (*spoken, *names())}
    meant = known.get(name)
    if meant is None:
        raise UsageError(
            f"explain {name}: no audit or metric of this name{suggest(name, known)}; "
            "`gradaudit list audits` and `gradaudit list metrics` have them"
        )
    return _of_audit(audits()[meant]) if meant in audits() else _of_metric(meant)


def limits_of(metric: Metric) -> str:
    """Returns the default policy's limit of a metric as a sentence; empty where it has none."""
    beyond = "above" if metric.riskier == "higher" else "below"
    said = [
        f"{word} {beyond} {number(limit)}"
        for word, limit in (("a warning", metric.warning), ("an error", metric.error))
        if limit is not None
    ]
    because = f": {metric.why}" if metric.why else ""
    return f"By default {' and '.join(said)}{because}." if said else ""


def _measuring() -> dict[str, list[tuple[type[Audit[Any]], Metric]]]:
    """Returns every metric with the audits that measure it."""
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
    return Explanation(audit.name, audit.question or audit.summary, parts, audit.paper)


def _of_metric(name: str) -> Explanation:
    measuring = _measuring()[name]
    audit, metric = measuring[0]
    facts = " ".join([*_facts(metric), limits_of(metric) or "It has no limit by default."])
    parts = (Section("Reading it", [facts]), *(_measure(audit) for audit, _ in measuring))
    return Explanation(name, f"{metric.title}.", parts, audit.paper)


def _measure(audit: type[Audit[Any]]) -> Section:
    """Splits the docstring into paragraphs: the equation, its source and its limits."""
    text = inspect.cleandoc(audit.__doc__ or audit.summary)
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return Section(f"What {audit.name} measures", paragraphs)


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
        said = f" (default: on; {off})"
    elif default is None and bool in get_args(field.annotation):
        said = f" ({off})"
    elif default in (None, (), False):
        said = ""
    else:
        values = default if isinstance(default, tuple) else (default,)
        texts = [f"{v:g}".replace("e-0", "e-") if isinstance(v, float) else str(v) for v in values]
        said = f" (default: {', '.join(texts)})"
    return f"{field.description or ''}{said}"
