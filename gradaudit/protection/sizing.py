"""How exactly audits are made, so that the first measurement leaves time for a search."""

from collections.abc import Sequence
from dataclasses import replace

from gradaudit.audits.sizes import Size
from gradaudit.planning.pace import Pace
from gradaudit.subject import Subject

_SHARE = 0.25
"""Of the time, what the first measurement may take; as much is kept for that on fresh records, and
half is left for trials."""


def fitting(
    ladders: Sequence[Sequence[Size]], subject: Subject, seconds: float
) -> tuple[Size, ...]:
    """A size of every audit, the most exact where all together fit.

    Else those that take longest are made less exactly, as long as there is a smaller size.

    Args:
        ladders: the sizes of each audit, the most exact last.
        subject: what is to be protected.
        seconds: that a plan may take.
    """
    pace = Pace.of(subject)

    def estimate(size: Size) -> float:
        return pace.seconds(size.audit, replace(subject, samples=subject.samples or size.samples))

    left = [[(estimate(size), size) for size in sizes] for sizes in ladders]
    while sum(sizes[-1][0] for sizes in left) > _SHARE * seconds:
        shorter = [sizes for sizes in left if len(sizes) > 1]
        if not shorter:
            break
        max(shorter, key=lambda sizes: sizes[-1][0]).pop()
    return tuple(sizes[-1][1] for sizes in left)
