"""Splits records between attacker and clients, and draws batches with their candidates.

No record, and no user, is in two sets: what the attacker fits and chooses on is never attacked.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gradaudit.audits.attack_record import RecordOptions
from gradaudit.core.randomness import rng, sequence
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.games.splits import owners, split
from gradaudit.subject import Subject

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
FEWEST_OUTSIDE = 16
"""Least number of records outside of a batch that those in it are compared with."""


@dataclass(frozen=True)
class RecordSets:
    """Indices of records: to fit on, to choose the statistic on, and those that are attacked."""

    fit: IntArray
    choose: IntArray
    score: IntArray


@dataclass(frozen=True)
class CandidatePairs:
    """Pairs of an update and a candidate, and whether the update contains it.

    Attributes:
        updates: (pairs,) which update.
        records: (pairs,) which record.
        inside: (pairs,) whether the record is behind the update.
    """

    updates: IntArray
    records: IntArray
    inside: BoolArray


def sets_of(subject: Subject, options: RecordOptions, *, fitted: int) -> RecordSets:
    """Split the records; those that are asked about, with their users, are attacked.

    Args:
        subject: whose ``samples`` is the most records that are dealt out.
        options: of the audit.
        fitted: records to fit on.

    Raises:
        UsageError: a record is asked about that the data does not have.
        NotApplicable: there are too few records.
    """
    count, behind = len(subject.records), options.records_behind
    if max((*options.given, *options.records), default=0) >= count:
        wrong = max((*options.given, *options.records))
        raise UsageError(f"record {wrong}: the data has {count} records, counted from 0")
    total = min(subject.samples or count, count)
    fitted = min(fitted, total // 3)
    each = min(2 * behind + options.candidates, (total - fitted) // 2)
    shares = (fitted, each, each, count - fitted - 2 * each)
    draws = sequence(subject.seed, "record", "split")
    fit, choose, score, _ = split(count, subject.records.users, shares, draws)
    asked = np.unique(np.array([*options.given, *options.records], dtype=np.int64))
    theirs = np.isin(owners(subject.records.users, count), owners_of(subject.records, asked))
    fit, choose = fit[~theirs[fit]], choose[~theirs[choose]]
    sets = RecordSets(fit, choose, np.union1d(score, asked))
    least = min(len(choose), len(score)) - behind
    if least < FEWEST_OUTSIDE or len(fit) < 8:
        needed = 3 * (behind + FEWEST_OUTSIDE)
        raise NotApplicable(
            f"{behind} records behind an update, and as many for the attacker, with "
            f"{FEWEST_OUTSIDE} others beside each take about {needed} records; of {total} that are "
            "looked at there are too few: give more records, or lower --batch-size or --others"
        )
    return sets


def owners_of(records: Records, indices: IntArray) -> IntArray:
    """Look up the owners' numbers of some records."""
    return owners(records.users, len(records))[indices]


def batches_of(pool: IntArray, count: int, behind: int, seed: int, purpose: str) -> IntArray:
    """Batches (count, behind) of different records of a pool, drawn anew for each."""
    draws = rng(seed, "record", "batches", purpose)
    return np.stack([draws.permutation(pool)[:behind] for _ in range(count)])


def pairs_of(
    batches: IntArray, pool: IntArray, alike: IntArray, most: int, seed: int
) -> CandidatePairs:
    """Every record of every batch, and beside each batch at most so many records outside of it.

    Args:
        batches: (updates, behind) indices of records.
        pool: indices of the records that candidates are.
        alike: (records,) numbers; equal ones are of records that nothing tells apart, which are in
            a batch where one of them is.
        most: candidates outside of a batch.
        seed: of their choice.
    """
    draws = rng(seed, "record", "candidates")
    updates, records = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    inside = [np.zeros(0, bool)]
    for number, batch in enumerate(batches):
        outside = draws.permutation(pool[~np.isin(alike[pool], alike[batch])])[:most]
        records.append(np.concatenate([batch, outside]))
        updates.append(np.full(len(records[-1]), number))
        inside.append(np.arange(len(records[-1])) < len(batch))
    return CandidatePairs(np.concatenate(updates), np.concatenate(records), np.concatenate(inside))


def alike(records: Records) -> IntArray:
    """Number records (records,) so that equal inputs and labels have equal numbers."""
    parts = [
        records.inputs.flatten(1),
        records.labels.flatten(1) if records.labels.dim() > 1 else records.labels[:, None],
    ]
    rows = torch.cat([part.double() for part in parts], dim=1).numpy()
    whole = np.ascontiguousarray(rows).view(f"V{rows.shape[1] * rows.itemsize}")[:, 0]
    return np.unique(whole, return_inverse=True)[1].astype(np.int64)
