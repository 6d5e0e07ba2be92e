"""The whole update against its layers: the best reader by held-out batches, and all of them pooled.

    python -m benchmarks.coverage.pooled_layers [--seeds 6] [--games slant,ink,sex,user]
        [--family forest,norms]

Each seed plays an inference attack (Li et al. 2024) on one split of the records, with the true
secret and with the secret shuffled among the records. Told are mean AUROCs of private batches by
ways to answer from the whole update: the reader that is best on held-out batches, the reader of all
elements together, the mean of all readers' log odds, and of their log odds with weights fitted to
held-out batches with a ridge towards equal ones, and the mean of their posteriors with weights
∝ exp(−c·n·loss), c = 0 being equal ones. Beside them stand every layer's
own, and the best layer of each seed as private batches tell it, which no attacker can choose. What
``gradaudit.audits.attack_inference.readers`` does is c = 1.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

import gradaudit
from benchmarks.coverage.forests import STUDIES
from benchmarks.harness import DATA, arguments
from gradaudit.audits.attack_inference import adversary, readers
from gradaudit.audits.attack_inference.readers import Guesses, independent, pooled
from gradaudit.audits.attack_inference.split import GameSplit
from gradaudit.audits.vinfo.v_information import macro_auroc

ADULT = f"csv:{DATA / 'adult.csv'}?label=income"
OPTIONS: dict[str, object] = {"batches": 100, "repeats": 1, "trials": 600, "rounds": 1}


class Game(NamedTuple):
    """An attack, its model and data, and the secret."""

    attack: str
    model: str
    data: str
    attributes: Sequence[str] = ()
    checkpoints: Sequence[Path] = ()
    size: int | None = None


GAMES = {
    "slant": Game(
        "property", STUDIES["digits"].model, "digits", ["slant"], STUDIES["digits"].checkpoints
    ),
    "ink": Game(
        "property", STUDIES["digits"].model, "digits", ["ink"], STUDIES["digits"].checkpoints
    ),
    "sex": Game(
        "property",
        "zoo:mlp?inputs=106&classes=2&hidden=64x32",
        f"{ADULT}&drop=sex",
        ["sex"],
        size=2,
    ),
    "user": Game("user", "zoo:mlp?inputs=107&classes=2&hidden=64x32", f"{ADULT}&user=age"),
}


class Played(NamedTuple):
    """The readers of a split, of which the last reads all elements."""

    readers: Sequence[Guesses]
    split: GameSplit


def played(game: Game, family: str, seed: int) -> tuple[Played, Played]:
    """With the true secret, and with the secret shuffled."""
    seen: list[Played] = []

    def watched(several: Sequence[Guesses], split: GameSplit) -> Guesses:
        if len({source for reader in several for source in reader.reads}) > 1:
            seen.append(Played(several, split))
        return pooled(several, split)

    options = OPTIONS | {"family": family.split(","), "batch_size": game.size}
    with patch.object(adversary, "pooled", watched):
        gradaudit.audit(
            game.model,
            game.data,
            audits={f"attack {game.attack}": options},
            attributes=list(game.attributes),
            checkpoints=list(game.checkpoints),
            seed=seed,
        )
    real, shuffled = seen
    return real, shuffled


def mixed(of: Played, weights: np.ndarray, *, held: bool = False) -> np.ndarray:
    """The readers' calibrated log odds with these weights, (batches, values)."""
    prior = np.log(of.split.prior) * (not held)
    evidence = 0.0
    for weight, reader in zip(weights, of.readers, strict=True):
        heat = reader.temperature.value if reader.temperature else 1.0
        said = reader.held if held else reader.posterior
        evidence = evidence + weight / heat * (said - prior)
    return np.asarray(log_softmax(evidence + prior, axis=1))


def ridge(of: Played) -> np.ndarray:
    """Weights of the least log loss on held-out batches, with a ridge towards equal ones."""
    count, labels = len(of.readers), of.split.held.labels

    def loss(weights: np.ndarray) -> float:
        said = mixed(of, weights, held=True)[np.arange(len(labels)), labels]
        return float(-said.mean() * independent(of.split) + ((weights - 1 / count) ** 2).sum())

    return minimize(loss, np.full(count, 1 / count), bounds=[(0, None)] * count).x


def ways(of: Played) -> Mapping[str, float]:
    """AUROCs on the private batches."""
    labels, count = of.split.observed.labels, len(of.readers)
    losses = [reader.held_out_loss for reader in of.readers]
    single = [macro_auroc(reader.posterior, labels) for reader in of.readers]
    found = {
        "all elements": single[-1],
        "best layer": max(single[:-1]),
        "log odds": macro_auroc(mixed(of, np.full(count, 1 / count)), labels),
        "pool": macro_auroc(pooled(of.readers, of.split).posterior, labels),
    }
    if np.isfinite(losses).all():
        found["chosen"] = single[int(np.argmin(losses))]
        for share in (0.0, 0.5, 2.0):
            apart = share * independent(of.split)
            with patch.object(readers, "independent", return_value=apart):
                area = macro_auroc(pooled(of.readers, of.split).posterior, labels)
            found[f"pool, c = {share:g}"] = area
        found["ridge"] = macro_auroc(mixed(of, ridge(of)), labels)
    names = [next(iter(reader.reads)) for reader in of.readers[:-1]]
    return found | {f"layer {name}": area for name, area in zip(names, single, strict=False)}


def main() -> None:
    given = arguments(__doc__)
    for name in given.games.split(","):
        each = [played(GAMES[name], given.family, seed) for seed in range(given.seeds)]
        for title, of in zip(("true", "shuffled"), zip(*each, strict=True), strict=True):
            found = [ways(one) for one in of]
            told = (f"{way} {np.mean([one[way] for one in found]):.3f}" for way in found[0])
            print(f"{name}, {title}: {', '.join(told)}", flush=True)


if __name__ == "__main__":
    main()
