"""What one inference game deals: who has which records, and every batch that is drawn of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.errors import NotApplicable
from gradaudit.inference.batches import Batches, draw_any
from gradaudit.inference.splits import expect_enough, split

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Prior = Literal["empirical", "uniform"]

PRIVATE = 5000
"""Records that the private set holds at most (Li et al. 2024, section 5.1.4)."""
SHARES = (0.4, 0.2, 0.4)
"""Of the records, for the shadow, the test and the private set."""


@dataclass(frozen=True)
class Setup:
    """How a game is played.

    Attributes:
        batch_size: k, records in a batch.
        shadow: records that the adversary has, at most.
        batches: shadow batches that it fits on.
        held_out: share of its records that it keeps for choosing and calibrating.
        trials: T, batches that it has to guess.
        prior: of the secret: its frequencies among all records, or uniform.
        private: records of the private set, at most.
        bins: m, ratio bins.
        candidates: users to choose from.
    """

    batch_size: int
    shadow: int = 1000
    batches: int = 2000
    held_out: float = 0.2
    trials: int = 1000
    prior: Prior = "empirical"
    private: int = PRIVATE
    bins: int = 6
    candidates: int = 5


@dataclass(frozen=True)
class Parts:
    """Who has which records: indices, no record and no user in two of them.

    Attributes:
        shadow: what the adversary fits on.
        held: what it chooses and calibrates on; may be empty.
        test: what the model is tested on.
        private: what the model is trained on, and the batches to guess are drawn from.
    """

    shadow: IntArray
    held: IntArray
    test: IntArray
    private: IntArray


@dataclass(frozen=True)
class Deal:
    """Everything drawn for a game, before any gradient is computed.

    Attributes:
        secret: what is guessed, in words.
        values: names of what it can be.
        prior: π, (values,), all positive.
        parts: who has which records.
        shadow: batches that the adversary fits on, with the secret of each.
        held: batches of its other records; may be none.
        observed: batches whose gradients are released, (trials, k), with the true values.
        clusters: records or users behind each trial, (trials, k); of candidates, all their users.
        candidates: the candidates' own batches, (trials · values, k), trial by trial; or none.
        notes: what else the report should say.
    """

    secret: str
    values: tuple[str, ...]
    prior: FloatArray
    parts: Parts
    shadow: Batches
    held: Batches
    observed: Batches
    clusters: IntArray
    candidates: IntArray | None = None
    notes: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """k, records in a batch."""
        return int(self.observed.indices.shape[1])

    @property
    def by_user(self) -> bool:
        """Whether trials are clustered by something else than their records."""
        return self.clusters is not self.observed.indices

    @property
    def own(self) -> IntArray:
        """Every batch whose gradient the adversary computes: shadow, held, candidates."""
        empty = np.zeros((0, self.shadow.indices.shape[1]), dtype=np.int64)
        candidates = empty if self.candidates is None else self.candidates
        return np.concatenate([self.shadow.indices, self.held.indices, candidates])

    @property
    def own_values(self) -> IntArray:
        """The secret of each of them; −1 of the candidates' batches."""
        candidates = len(self.own) - len(self.shadow.labels) - len(self.held.labels)
        nobody = np.full(candidates, -1, dtype=np.int64)
        return np.concatenate([self.shadow.labels, self.held.labels, nobody])


def deal_parts(
    codes: IntArray,
    names: tuple[str, ...],
    secret: str,
    users: NDArray[np.str_] | None,
    setup: Setup,
    seed: np.random.SeedSequence,
) -> Parts:
    """Split the records, then keep as many as the game allows.

    The shadow set is balanced: up to ``shadow / values`` records of each value (Li et al. 2024,
    section 5.1.4). A share of each value's is held out, where enough remain; of users, all records
    or none. The private set keeps the values' shares, but at least a batch of each.

    Raises:
        NotApplicable: a value has fewer records than a batch takes in the private or shadow set,
            or the private set cannot hold a batch of every value.
    """
    shadow, test, private = split(len(codes), users, SHARES, seed, codes=codes)
    needy = {"the shadow set": shadow, "the private set": private}
    _expect_enough(needy, codes, names, setup.batch_size, secret)
    generator = np.random.default_rng(seed.spawn(1)[0])
    fit, held = _hold_out(shadow, codes, len(names), users, setup, generator)
    quotas = _private_quotas(np.bincount(codes[private], minlength=len(names)), setup, secret)
    return Parts(fit, held, test, _at_most(private, codes, quotas, generator))


def _expect_enough(
    parts: Mapping[str, IntArray], codes: IntArray, names: tuple[str, ...], size: int, secret: str
) -> None:
    """Enough records of every value, or a sentence that names the ways out."""
    try:
        expect_enough(parts, codes, names, size, secret)
    except NotApplicable as why:
        least = min(len(part) for part in parts.values()) / len(codes)
        merge = f", or merge rare values (--merge-rare {int(np.ceil(size / least))})"
        raise NotApplicable(f"{why}{merge if len(names) > 2 else ''}") from None


