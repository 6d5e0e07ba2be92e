"""Splits the records of a game between adversary and clients, and draws every batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.core.randomness import rng, sequence
from gradaudit.errors import NotApplicable, TooFewRecords
from gradaudit.games.splits import Batches, Users, expect_enough, owners, split
from gradaudit.sharing.protocol import SharingProtocol

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Prior = Literal["empirical", "uniform"]
PRIVATE = 5000
"""Records that the private set holds at most (Li et al. 2024, section 5.1.4)."""
SHARES = (0.4, 0.2, 0.4)
"""Shares of the records for the shadow, the test and the private set."""


@dataclass(frozen=True)
class Design:
    """The sizes of a game: records, batch size, numbers of shadow batches and of trials.

    Attributes:
        batch_size: k, records in a batch.
        shadow: records that the adversary has, at most.
        batches: shadow batches that it fits on.
        held_out: share of its records that it keeps for choosing and calibrating.
        trials: T, batches that it has to guess, in all repetitions together.
        prior: of the secret: its frequencies among all records, or uniform.
        private: records of the private set, at most.
        bins: m, ratio bins.
        reduce: of each layer's update.
        rounds: how many to observe; None is all checkpoints, or three of its own.
        adaptive: whether an adversary plays who knows the defenses.
        repeats: how many splits of the records it is played on; the trials are dealt among them.
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
    sharing: SharingProtocol = field(default_factory=SharingProtocol)
    reduce: str | None = None
    rounds: int | None = None
    learning_rate: float = 0.01
    adaptive: bool = True
    knows: tuple[str, ...] = ()
    families: tuple[str, ...] = ("forest",)
    repeats: int = 1


@dataclass(frozen=True)
class Parts:
    """Disjoint parts of the records, as indices; no record and no user is in two of them.

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
class Secret:
    """The attribute whose value in a batch's records the adversary guesses.

    Attributes:
        codes: (records,) indices into ``values``.
        users: (records,) whose record each is; None where nobody says.
    """

    name: str
    values: tuple[str, ...]
    codes: IntArray
    users: Users | None

    def having(self, value: int, pool: IntArray) -> IntArray:
        """Select the records of a pool that have a value."""
        return np.asarray(pool[self.codes[pool] == value])

    def counts(self, pool: IntArray) -> IntArray:
        """Count the records of a pool that have each value, (values,)."""
        return np.bincount(self.codes[pool], minlength=len(self.values))

    def behind(self, batches: IntArray) -> IntArray:
        """Look up the records of batches, or their users: (batches, k)."""
        if self.users is None:
            return batches
        return owners(self.users, len(self.codes))[batches]


@dataclass(frozen=True)
class GameSplit:
    """Everything drawn for a game on one split of the records, before any gradient is computed.

    Attributes:
        prior: π, (values,), all positive.
        shadow: batches that the adversary fits on, with the secret of each.
        held: batches of its other records; may be none.
        observed: batches whose gradients are released, (trials, k), with the true values.
        clusters: records or users behind each trial, (trials, k); of candidates, all their users.
        candidates: the candidates' own batches, (trials · values, k), trial by trial; or none.
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
    def own(self) -> IntArray:
        """All batches whose gradients the adversary computes: shadow, held out, and candidates'."""
        empty = np.zeros((0, self.shadow.indices.shape[1]), dtype=np.int64)
        candidates = empty if self.candidates is None else self.candidates
        return np.concatenate([self.shadow.indices, self.held.indices, candidates])

    @property
    def own_values(self) -> IntArray:
        """Returns the secret of each batch; −1 for the candidates' batches."""
        candidates = len(self.own) - len(self.shadow.labels) - len(self.held.labels)
        nobody = np.full(candidates, -1, dtype=np.int64)
        return np.concatenate([self.shadow.labels, self.held.labels, nobody])


