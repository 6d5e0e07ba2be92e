"""Base class of audits: a name, options, metrics, and a ``run`` that measures but never judges.

Audits are listed, described and configured without torch: the folder of one declares it in
``__init__.py``, and only its ``measure.py`` and what lies beside that import the measuring code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from gradaudit.core.parts import source_line, without_garbage_collection
from gradaudit.core.specs import configured
from gradaudit.deployment import Deployment
from gradaudit.errors import AuditError
from gradaudit.progress import Progress
from gradaudit.report import Measurement

if TYPE_CHECKING:
    from gradaudit.subject import Subject


Question = Literal["records", "attribute", "labels", "freedom"]
"""What a number answers: are records followed or rebuilt, is what is private told, are the labels,
and how much of a layer's input its gradient leaves free."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that an audit reports, with the default policy's limits on it.

    ``warning`` and ``error`` are the default limits: a row is flagged when its whole interval
    lies beyond them in the ``riskier`` direction. ``why`` is what the table says of a layer that
    is flagged, in words for somebody who has not read the paper.

    Attributes:
        question: what it answers: ``records`` (are they followed or reconstructed), ``attribute``
            (is a private one inferred), ``labels`` (are they recovered) or ``freedom`` (rank
            deficiency of a layer); needed where there is a limit.
        chance: what there is where nothing is given away; None where that is not one number.
        finding: what a value beyond the limit shows, a sentence; ``{secret}`` stands for what is
            private.
        asks: the same as a question.
        noun: what its number is called beside its value: ``AUROC``, ``relative error``.
        cleared: what an attack within every limit did not achieve: ``not distinguished``; empty
            where a value is no attack's.
        helps: what would bring it back within the limit, besides hiding layers and more records.
        proven: whether a value is what the truth is at least, so that none shows it within a max.
        counts: what a row's ``n`` counts, where its interval narrows with the root of it; empty
            where it does not.
        stronger: options that give a stronger adversary, where a value is what an adversary got, so
            that a better one may get more; empty elsewhere.
        guarantee: whether a value is a promise, so that where there is none a rule on it fails.
    """

    id: str
    title: str
    unit: str = ""
    riskier: Literal["higher", "lower"] | None = None
    per_layer: bool = True
    warning: float | None = None
    error: float | None = None
    why: str = ""
    question: Question | None = None
    chance: float | None = None
    finding: str = ""
    asks: str = ""
    noun: str = ""
    cleared: str = ""
    helps: str = ""
    counts: str = ""
    proven: bool = False
    stronger: str = ""
    guarantee: bool = False


class AuditOptions(BaseModel):
    """Base of every audit's options; a field is a command line option and a config key."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)
    tuned: ClassVar[Set[str]] = frozenset()
    """Options that replace a method's own settings, whose effect on its strength nothing bounds."""

    @classmethod
    def deployed(cls, deployment: Deployment) -> dict[str, Any]:
        """Look up these options' values in a federation's settings, by name."""
        return {}

    def seen(self) -> dict[str, Any]:
        """Describe, by option name, how the audited updates were made; empty without updates."""
        return {}


MergeRare = Annotated[
    int,
    Field(
        ge=0,
        description="Smallest number of records of an attribute's value; rarer values are "
        "merged into one (other).",
    ),
]


def split_at_commas(given: object) -> object:
    """Split ``a,b``, or several such texts, into names; a validator of options that hold names."""
    given = (given,) if isinstance(given, str) else given
    if not isinstance(given, (tuple, list)):
        return given
    return tuple(name.strip() for text in given for name in str(text).split(","))


def methods_at_commas(given: object) -> object:
    """Split ``a,b:key=value,c`` into methods with their options; a validator of such fields."""
    given = (given,) if isinstance(given, str) else given
    if not isinstance(given, (tuple, list)):
        return given
    # a comma ends a method unless an option, key=value, follows it
    return tuple(m.strip() for text in given for m in re.split(r",(?![^,:]*=)", str(text)))


O = TypeVar("O", bound=AuditOptions)  # noqa: E741 - O for options


