"""What every audit is: a name, options, metrics, and a ``run`` that measures and never judges.

Audits are listed, described and configured without torch, so a module in this package imports the
measuring code inside ``run``.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue

from gradaudit.progress import Progress
from gradaudit.report import Measurement

if TYPE_CHECKING:
    from gradaudit.target import Subject


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number an audit reports, with what the default policy makes of it.

    ``warning`` and ``error`` are the default limits: a row is flagged when its whole interval
    lies beyond them in the ``riskier`` direction. ``why`` is what the table says of a layer that
    is flagged, in words for somebody who has not read the paper.

    Attributes:
        counts: what a row's ``n`` counts, where its interval narrows with the root of it; empty
            where it does not.
    """

    id: str
    title: str
    unit: str = ""
    riskier: Literal["higher", "lower"] | None = None
    per_layer: bool = True
    warning: float | None = None
    error: float | None = None
    why: str = ""
    counts: str = ""


class AuditOptions(BaseModel):
    """Base of every audit's options; a field is a command line option and a config key."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


O = TypeVar("O", bound=AuditOptions)  # noqa: E741 - O for options


class Audit(ABC, Generic[O]):
    """One audit. The class docstring carries the formula and the citation.

    A name of two words is one of several audits that report as the first word: ``attack property``
    is the command ``gradaudit attack property`` and yields rows of the audit ``attack``.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]
    headline: ClassVar[tuple[str, ...]]
    """Ids of the metrics that get a column in the risk table of ``scan``."""
    proxy: ClassVar[bool] = False
    """Whether its metrics stand for leakage without trying to learn anything from what is shared.

    They can show a risk; a layer that only proxies looked at is else not tested, never low.
    """
    Options: ClassVar[type[AuditOptions]] = AuditOptions
    renames: ClassVar[Mapping[str, str]] = {}
    """Subject options that this audit's command calls otherwise, because it has its own."""
    quick: ClassVar[Mapping[str, JsonValue]] = {}
    """Options that ``scan --quick`` sets: a rough answer at a fraction of the cost."""
    plain: ClassVar[Mapping[str, JsonValue]] = {}
    """Options that a plain scan sets, where the audit's own defaults would take too long."""
    thorough: ClassVar[Mapping[str, JsonValue]] = {}
    """Options that ``scan --thorough`` sets: the most exact answer."""

    def __init__(self, options: O) -> None:
        self.options = options

    @classmethod
    def reports_as(cls) -> str:
        """What its rows name as their audit: the first word of its name."""
        return cls.name.split()[0]

    @abstractmethod
    def run(self, subject: "Subject", progress: Progress) -> Iterable[Measurement]:
        """Measure the subject, yielding rows as they come.

        Every layer of the subject gets a measurement or a skipped or failed row with a reason.

        Raises:
            NotApplicable: this audit says nothing about this model or data.
        """

    def passes(self, subject: "Subject") -> float:
        """About how many gradient passes over one record ``run`` costs; for ``--dry-run``.

        Zero says that there is nothing to do.
        """
        return 0.0

    def calls(self, subject: "Subject") -> float:
        """About how many gradients ``run`` takes one after the other, each waiting for the last.

        Of a small model a call costs much more than the records in it do.
        """
        return 0.0

    def seconds(self, subject: "Subject") -> float:
        """About how long ``run`` takes apart from gradients, on a core of a usual machine."""
        return 0.0
