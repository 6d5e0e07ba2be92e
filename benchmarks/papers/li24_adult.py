"""Li et al. 2024 on Adult: the paper's figures beside ours, with the conditions of both.

    python -m benchmarks.papers.li24_adult [SECTIONS …] [--seed 0]

Income is the task, sex the secret, the model an MLP with one hidden layer of 100 units from random
weights, SGD with rate 0.01 and one epoch a round on 5,000 private records; batches of 16 (128 for
distributional inference), a forest of 50 trees behind max-pooling by 3. The paper does not say how
many shadow batches the adversary fits on, how many records a training step takes, or how many
rounds it observes; ours are 1,000, 32 and 5 (10 for property inference, 3 under defenses and over
batch sizes). Every number is of one run; the brackets are 95 % intervals over private records.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import arguments, data_file, heading, line
from gradaudit.accuracy import task_accuracy
from gradaudit.audits.attack_inference.distribution import DistributionGame
from gradaudit.audits.attack_inference.experiment import train_rounds
from gradaudit.audits.attack_inference.game import AttributeGame, InferenceGame, PropertyGame
from gradaudit.audits.attack_inference.inference_rows import Scorer
from gradaudit.audits.attack_inference.observation import RoundObservation, prepared
from gradaudit.audits.attack_inference.readers import combine
from gradaudit.audits.attack_inference.split import Design, FloatArray, GameSplit
from gradaudit.data import load_records
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.games.scores import Score
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.sharing.protocol import SharingProtocol

ROUNDS = 5


@dataclass(frozen=True)
class Case:
    """One cell of a table."""

    title: str
    game: str = "property"
    paper: str = "–"
    drop: tuple[str, ...] = ("sex",)
    batch: int = 16
    shadow: int = 1000
    rounds: int = ROUNDS
    defense: str | None = None
    adaptive: bool = True
    reduce: str = "maxpool:3"
    shows: Sequence[int] = field(default_factory=tuple)
    """Numbers of rounds to show beside all of them."""


GAMES: dict[str, Callable[[], InferenceGame]] = {
    "property": lambda: PropertyGame("sex"),
    "attribute": lambda: AttributeGame("sex"),
    "distribution": lambda: DistributionGame("sex", "Female"),
}
PAPER_DP = {
    ("0.1", "maxpool:3"): "auroc 0.3004",
    ("0.1", "pca:50"): "auroc 0.9825",
    ("1.5", "pca:50"): "auroc 0.7010",
}
PROXIES = ("sex", "relationship", "marital-status")


def both(name: str, paper: tuple[str, str], **more: Any) -> list[Case]:
    return [
        Case(f"{name}, {who}", paper=said, defense=name, adaptive=who == "adaptive", **more)
        for who, said in zip(("static", "adaptive"), paper, strict=True)
    ]


SECTIONS: dict[str, list[Case]] = {
    "attacks": [
        Case("property", paper="auroc 0.9919", rounds=10, shows=(1, 2, 5)),
        Case("attribute", "attribute", "auroc 0.9991, tpr 0.9823", drop=(), shows=(1,)),
        Case("distribution, k = 128", "distribution", "auroc 0.8848", batch=128, shows=(1,)),
        Case("property without relationship, marital-status", drop=PROXIES, shows=(1,)),
    ],
    "shadow": [
        Case("property, 100 shadow records", paper="auroc 0.92", shadow=100, shows=(1, 2)),
        Case("the same without relationship, marital-status", drop=PROXIES, shadow=100, shows=(1,)),
    ],
    "batches": [
        Case(f"property, k = {size}{said}", drop=drop, batch=size, rounds=3, shows=(1,))
        for said, drop in (("", ("sex",)), (", without proxies", PROXIES))
        for size in (1, 4, 16, 64)
    ],
    "defenses": [
        Case("none", paper="advantage 0.9363", rounds=3, shows=(1,)),
        *both("prune:0.99", ("advantage 0", "advantage 0.7841"), rounds=3, shows=(1,)),
        *both("sign", ("advantage 0", "high"), rounds=3, shows=(1,)),
        *both("perturb", ("advantage 0", "advantage 1"), rounds=3, shows=(1,)),
        *both("dp:clip=2,sigma=0.1,per=mean", ("near 0", "near 0"), rounds=3, shows=(1,)),
    ],
    "dp": [
        Case(
            f"dp σ={sigma} per={per}, {reduce}",
            paper=PAPER_DP.get((sigma, reduce), "–"),
            defense=f"dp:clip=2,sigma={sigma},per={per}",
            reduce=reduce,
            rounds=3,
            shows=(1,),
        )
        for reduce in ("maxpool:3", "pca:50")
        for per in ("record", "sum", "mean")
        for sigma in ("0.01", "0.1", "0.5", "1.5")
    ],
}


def load(path: Path, drop: tuple[str, ...]) -> Records:
    dropped = "".join(f"&drop={column}" for column in drop)
    return load_records(f"csv:{path}?label=income&scale=standard&attribute=sex{dropped}")


def play(case: Case, records: Records, seed: int) -> tuple[GameSplit, list[FloatArray], float]:
    """The split, every round's answers from the whole update, and the last model's accuracy."""
    game = GAMES[case.game]()
    design = Design(
        batch_size=case.batch, shadow=case.shadow, batches=1000, held_out=0.0, trials=2000
    )
    split = game.split(records, design, np.random.SeedSequence(seed))
    defenses = () if case.defense is None else (parse_defense(case.defense),)
    model = load_model(f"zoo:mlp?inputs={records.inputs.shape[1]}&classes=2", seed=seed)

    def defended(target: Target) -> SharingProtocol:
        return prepared(SharingProtocol(defenses), target, records, *split.shadow, seed=seed)

    first, answers, rows = Target(model, CrossEntropy()), [], split.parts.private
    rounds = list(train_rounds(first, records, rows, case.rounds, defended=defended, seed=seed))
    for number, target in enumerate(rounds):
        observation = RoundObservation(
            target, records, target.layers, defended(target), reduce=case.reduce, seed=number
        )
        for scope, own, released in observation.features(split, adaptive=case.adaptive):
            if scope is None:
                said = game.answers(split, "forest", own, released, seed + number)
                answers.append(said.observed)
    accuracy = task_accuracy(rounds[-1], records.take(split.parts.test)).value
    return split, answers, accuracy or float("nan")


def show(case: Case, records: Records, seed: int) -> None:
    split, answers, accuracy = play(case, records, seed)
    scorer = Scorer([split])
    for count in dict.fromkeys((*case.shows, case.rounds)):
        scores = scorer.scores([combine(answers[:count], split.prior)])
        ours = "  ".join(f"{name} {brief(score)}" for name, score in scores.items())
        line(case.title, count, case.paper, ours, f"{accuracy:.3f}")
    last = scorer.scores([combine(answers[-1:], split.prior)])["auroc"]
    line(case.title, f"{case.rounds} alone", "–", f"auroc {brief(last)}", f"{accuracy:.3f}")


def brief(score: Score) -> str:
    low, high = score.interval
    return f"{score.value:.4f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    asked = arguments(__doc__)
    file = data_file("adult.csv")
    heading("case", "rounds", "paper", "ours", "task accuracy")
    for section in asked.sections or SECTIONS:
        for case in SECTIONS[section]:
            show(case, load(file, case.drop), asked.seed)


if __name__ == "__main__":
    main()
