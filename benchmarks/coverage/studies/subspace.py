"""The permutation test of the subspace audit: its level without and with users, and its power."""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.coverage.studies.base import Cell, Outcome, Settings, Study
from gradaudit.audits.subspace.comparing import PrincipalAngles
from gradaudit.audits.subspace.distances import compare_samples
from gradaudit.audits.subspace.groups import Split, splits_of
from gradaudit.audits.subspace.means import MatrixForm, MeanGroups
from gradaudit.data.records import Attribute, Records
from gradaudit.errors import GradauditError

PERMUTATIONS = 99
LEVEL = 0.05
_SCALES = np.array([4.0, 3.0, 2.0, 1.5, 1.0, 0.7, 0.5, 0.3, 0.2, 0.1])
_SHIFTS = {"null": 0.0, "weak": 0.3, "strong": 1.0}
GROUPINGS = ((0, ""), (20, "users"), (60, "users"), (20, "records of each user"))
_USER = 1.5
"""Spread between users, in units of that between a user's records."""


def records_of(codes: NDArray[np.int64], users: NDArray[np.int64] | None) -> Records:
    """Records of which only the attribute and the users are looked at."""
    nothing = torch.zeros(len(codes), 1)
    attributes = {"a": Attribute(codes, ("no", "yes"))}
    named = None if users is None else users.astype(str)
    return Records(nothing, nothing[:, 0], attributes=attributes, users=named)


def vectors_of(
    generator: np.random.Generator, codes: NDArray[np.int64], owner: NDArray[np.int64], shift: float
) -> NDArray[np.float64]:
    """Gradients (records, 4 x 12) of rank one, as of a linear layer: δ xᵀ with ten live inputs."""
    records = len(codes)
    inputs = generator.normal(size=(records, 12))
    inputs += _USER * generator.normal(size=(owner.max() + 1, 12))[owner]
    inputs[:, :10] *= _SCALES
    inputs[:, 10:] = 0
    inputs[:, 7] += shift * _SCALES[0] * codes * (1 + generator.normal(size=records))
    deltas = generator.normal(size=(records, 4)) + 0.5
    found: NDArray[np.float64] = (deltas[:, :, None] * inputs[:, None, :]).reshape(records, -1)
    return found


def compared(
    reading: str, vectors: NDArray[np.float64], split: Split
) -> PrincipalAngles | GradauditError:
    """One comparison by the audit's own code."""
    if reading == "samples":
        return compare_samples(vectors, [split], 1 << 26)[0]
    groups = MeanGroups.of(MatrixForm(((4, 12),)), vectors, split)
    return groups.compared([portion(lambda units: None) for portion in groups.portions(1 << 26)])


def play(
    seed: int, *, reading: str, records: int, users: int, constant: bool, shift: float
) -> Mapping[str, Outcome]:
    """One test at 5 %."""
    generator = np.random.default_rng(seed)
    owner = np.arange(records)
    codes = generator.permutation(records) % 2
    if users:
        owner = np.sort(np.append(np.arange(users), generator.integers(0, users, records - users)))
        codes = (generator.permutation(users) % 2)[owner] if constant else codes
    vectors = vectors_of(generator, codes, owner, shift)
    data = records_of(codes, owner if users else None)
    (split,) = splits_of(data, ["a"], PERMUTATIONS, seed)
    found = compared(reading, vectors, split)
    if split.refusal or isinstance(found, GradauditError):
        return {f"p > {LEVEL}": Outcome(None)}
    reached = found.p_value("grassmann") <= LEVEL
    if shift:
        return {f"p ≤ {LEVEL}": Outcome(reached)}
    return {f"p > {LEVEL}": Outcome(not reached)}


def cell(reading: str, plant: str, records: int, users: int, permuted: str) -> Cell:
    settings: Settings = {"reading": reading, "plant": plant, "records": records}
    if users:
        settings = {**settings, "users": users, "permuted": permuted}
    play_one = partial(
        play,
        reading=reading,
        records=records,
        users=users,
        constant=permuted == "users",
        shift=_SHIFTS[plant],
    )
    power = (0.9, 1.0) if (reading, plant) == ("samples", "strong") else (0.0, 1.0)
    return Cell(settings, play_one, (0.90, 0.99) if plant == "null" else power)


def quick() -> Iterator[Cell]:
    for reading in ("samples", "mean"):
        yield cell(reading, "null", 200, 0, "")
        yield cell(reading, "null", 200, 20, "users")


def full() -> Iterator[Cell]:
    yield cell("samples", "null", 32, 0, "")
    yield cell("mean", "null", 32, 0, "")
    for records in (200, 600, 2000):
        for users, permuted in GROUPINGS:
            yield cell("samples", "null", records, users, permuted)
        for users, permuted in GROUPINGS[:2]:
            yield cell("samples", "weak", records, users, permuted)
            yield cell("samples", "strong", records, users, permuted)
            yield cell("mean", "null", records, users, permuted)
        yield cell("mean", "strong", records, 0, "")


STUDY = Study(
    name="subspace",
    says="Permutation tests of gradients of rank one whose users have inputs of their own, by "
    "`subspaces.measure`, `subspaces.means` and `subspaces.splits`; the attribute tells nothing "
    "(null: a p-value above .05 is right), or moves and spreads an input that is else quiet (weak, "
    "strong: one of at most .05 is right, and the share of them is the power).",
    quick=quick,
    full=full,
    notes=("For plants the share is the power; only that of `samples` is asked for at 90 %.",),
)
