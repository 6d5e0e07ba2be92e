"""Forests whose nodes try one cut a column, all grown at once, against other ways to grow them.

    python -m benchmarks.coverage.forests [--seeds 3] [--studies digits,adult,ravdess]
        [--games 'vinfo,attack property,attack distribution'] [--ordered]

A node of Breiman's trees (scikit-learn's) finds the best cut of each of √columns columns; a node of
ours tries one in each of 3√columns, half way between two of its rows. Both play the same games of
the same seeds: V-information (Mo et al. 2021) of single layers, and property and distribution
inference (Li et al. 2024), on the sample model, Adult, UTKFace and RAVDESS. With ``--ordered``
distribution inference compares one forest for all thresholds with one for each (Frank and Hall).
Printed: each score of the whole update and the mean over layers, the mean difference over seeds
with its standard error, and the CPU seconds of fits and votes, one thread.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from sklearn import config_context
from sklearn.tree import DecisionTreeRegressor

import gradaudit
from benchmarks.harness import DATA, SAMPLES, arguments
from gradaudit.families.base import Family, Features, FloatArray, Scale, Training
from gradaudit.families.forest import FittedForest, Forest, times_drawn
from gradaudit.report import Report

ATTACK: dict[str, Any] = {"batches": 300, "trials": 1000, "repeats": 1, "family": ["forest"]}
GAMES: dict[str, dict[str, Any]] = {
    "vinfo": {"batches": 64, "repeats": 3, "family": ["forest"], "correlation": False},
    "attack property": ATTACK,
    "attack distribution": ATTACK,
}
SCORES = ("vinfo.vinfo", "vinfo.auroc", "attack.asr", "attack.auroc")


class Study(NamedTuple):
    """A model, its data, the attribute that is asked about, and the one with ordered values."""

    model: str
    data: str
    attribute: str
    checkpoints: tuple[Path, ...] = ()
    ordered: str = ""


STUDIES = {
    "digits": Study(
        f"{SAMPLES / 'models.py'}:digits_cnn",
        "digits",
        "slant",
        (SAMPLES / "digits" / "round-10.safetensors",),
        "ink",
    ),
    "adult": Study(
        "zoo:mlp?inputs=108&classes=2&hidden=64",
        f"csv:{DATA / 'adult.csv'}?label=income&scale=standard&attribute=sex",
        "sex",
    ),
    "utkface": Study(
        "zoo:lenet?classes=2",
        f"npz:{DATA / 'utkface_32.npz'}?inputs=images&label=gender&attribute=race",
        "race",
    ),
    "ravdess": Study(
        "zoo:mlp?inputs=988&classes=8",
        f"npz:{DATA / 'ravdess_emobase.npz'}?inputs=features&label=emotion&attribute=gender"
        "&scale=standard",
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
        rows, trees = training.rows.scale(training.rows.features).astype(np.float32, order="F"), []
        drawn = times_drawn(training.labels, training.prior, generator, forest.bootstrap)
        for times in drawn.astype(float):
            state = int(generator.integers(2**31))
            tree = DecisionTreeRegressor(max_features="sqrt", random_state=state)
            with config_context(skip_parameter_validation=True):
                tree.fit(rows, targets, sample_weight=times, check_input=False)
            trees.append(tree)
        return cls(training.rows.scale, trees)

    def votes(self, features: Features) -> FloatArray:
        """In place of ``Trees.votes``."""
        rows = self.scale(features).astype(np.float32)
        votes = np.mean([tree.predict(rows, check_input=False) for tree in self.trees], axis=0)
        return np.asarray(votes.reshape(len(rows), -1))


Ways = Mapping[str, Mapping[tuple[type, str], Callable[..., Any]]]
"""For each way of growing: what stands in place of which method."""
VOTES: dict[tuple[type, str], Callable[..., Any]] = {(FittedForest, "votes"): FittedForest.votes}
GROWN: Ways = {
    "Breiman": {(Forest, "_grown"): Breiman.grown, **VOTES},
    "ours": {(Forest, "_grown"): Forest._grown, **VOTES},
}
ORDERED: Ways = {
    "each": {(Forest, "fit_ordered"): Family.fit_ordered},
    "shared": {(Forest, "fit_ordered"): Forest.fit_ordered},
}


@contextmanager
def fitted(ways: Mapping[tuple[type, str], Callable[..., Any]]) -> Iterator[list[float]]:
    """Forests fitted in this way; the CPU seconds of every fit and of its votes."""
    seconds: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            begun = time.process_time()
            found = function(*arguments)
            seconds.append(time.process_time() - begun)
            return found

        return call

    with ExitStack() as stack:
        for (kind, name), function in ways.items():
            stack.enter_context(patch.object(kind, name, timed(function)))
        yield seconds


def played(
    study: Study, game: str, options: dict[str, Any], attribute: str, seed: int
) -> dict[str, float]:
    rounds = {} if study.checkpoints or game == "vinfo" else {"rounds": 1}
    report = gradaudit.audit(
        study.model,
        study.data,
        audits={game: options | rounds},
        attributes=[attribute],
        checkpoints=study.checkpoints,
        seed=seed,
    )
    return scores(report)


def scores(report: Report) -> dict[str, float]:
    """Of the whole update, and means over layers."""
    found: dict[str, list[float]] = {}
    for metric in SCORES:
        for row in report.select(metric, variant={}):
            if row.number is not None:
                name = metric if row.layer is None else f"{metric}, layers"
                found.setdefault(name, []).append(row.number)
    return {name: float(np.mean(values)) for name, values in found.items()}


def compare(title: str, ways: Ways, play: Callable[[int], dict[str, float]], seeds: int) -> None:
    """What both ways score in turn: means, and the difference with its standard error."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    seconds = dict.fromkeys(ways, 0.0)
    for seed in range(seeds):
        for way, methods in ways.items():
            with fitted(methods) as each:
                found[way].append(play(seed))
            seconds[way] += sum(each)
    print(f"{title}:", ", ".join(f"{spent:.1f} s {way}" for way, spent in seconds.items()))
    for score in next(iter(found.values()))[0]:
        values = {way: np.array([each[score] for each in found[way]]) for way in ways}
        before, now = values.values()
        error = (now - before).std(ddof=1) / len(now) ** 0.5
        told = ", ".join(f"{value.mean():.4f} {way}" for way, value in values.items())
        difference = f"{(now - before).mean():+.4f} ± {error:.4f}"
        print(f"  {score:24} {told}, difference {difference}", flush=True)


def main() -> None:
    given = arguments(__doc__)
    games = ["attack distribution"] if given.ordered else given.games.split(",")
    for name, game in product(given.studies.split(","), games):
        study = STUDIES[name]
        attribute = study.ordered or study.attribute if given.ordered else study.attribute
        options = GAMES[game] | ({"batches": 150} if given.ordered else {})
        play = partial(played, study, game, options, attribute)
        compare(f"{name}, {game}", ORDERED if given.ordered else GROWN, play, given.seeds)


if __name__ == "__main__":
    main()