class Audit(Generic[O]):
    """One audit. The class docstring carries the formula and the citation.

    It measures in the module ``measure`` of its folder, or in a ``run`` of its own.

    A name of two words is one of several audits that report as the first word: ``attack property``
    is the command ``gradaudit attack property`` and yields rows of the audit ``attack``.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str] = ""
    """Where the paper that its measure is from can be read: an address."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names that its command, its section of a config file and Python know it by."""
    metrics: ClassVar[tuple[Metric, ...]]
    headline: ClassVar[tuple[str, ...]]
    """Ids of the metrics worth showing of a scan; the risk table has the last for a question."""
    one_thread: ClassVar[bool] = False
    """Whether this process computes with one thread, and its long work is all shared out among
    workers: their number then decides nothing, not even how sums are rounded."""
    proxy: ClassVar[bool] = False
    """Whether its metrics stand for leakage without trying to learn anything from what is shared.

    They can show a risk; a layer that only proxies looked at is else not tested, never low.
    """
    applies_defenses: ClassVar[bool] = False
    """Whether its numbers are of updates behind ``subject.defenses``; else reports say that they
    are measured without them."""
    brings_model: ClassVar[bool] = False
    """Whether it opens a model of its own: scans and sweeps pass over it, and its command is its
    own too."""
    Options: ClassVar[type[AuditOptions]] = AuditOptions
    examples: ClassVar[tuple[str, ...]] = (
        "-m 'zoo:mlp?inputs=10&classes=2' -d diabetes -a sex",
        "-m FILE.py:factory -c weights.safetensors -d 'csv:table.csv?label=income' -a sex",
    )
    """Arguments of its command that help begins with, quoted for a shell."""
    renames: ClassVar[Mapping[str, str]] = {}
    """Subject options that this audit's command calls otherwise, because it has its own."""
    priority: ClassVar[int] = 120
    """Its place in a scan's fixed order: the lower, the earlier."""
    least: ClassVar[Mapping[str, JsonValue]] = {}
    """Options where every preset is too much work: ``layers`` is the number of sampled layers.

    Here and in presets ``samples`` is the number of records where the user does not say, and
    ``single`` whether gradients are taken in single precision.
    """
    quick: ClassVar[Mapping[str, JsonValue]] = {}
    """Options of the preset ``scan --quick``."""
    plain: ClassVar[Mapping[str, JsonValue]] = {}
    """Options of a plain scan's preset."""
    thorough: ClassVar[Mapping[str, JsonValue]] = {}
    """Options of the preset ``scan --thorough``."""

    def __init__(self, *given: O | str, **values: Any) -> None:
        """Make an audit with options.

        Args:
            given: the options, or names of private attributes: those that this audit is asked
                about, where the target is asked about others too.
            values: options by name, in place of ``given`` ones; the others have their defaults.

        Raises:
            UsageError: an option that it does not take, or a value out of range.
        """
        self.attributes = tuple(one for one in given if isinstance(one, str))
        ready = [one for one in given if not isinstance(one, str)]
        self.options: O = (
            ready[0] if ready else configured(self.Options, type(self).__name__, values)  # type: ignore[assignment]
        )

    @classmethod
    def reports_as(cls) -> str:
        """Return the audit's name in its rows: the first word of its name."""
        return cls.name.split()[0]

    def run(self, subject: Subject, progress: Progress) -> Iterable[Measurement]:
        """Measure the subject, yielding rows as they come: ``measure.run(audit, …)``.

        Every layer of the subject gets a measurement or a skipped or failed row with a reason.

        Raises:
            NotApplicable: this audit says nothing about this model or data.
        """
        rows: Iterable[Measurement] = self._measuring().run(self, subject, progress)
        return rows

    def gradients(self, subject: Subject) -> float:
        """Count the gradients of single records that ``run`` takes about as long as.

        ``measure.gradients(audit, subject)`` is an expression in options, model and records; zero
        where there is nothing to do, and for a ``run`` of its own without a count.

        Raises:
            NotApplicable: this audit says nothing about this model or data.
        """
        if type(self).run is not Audit.run:
            return 0.0
        count: float = self._measuring().gradients(self, subject)
        return count

    def _measuring(self) -> Any:
        with without_garbage_collection():
            name = f"{type(self).__module__}.measure"
            try:
                return import_module(name)
            except ModuleNotFoundError as error:
                if error.name != name:
                    raise
                part = f"{type(self).__name__}{source_line(type(self))}"
                raise AuditError(f"{part} does not define run, nor is there {name}") from None
