"""Intervals of usable information and its AUROC, on records whose gradients are normal."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.coverage.studies.base import Cell, Outcome, Study, interval
from gradaudit.audits.vinfo.repetitions import Question, Repetition, repetitions
from gradaudit.audits.vinfo.spread import RecordUse, auroc_interval, information_interval
from gradaudit.audits.vinfo.v_information import Estimator, UsableInformation, estimate
from gradaudit.core.statistics.intervals import clopper_pearson

FEATURES = 10
REPEATS = 8
BATCHES = 64
SAMPLES = 300
"""Of the independent simulation of the truth, of one repetition each."""
ATTACKS = {"null": 0.5, "weak": 0.65, "strong": 0.95, "plain": 0.999}
"""AUROC, in batches, of who knows the two classes."""
COVERED = "null", "weak", "strong"
"""Plants of the cells that are about coverage alone."""
NATS, AUROC = 0.1, 0.75
"""The lowest limits of the default policy."""


@dataclass(frozen=True)
class World:
    """Records of two values that are apart in one of ten directions.

    Attributes:
        attack: name of the plant.
        records: how many.
        batch: k.
        share: of the second value.
        users: how many have the records, each of one value; 0 for records of their own.
        family: the adversary's.
        batches: of each value, to fit on.
    """

    attack: str
    records: int
    batch: int
    share: float = 0.5
    users: int = 0
    family: str = "discriminant"
    batches: int = BATCHES

    def found(self, seed: int, repeats: int) -> tuple[list[UsableInformation], RecordUse]:
        """The package's own splits, batches, fits and estimates, on one sample of records."""
        generator = np.random.default_rng([seed, self.records, self.batch])
        features, codes, users = self._drawn(generator)
        root = np.random.SeedSequence([seed, 7])
        pool = np.arange(len(codes))
        asked = Question(
            "a", ("0", "1"), codes, users, pool, self.batch, self.batches, None, repeats, root
        )
        adversary, played = Estimator((self.family,)), list(repetitions(asked))
        found = [
            estimate(
                _rows(features, each),
                each,
                adversary,
                np.random.SeedSequence([seed, number]),
                lambda _: None,
            )
            for number, each in enumerate(played)
        ]
        return found, RecordUse.of(played[0])

    def _drawn(
        self, generator: np.random.Generator
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.str_] | None]:
        count = self.users or self.records
        codes = (np.arange(count) < round(self.share * count)).astype(np.int64)
        owner = np.arange(self.records) * count // self.records
        features = generator.standard_normal((self.records, FEATURES))
        if self.users:
            features = (features + generator.standard_normal((count, FEATURES))[owner]) / 2**0.5
        apart = 2**0.5 * stats.norm.ppf(ATTACKS[self.attack]) / self.batch**0.5
        features[:, 0] += apart * codes[owner]
        names = owner.astype(np.str_) if self.users else None
        return features.astype(np.float32), codes[owner], names


def _rows(features: NDArray[np.float32], repetition: Repetition) -> NDArray[np.float32]:
    drawn = np.concatenate([each.indices for each in repetition.batches])
    return np.asarray(features[drawn].mean(axis=1))


@cache
def truth(world: World) -> tuple[float, float]:
    """Mean information, not below 0, and AUROC of other samples of records."""
    samples = SAMPLES if world.family == "discriminant" else SAMPLES // 4
    found = [world.found(10**6 + seed, 1)[0][0] for seed in range(samples)]
    information = float(np.mean([each.information for each in found]))
    return max(0.0, information), float(np.mean([each.auroc for each in found]))


def play(world: World, repeats: int, seed: int) -> Mapping[str, Outcome]:
    """Both intervals of one sample of records; and, of nothing, what the default policy says."""
    found, sampled = world.found(seed, repeats)
    nats, auroc = truth(world)
    of_nats, of_auroc = information_interval(found, sampled), auroc_interval(found, sampled)
    outcomes = {"vinfo": interval(*of_nats, nats), "auroc": interval(*of_auroc, auroc)}
    shown = of_nats[0] > NATS or of_auroc[0] > AUROC
    if world.attack == "null":
        outcomes["nothing is shown of nothing"] = Outcome(not shown)
    if world.attack == "null" and world.records >= 2000:
        outcomes["nothing passes"] = Outcome(of_nats[1] <= NATS and of_auroc[1] <= AUROC)
    if world.attack == "strong" and world.records >= 1000:
        outcomes["power: much is shown"] = Outcome(shown)
    if world.attack == "plain":
        outcomes["power: auroc shown to exceed .75"] = Outcome(of_auroc[0] > AUROC)
        outcomes["power: by an oracle with as many batches"] = Outcome(
            oracle(round(sampled.disjoint), auroc, seed)
        )
    return outcomes


def oracle(batches: int, auroc: float, seed: int) -> bool:
    """Whether Clopper and Pearson's interval of so many pairs, each of two batches, exceeds .75.

    The oracle knows both classes and ranks every pair right with the probability ``auroc``.
    """
    hits = int(np.random.default_rng([seed, batches]).binomial(batches, auroc))
    return clopper_pearson(hits, batches)[0] > AUROC


def cell(world: World, repeats: int = REPEATS) -> Cell:
    settings: dict[str, str | int | float] = {"plant": world.attack, "records": world.records}
    settings["batch"] = world.batch
    usual = World(world.attack, world.records, world.batch)
    for name in ("share", "users", "family", "batches"):
        if getattr(world, name) != getattr(usual, name):
            settings[name] = getattr(world, name)
    if world.batches != BATCHES:
        settings["repeats"] = repeats
    return Cell(settings, partial(play, world, repeats), (0.93, 1.0))


def quick() -> Iterator[Cell]:
    for attack in COVERED:
        yield cell(World(attack, 600, 8))


def full() -> Iterator[Cell]:
    for attack in COVERED:
        for records, batch in ((100, 1), (100, 4), (400, 16)):
            yield cell(World(attack, records, batch))
        for records, batch in ((200, 1), (200, 8), (200, 16), (600, 1), (600, 8), (600, 16)):
            yield cell(World(attack, records, batch))
        for records, batch in ((1000, 16), (2000, 1), (2000, 8), (2000, 16)):
            yield cell(World(attack, records, batch))
        for share, batch in ((0.05, 1), (0.1, 4)):
            yield cell(World(attack, 2000, batch, share))
        for users, batch in ((24, 16), (60, 1)):
            yield cell(World(attack, 1440, batch, users=users))
        for batch in (1, 16):
            yield cell(World(attack, 200, batch, batches=32), repeats=3)
    yield cell(World("strong", 600, 8, family="forest", batches=20), repeats=5)
    for records, batch in ((100, 1), (200, 16), (300, 16), (400, 16), (600, 16)):
        yield cell(World("plain", records, batch))


STUDY = Study(
    name="vinfo",
    says=(
        "The package's splits, batches, fits and intervals (8 repetitions) on normal records of "
        "two values; Fisher's discriminant stands for the families, and the forest in the cells "
        "that say so. The truth is what an adversary with as many records learns on average, by "
        "300 other samples (75 with the forest), not below 0; where there is no information, "
        "an interval that begins at 0 is right."
    ),
    quick=quick,
    full=full,
    notes=(
        "Plants are named by the AUROC of who knows the classes: .5, .65, .95, .999; with few "
        "records less is learned.",
    ),
)