def _hold_out(
    members: IntArray,
    codes: IntArray,
    values: int,
    users: NDArray[np.str_] | None,
    setup: Setup,
    generator: np.random.Generator,
) -> tuple[IntArray, IntArray]:
    """Shadow records to fit on and to hold out: none where a value would be left too few."""
    quota = max(setup.shadow // values, 1)
    fit, held, whole = [], [], []
    away = None if users is None else _users_to_hold_out(members, codes, users, setup, generator)
    for value in range(values):
        of_value = generator.permutation(members[codes[members] == value])
        cut = round(min(len(of_value), quota) * setup.held_out)
        apart = np.arange(len(of_value)) < cut if away is None else np.isin(of_value, away)
        held.append(of_value[apart][:cut])
        fit.append(of_value[~apart][: quota - cut])
        whole.append(of_value[:quota])
    if min(map(len, fit + held)) < 2 * setup.batch_size:
        return np.sort(np.concatenate(whole)), np.zeros(0, dtype=np.int64)
    return np.sort(np.concatenate(fit)), np.sort(np.concatenate(held))


def _users_to_hold_out(
    members: IntArray,
    codes: IntArray,
    users: NDArray[np.str_],
    setup: Setup,
    generator: np.random.Generator,
) -> IntArray:
    """All records of a share of the members' users."""
    shares, seed = (1 - setup.held_out, setup.held_out), int(generator.integers(1 << 62))
    _, away = split(len(members), users[members], shares, seed, codes=codes[members])
    return members[away]


def _at_most(
    pool: IntArray, codes: IntArray, quotas: IntArray, generator: np.random.Generator
) -> IntArray:
    """``quotas[v]`` random records of each value v, or all where there are fewer; ascending."""
    kept = [
        generator.permutation(pool[codes[pool] == value])[:quota]
        for value, quota in enumerate(quotas)
    ]
    return np.sort(np.concatenate(kept))


def _private_quotas(counts: IntArray, setup: Setup, secret: str) -> IntArray:
    """How many private records of each value to keep: in their shares, but a batch of each.

    Raises:
        NotApplicable: so many batches are more than the private set holds.
    """
    total, least = int(counts.sum()), setup.batch_size
    if total <= setup.private:
        return counts
    if least * len(counts) > setup.private:
        raise NotApplicable(
            f"{secret}: a batch of {least} records of each of its {len(counts)} values takes "
            f"{least * len(counts)} private records, and the private set holds {setup.private}: "
            f"give --samples {least * len(counts)}, or batches of at most "
            f"{setup.private // len(counts)}"
        )
    few = np.zeros(len(counts), dtype=bool)
    while True:
        share = (setup.private - least * few.sum()) / counts[~few].sum()
        wanted = np.where(few, least, counts * share)
        if not (short := wanted < least).any():
            break
        few |= short
    quotas = np.floor(wanted).astype(np.int64)
    missing = setup.private - int(quotas.sum())
    quotas[np.argsort(quotas - wanted, kind="stable")[:missing]] += 1
    return quotas


def frequencies(codes: IntArray, values: int, prior: Prior) -> FloatArray:
    """π, (values,)."""
    if prior == "uniform":
        return np.full(values, 1 / values)
    counts = np.bincount(codes, minlength=values)
    return np.asarray(counts / counts.sum(), dtype=np.float64)


def trials_of(prior: FloatArray, trials: int) -> IntArray:
    """How many trials play each value: in the prior's shares to the nearest, at least one each.

    Fewer trials than values become one of each.
    """
    trials = max(trials, len(prior))
    counts = np.floor(prior * trials).astype(np.int64)
    missing = trials - int(counts.sum())
    counts[np.argsort(counts - prior * trials, kind="stable")[:missing]] += 1
    while not counts.all():
        counts[counts.argmax()] -= 1
        counts[counts.argmin()] += 1
    return counts


def draw_values(
    codes: IntArray, pool: IntArray, size: int, counts: IntArray, generator: np.random.Generator
) -> Batches:
    """``counts[v]`` batches of each value v, (Σ counts, size), value by value."""
    drawn = [
        draw_any(pool[codes[pool] == value], size, int(count), generator)
        for value, count in enumerate(counts)
    ]
    return Batches(np.concatenate(drawn), np.repeat(np.arange(len(counts)), counts))


def no_batches(size: int) -> Batches:
    """No batch at all."""
    return Batches(np.zeros((0, size), dtype=np.int64), np.zeros(0, dtype=np.int64))


def members_of(batches: IntArray, users: NDArray[np.str_] | None) -> IntArray:
    """The records of each batch, or their users: (batches, k)."""
    if users is None:
        return batches
    return np.unique(users, return_inverse=True)[1].astype(np.int64)[batches]
