"""Forests whose nodes try one cut a column, all grown at once, against Breiman's of scikit-learn.

    python benchmarks/forests.py [--seeds 3] [--studies digits,adult,ravdess] [--synthetic]

A node of Breiman's trees finds the best cut of each of √columns columns; a node of ours tries one
in each of 3√columns, half way between two of its rows. Both play the same games of the same seeds:
V-information (Mo et al. 2021) of single layers, and property and distribution inference (Li et al.
2024), on the sample model, Adult, UTKFace and RAVDESS. Printed: the mean over layers of each score,
the mean difference over seeds with its standard error, and the CPU seconds of fits and votes, one
thread. With
``--synthetic`` also Gaussian classes of known information, of which one column or all tell
something. Needs ../shared/data beside the checkout, or GRADAUDIT_SHARED.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
from ordered_forests import SHARED, Study
from ordered_forests import STUDIES as ORDERED
from sklearn import config_context
from sklearn.tree import DecisionTreeRegressor

import gradaudit
from gradaudit.audits.vinfo.v_information import BatchSets, LabelledFeatures, v_information
from gradaudit.families.base import Features, FloatArray, Scale, Training
from gradaudit.families.forest import FittedForest, Forest, times_drawn
from gradaudit.report import Report

GAMES = {
    "vinfo": {"batches": 64, "repeats": 3, "family": ["forest"], "correlation": False},
    "attack property": {"batches": 300, "trials": 1000, "repeats": 1, "family": ["forest"]},
    "attack distribution": {"batches": 300, "trials": 1000, "repeats": 1, "family": ["forest"]},
}
SCORES = ("vinfo.vinfo", "vinfo.auroc", "attack.auroc")


STUDIES = {
    **ORDERED,
    "digits": ORDERED["digits"]._replace(attribute="slant"),
    "ravdess": Study(
        "zoo:mlp?inputs=988&classes=8",
        f"npz:{SHARED / 'data' / 'ravdess_emobase.npz'}?inputs=features&label=emotion"
        "&attribute=gender&scale=standard",
        "gender",
    ),
}


@dataclass(frozen=True)
class Breiman:
    """Trees of scikit-learn, as Breiman grows them."""

    scale: Scale
    trees: list[Any]

    @classmethod
    def grown(
        cls, forest: Forest, training: Training, targets: FloatArray, generator: Any
    ) -> "Breiman":
        """In place of ``Forest._grown``."""
        rows, trees = training.scale(training.features).astype(np.float32, order="F"), []
        drawn = times_drawn(training.labels, training.prior, generator, forest.bootstrap)
        for times in drawn.astype(float):
            state = int(generator.integers(2**31))
            tree = DecisionTreeRegressor(max_features="sqrt", random_state=state)
            with config_context(skip_parameter_validation=True):
                tree.fit(rows, targets, sample_weight=times, check_input=False)
            trees.append(tree)
        return cls(training.scale, trees)

    def votes(self, features: Features) -> FloatArray:
        """In place of ``Trees.votes``."""
        rows = self.scale(features).astype(np.float32)
        votes = np.mean([tree.predict(rows, check_input=False) for tree in self.trees], axis=0)
        return np.asarray(votes.reshape(len(rows), -1))


WAYS: dict[str, Callable[..., Any]] = {"breiman": Breiman.grown, "ours": Forest._grown}


@contextmanager
def fitted(way: str) -> Iterator[list[float]]:
    """Forests fitted in this way; the CPU seconds of every fit and of its votes."""
    seconds: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            begun = time.process_time()
            found = function(*arguments)
            seconds.append(time.process_time() - begun)
            return found

        return call

    votes = timed(FittedForest.votes)
    with (
        patch.object(Forest, "_grown", timed(WAYS[way])),
        patch.object(FittedForest, "votes", votes),
    ):
        yield seconds


def played(study: Study, game: str, seed: int) -> Report:
    rounds = {} if study.checkpoints or game == "vinfo" else {"rounds": 1}
    return gradaudit.audit(
        study.model,
        study.data,
        audits={game: GAMES[game] | rounds},
        attributes=[study.attribute],
        checkpoints=study.checkpoints,
        seed=seed,
    )


def scores(report: Report) -> dict[str, float]:
    """Means over layers."""
    found = {}
    for metric in SCORES:
        rows = report.select(metric, variant={})
        values = [row.number for row in rows if row.layer is not None and row.number is not None]
        if values:
            found[metric] = float(np.mean(values))
    return found


def gaussian(shift: float, telling: int, columns: int, seed: int) -> BatchSets:
    """Folds of 64 rows and 512 to score, with 0 or 1 told alike by so many of the columns."""
    generator = np.random.default_rng(seed)

    def drawn(rows: int) -> LabelledFeatures:
        labels = np.arange(rows) % 2
        features = generator.standard_normal((rows, columns), dtype=np.float32)
        features[:, :telling] += (shift / telling**0.5 * labels[:, None]).astype(np.float32)
        return LabelledFeatures(features, labels)

    return BatchSets((drawn(64), drawn(64), drawn(64)), drawn(512))


def synthetic(seeds: int) -> None:
    for shift in (1.0, 2.0, 4.0):
        for telling, columns in ((1, 3), (1, 30), (1, 300), (30, 30), (30, 1000), (1000, 1000)):
            found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
            for seed in range(seeds):
                sets = gaussian(shift, telling, columns, seed)
                for way in WAYS:
                    with fitted(way):
                        usable = v_information(
                            sets, np.full(2, 0.5), ("forest",), np.random.SeedSequence(seed)
                        )
                    found[way].append((usable.information, usable.auroc))
            print(f"{shift:g} apart, told by {telling} of {columns} columns:", flush=True)
            for place, name in enumerate(("information", "auroc")):
                tell(name, {way: [each[place] for each in found[way]] for way in WAYS})


def tell(name: str, found: dict[str, list[float]]) -> None:
    """Means, and the difference with its standard error."""
    difference = np.subtract(found["ours"], found["breiman"])
    error = difference.std(ddof=1) / len(difference) ** 0.5
    print(
        f"  {name:20} {np.mean(found['breiman']):.4f} Breiman, {np.mean(found['ours']):.4f} ours, "
        f"difference {difference.mean():+.4f} ± {error:.4f}",
        flush=True,
    )


def compare(name: str, game: str, seeds: int) -> None:
    """A game of a study by both forests, in turn."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    seconds = dict.fromkeys(WAYS, 0.0)
    for seed in range(seeds):
        for way in WAYS:
            with fitted(way) as each:
                found[way].append(scores(played(STUDIES[name], game, seed)))
            seconds[way] += sum(each)
    print(
        f"{name}, {game}: {seconds['breiman']:.1f} s Breiman, {seconds['ours']:.1f} s ours, "
        f"{seconds['breiman'] / seconds['ours']:.1f} times",
        flush=True,
    )
    for score in found["ours"][0]:
        tell(score, {way: [each[score] for each in found[way]] for way in WAYS})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--studies", default="digits,adult,ravdess", help=", ".join(STUDIES))
    parser.add_argument("--games", default=",".join(GAMES))
    parser.add_argument("--synthetic", action="store_true")
    given = parser.parse_args()
    if given.synthetic:
        synthetic(given.seeds)
    for name, game in product(filter(None, given.studies.split(",")), given.games.split(",")):
        compare(name, game, given.seeds)


if __name__ == "__main__":
    main()
