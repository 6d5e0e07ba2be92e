"""Groups of records by an attribute's values, and permutations of the labels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradaudit.loading.records import Attribute, Records

FEWEST = 5
"""Records that a group needs: two groups of five can be told apart in 252 ways."""
_PERMUTATIONS = 6


@dataclass(frozen=True)
class Split:
    """The records with a value of an attribute, and the rest.

    Attributes:
        attribute: its name.
        value: the value; None where the attribute has but two.
        member: (records,) whether a record has the value.
        refusal: why the two groups cannot be compared, if so.
    """

    attribute: str
    value: str | None
    member: NDArray[np.bool_]
    refusal: str | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        """Records with the value, and without."""
        inside = int(self.member.sum())
        return inside, len(self.member) - inside


def splits_of(records: Records, names: Sequence[str]) -> tuple[Split, ...]:
    """Every value of every attribute against the rest; an attribute of two values once.

    Args:
        records: those to be looked at.
        names: the attributes.
    """
    return tuple(split for name in names for split in _splits(name, records.attributes[name]))


def _splits(name: str, attribute: Attribute) -> Iterator[Split]:
    codes = attribute.codes
    present = np.unique(codes)
    if len(present) < 2:
        everybody = f"all {len(codes)} records looked at have one value of {name}"
        yield Split(name, None, codes < 0, f"{everybody}; look at more with --samples")
    elif len(present) == 2:
        yield _checked(name, None, codes == present[1], len(codes))
    else:
        for code in present:
            yield _checked(name, attribute.values[code], codes == code, len(codes))


def _checked(name: str, value: str | None, member: NDArray[np.bool_], records: int) -> Split:
    split = Split(name, value, member)
    smaller = min(split.sizes)
    if smaller >= FEWEST:
        return split
    reason = (
        f"one group of {name} has {smaller} of the {records} records looked at, and {FEWEST} are "
        "needed; look at more with --samples"
    )
    return Split(name, value, member, reason)


def permutations(records: int, count: int, seed: int) -> NDArray[np.int64]:
    """Orders of the records' labels drawn at random, (count, records); the same for a seed."""
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_PERMUTATIONS,)))
    orders = np.broadcast_to(np.arange(records, dtype=np.int64), (count, records))
    return generator.permuted(orders, axis=1)