def split_parts(secret: Secret, design: Design, seed: np.random.SeedSequence) -> Parts:
    """Split the records, then keep as many as the game allows.

    The shadow set is balanced: up to ``shadow / values`` records of each value (Li et al. 2024,
    section 5.1.4). A share of each value's is held out, where enough remain; of users, all records
    or none. The private set keeps the values' shares, but at least a batch of each.

    Raises:
        NotApplicable: a value has fewer records than a batch takes in the private or shadow set,
            or the private set cannot hold a batch of every value.
    """
    codes = secret.codes
    shadow, test, private = split(
        len(codes), secret.users, SHARES, sequence(seed, "split"), codes=codes
    )
    _expect_enough({"the shadow set": shadow, "the private set": private}, secret, design)
    generator = rng(seed, "kept")
    fit, held = _hold_out(shadow, secret, design, generator)
    kept = [
        generator.permutation(secret.having(value, private))[:quota]
        for value, quota in enumerate(_private_quotas(secret.counts(private), design, secret.name))
    ]
    return Parts(fit, held, test, np.sort(np.concatenate(kept)))


def _expect_enough(parts: Mapping[str, IntArray], secret: Secret, design: Design) -> None:
    """Name --merge-rare too among the remedies where a value has too few records."""
    size, values = design.batch_size, secret.values
    try:
        expect_enough(parts, secret.codes, values, size, secret.name)
    except NotApplicable as why:
        least = min(len(part) for part in parts.values()) / len(secret.codes)
        merge = f", or merge rare values (--merge-rare {int(np.ceil(size / least))})"
        raise TooFewRecords(f"{why}{merge if len(values) > 2 else ''}") from None


def _hold_out(
    members: IntArray, secret: Secret, design: Design, generator: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Splits shadow records into those to fit on and those held out, if enough are left."""
    quota = max(design.shadow // len(secret.values), 1)
    fit, held, whole, away = [], [], [], None
    if secret.users is not None:
        shares, seed = (1 - design.held_out, design.held_out), int(generator.integers(1 << 62))
        codes, users = secret.codes[members], secret.users[members]
        away = members[split(len(members), users, shares, seed, codes=codes)[1]]
    for value in range(len(secret.values)):
        of_value = generator.permutation(secret.having(value, members))
        cut = round(min(len(of_value), quota) * design.held_out)
        apart = np.arange(len(of_value)) < cut if away is None else np.isin(of_value, away)
        held.append(of_value[apart][:cut])
        fit.append(of_value[~apart][: quota - cut])
        whole.append(of_value[:quota])
    if min(map(len, fit + held)) < 2 * design.batch_size:
        return np.sort(np.concatenate(whole)), np.zeros(0, dtype=np.int64)
    return np.sort(np.concatenate(fit)), np.sort(np.concatenate(held))


def _private_quotas(counts: IntArray, design: Design, secret: str) -> IntArray:
    """Choose how many private records of each value to keep: at least one batch each.

    Raises:
        NotApplicable: so many batches are more than the private set holds.
    """
    total, least = int(counts.sum()), design.batch_size
    if total <= design.private:
        return counts
    if least * len(counts) > design.private:
        raise TooFewRecords(
            f"{secret}: a batch of {least} records of each of its {len(counts)} values takes "
            f"{least * len(counts)} private records, and the private set holds {design.private}: "
            f"give --samples {least * len(counts)}, or batches of at most "
            f"{design.private // len(counts)}"
        )
    few = np.zeros(len(counts), dtype=bool)
    while True:
        share = (design.private - least * few.sum()) / counts[~few].sum()
        wanted = np.where(few, least, counts * share)
        if not (short := wanted < least).any():
            break
        few |= short
    return _whole(wanted, design.private)


def _whole(shares: FloatArray, total: int) -> IntArray:
    """Round shares to whole numbers of this sum by the largest remainders."""
    counts = np.floor(shares).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(counts - shares, kind="stable")[:missing]] += 1
    return counts


def trials_of(prior: FloatArray, trials: int) -> IntArray:
    """Choose how many trials each value has: in proportion to the prior, at least one each.

    Fewer trials than values become one of each.
    """
    trials = max(trials, len(prior))
    counts = _whole(prior * trials, trials)
    while not counts.all():
        counts[counts.argmax()] -= 1
        counts[counts.argmin()] += 1
    return counts


def no_batches(size: int) -> Batches:
    """An empty set of batches."""
    return Batches(np.zeros((0, size), dtype=np.int64), np.zeros(0, dtype=np.int64))
