"""What a study of an interval's coverage is."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

Settings = Mapping[str, str | int | float]


@dataclass(frozen=True)
class Outcome:
    """What one simulated study gave for one interval.

    Attributes:
        covered: whether the interval held the truth; of a one-sided bound, whether it was not
            beyond it; of a verdict, whether it was right. None where nothing was said (skipped).
        width: of the interval, or None of a bound or a verdict.
        imprecise: whether the row was marked imprecise.
    """

    covered: bool | None
    width: float | None = None
    imprecise: bool = False


def interval(low: float, high: float, truth: float, *, imprecise: bool = False) -> Outcome:
    """The outcome of a two-sided interval."""
    return Outcome(bool(low <= truth <= high), high - low, imprecise)


@dataclass(frozen=True)
class Cell:
    """One setting of a study, played with many seeds.

    Attributes:
        settings: what tells it from its siblings: plant, records, batch, ….
        play: from a seed to outcomes by the interval's name; equal seeds give equal outcomes.
        nominal: shares (least, most) of covered outcomes that are right.
    """

    settings: Settings
    play: Callable[[int], Mapping[str, Outcome]]
    nominal: tuple[float, float] = (0.90, 0.99)


@dataclass(frozen=True)
class Study:
    """Cells of one subject; every module of this package has one as ``STUDY``.

    Attributes:
        name: of the study.
        says: one sentence: what is simulated, by which code, and what the truth is.
        quick: its cells for a few minutes.
        full: all cells.
    """

    name: str
    says: str
    quick: Callable[[], Iterator[Cell]]
    full: Callable[[], Iterator[Cell]]
    notes: tuple[str, ...] = field(default=())
