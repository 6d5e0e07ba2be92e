"""Groups of records by an attribute's values, and the permutations that show chance.

Records of one user depend on each other. Where all of a user's records have one value, users have
labels, and those are permuted; the groups' sizes then vary with the users'. Where users have
several values, labels are permuted among each user's own records, which leaves whatever
distinguishes users as it is. Without users, labels are permuted among records. Each is exact
where the labels that it permutes have nothing to do with the gradients.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from gradaudit.core.randomness import rng
from gradaudit.data.records import Attribute, Records

HALVES = 16
"""Half samples whose distances tell how far a distance is known."""
FEWEST = 5
"""Records, or users, that a group needs: ten can be split into two groups of five in 252 ways."""
_LOG_LABELLINGS = float(np.log(252))
Orders = NDArray[np.int64]
Permuted = Literal["records", "users", "records of each user"]


@dataclass(frozen=True)
class Split:
    """The records with a value of an attribute, and all others.

    Attributes:
        value: the value; None where the attribute has but two.
        member: (records,) whether a record has the value.
        orders: (permutations, records); under a permutation, record i has the label of the record
            that ``orders`` has at i.
        refusal: why the two groups cannot be compared, if so.
        halves: (half samples, records) whether a record is in a random half of the records, or of
            the users with all their records.
    """

    attribute: str
    value: str | None
    member: NDArray[np.bool_]
    permuted: Permuted
    orders: Orders
    refusal: str | None = None
    halves: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), bool))

    @property
    def sizes(self) -> tuple[int, int]:
        """Count the records with the value, and without."""
        inside = int(self.member.sum())
        return inside, len(self.member) - inside

    @property
    def smallest(self) -> int:
        """Count the records in the smallest group under any labelling, including the observed."""
        inside = np.append(self.member[self.orders].sum(axis=1), self.member.sum())
        return int(np.minimum(inside, len(self.member) - inside).min())


def splits_of(
    records: Records, names: Sequence[str], permutations: int, seed: int
) -> tuple[Split, ...]:
    """Split by every value of every attribute against the rest; once for two values.

    Attributes whose labels are permuted alike share their permutations.
    """
    named = records.users
    users = np.arange(len(records)) if named is None else np.unique(named, return_inverse=True)[1]
    orders: dict[Permuted, Orders] = {}
    halves = _halves(users, seed)
    splits: list[Split] = []
    for name in names:
        attribute = records.attributes[name]
        permuted = _permuted(attribute.codes, users)
        if permuted not in orders:
            orders[permuted] = orders_of(permuted, users, permutations, seed)
        own = _splits(name, attribute, permuted, orders[permuted], users)
        splits += [replace(split, halves=halves) for split in own]
    return tuple(splits)


def _halves(users: Orders, seed: int) -> NDArray[np.bool_]:
    count = int(users.max()) + 1
    shuffled = _shuffled(rng(seed, "subspace", "halves"), count, HALVES)
    return np.asarray((shuffled < count // 2)[:, users])


def orders_of(permuted: Permuted, users: Orders, count: int, seed: int) -> Orders:
    """Draw random permutations of the records' labels, as indices (count, records).

    Args:
        permuted: whose labels are permuted.
        users: (records,) the number of each record's user, from 0.
        count: of permutations.
        seed: equal seeds give equal permutations.
    """
    generator = rng(seed, "subspace", "permutations", permuted)
    if permuted == "users":
        first = np.unique(users, return_index=True)[1]
        return first[_shuffled(generator, len(first), count)][:, users]
    if permuted == "records of each user":
        orders = np.empty((count, len(users)), dtype=np.int64)
        for user in range(users.max() + 1):
            members = np.flatnonzero(users == user)
            orders[:, members] = members[_shuffled(generator, len(members), count)]
        return orders
    return _shuffled(generator, len(users), count)


def _shuffled(generator: np.random.Generator, size: int, count: int) -> Orders:
    return generator.permuted(np.broadcast_to(np.arange(size), (count, size)), axis=1)


def _permuted(codes: NDArray[np.int64], users: Orders) -> Permuted:
    if users.max() + 1 == len(users):
        return "records"
    first = codes[np.unique(users, return_index=True)[1]]
    return "users" if (codes == first[users]).all() else "records of each user"


def _splits(
    name: str, attribute: Attribute, permuted: Permuted, orders: Orders, users: Orders
) -> Iterator[Split]:
    codes = attribute.codes
    present = np.unique(codes)
    if len(present) < 2:
        everybody = f"all {len(codes)} records looked at have one value of {name}"
        refusal = f"{everybody}; look at more with --samples"
        yield Split(name, None, codes < 0, permuted, orders, refusal)
    compared = {1: present[:0], 2: present[1:]}.get(len(present), present)
    for code in compared:
        value = None if len(present) == 2 else attribute.values[code]
        why = _refusal(name, codes == code, permuted, users)
        yield Split(name, value, codes == code, permuted, orders, why)


def _refusal(name: str, member: NDArray[np.bool_], permuted: Permuted, users: Orders) -> str | None:
    """Say why the groups are too small to differ from chance, with the number needed."""
    whose, labels = "records", member
    if permuted == "users":
        whose, labels = "users", member[np.unique(users, return_index=True)[1]]
    smaller = min(int(labels.sum()), int((~labels).sum()))
    if smaller < FEWEST:
        return (
            f"one group of {name} has {smaller} of the {len(labels)} {whose} looked at, and "
            f"{FEWEST} are needed; look at more with --samples"
        )
    held, inside = np.bincount(users), np.bincount(users, weights=member)
    log_labellings = gammaln(held + 1) - gammaln(inside + 1) - gammaln(held - inside + 1)
    if permuted == "records of each user" and log_labellings.sum() < _LOG_LABELLINGS:
        return (
            f"{name} varies within too few of the users looked at, and only labels of one user's "
            "records can be permuted; look at more with --samples"
        )
    return None
