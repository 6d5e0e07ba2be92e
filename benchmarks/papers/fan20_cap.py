"""Fan et al. 2020, tables 1 and 8: CAP of dp, selective sharing with dp, and spn on CIFAR-10.

    python -m benchmarks.papers.fan20_cap [--batch-size 1 4 8 …] [--batches 5] [--participants 5]
        [--iterations 10] [--precision float64|float32] [--rounds 1500] [--clients 10]
        [--training-batch 32] [--rate 0.003] [--side 32] [--weights initial trained …] [--insider]
        [--sigma '0.0001|0.001|0.01|0.1|0.5'] [--alpha '0.0001|0.001|0.01|0.1|0.2|0.3|0.4|0.5']
        [--noise sum|release] [--head HEAD]
        [--only 'undefended,dp,selective 5 %,selective 30 %,spn'] [--seed 0] [--cells FILE]

The paper's: DLNet with sigmoids, weights from uniform(−0.3, 0.3), trained by 10 clients with Adam
for 300 rounds on 50,000 pictures; Deep Leakage from Gradients from pattern initialisation at the
initial weights; clipping off; x = 1000 reconstructions. Grids: σ of dp 0.0001 to 0.5, α₂ of spn
0.0001 to 0.5, selective 5 % and 30 % with the grid of dp (table 11). Here: the 6,000 pictures of
cifar10_6k_jpeg.npz, of which 4,800 are trained on, FedSGD with Adam, in which every round's update
is a gradient that is defended as the attacked ones are; sizes as given. With --noise sum a mean of
k records gets noise of σ/k, as in the DP-SGD that the paper names (Abadi et al. 2016), so that
training with batches of 32 suffers less than an attack on one record does; with release it gets σ
whatever k. Each setting is written to --cells as soon as it is done, so that an interrupted run
goes on. Ours beside the paper's; both CAPs, `cap` with distances
of at most 1 and `cap_paper` without. Labels are compared as lists (membership) and record by record
(paired) and place by place (placed), beside what right labels in a random order would score.

What came out, and why it differs, is in docs/papers.md. With --noise release and σ of 0.1 and more,
models trained at chance in 300 rounds at 16×16. An attacker who knows spn's head (--insider) hardly
suffers from it: the protection is that secret.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import arguments, cifar10, heading, line
from gradaudit.attacks.reconstruction import load_method
from gradaudit.attacks.reconstruction.campaign import Choice, chosen_batches
from gradaudit.audits.tradeoff.attacking import Attack, attacked, cap, cap_interval, has_secret
from gradaudit.audits.tradeoff.mechanisms import DefenseSetting, read_mechanism
from gradaudit.audits.tradeoff.studies import train
from gradaudit.data.records import Records
from gradaudit.defenses import Defense
from gradaudit.federation.settings import TrainingOptions
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.subject import Subject, defended_target

GAMES = ("reconstruct", "membership", "tracing")
SHOWN = ("reconstruct", "membership", "paired", "placed", "tracing", "relative_error")
COLUMNS = {"paired": "membership", "placed": "membership"}
SIZES = (1, 4, 8)
PAPER = {
    "dp": (0.57, 0.63, 0.63, 0.00, 0.45, 0.47, 0.42, 0.57, 0.58),
    "selective 5 %": (0.55, 0.55, 0.55, 0.00, 0.37, 0.44, 0.50, 0.50, 0.50),
    "selective 30 %": (0.57, 0.61, 0.61, 0.00, 0.43, 0.49, 0.54, 0.54, 0.54),
    "spn": (0.69, 0.70, 0.70, 0.24, 0.50, 0.56, 0.61, 0.63, 0.64),
}
"""Table 8: reconstruction, membership and tracing at batch sizes 1, 4 and 8."""
Cell = dict[str, Any]
"""What one setting gave, as a line of ``--cells``."""


def pictures(side: int) -> tuple[Records, Records]:
    """Training and test pictures in [0, 1], (records, 3, side, side)."""
    both = (cifar10(side, tested=tested) for tested in (False, True))
    train_on, test_on = (replace(each, inputs=each.inputs.float()) for each in both)
    return train_on, test_on


def of_mean(
    defenses: Sequence[Defense[Any]], records: int, given: argparse.Namespace
) -> tuple[Defense[Any], ...]:
    """The same defenses with the noise of a mean over so many records, clipping being off."""
    divisor = records if given.noise == "sum" else 1
    return tuple(
        type(each)(each.options.model_copy(update={"sigma": each.options.sigma / divisor}))
        if each.additive
        else each
        for each in defenses
    )


def cell(given: argparse.Namespace, data: tuple[Records, Records], setting: DefenseSetting) -> Cell:
    """Accuracy of a setting, and each game's distances by batch size, weights and knowledge."""
    train_on, test_on = data
    spec = f"zoo:dlnet?shape=3x{given.side}x{given.side}&init=uniform:0.3"
    plain = Target(load_model(spec, seed=given.seed), CrossEntropy(), mode="train")
    target = defended_target(plain, setting.defenses, given.seed)
    options = TrainingOptions(
        algorithm="fedsgd",
        clients=given.clients,
        rounds=given.rounds,
        batch_size=given.training_batch,
        optimizer="adam",
        rate=given.rate,
    )
    chain = of_mean(setting.defenses, given.training_batch, given)
    (done,) = train([target], train_on, test_on, options, [chain], given.seed, Silent())
    found: Cell = {"accuracy": done.value, "reach": done.reach, "attacks": {}}
    method = load_method(
        "dlg:init=pattern", {"iterations": given.iterations, "precision": given.precision}, 1
    )
    subject = Subject((target,), train_on, target.layers, seed=given.seed)
    for weights in given.weights:
        model = done.initial if weights == "initial" else done.target
        for insider in (False, True) if has_secret(model) and given.insider else (False,):
            attack = Attack(method, given.participants, model.layers, insider)
            for size in given.batch_size:
                batches = chosen_batches(subject, Choice(size, given.batches))
                sharing = SharingProtocol(of_mean(setting.defenses, size, given))
                outcome = attacked(model, sharing, batches, attack, given.seed, Silent())
                assert outcome.membership is not None
                assert outcome.paired is not None
                found["attacks"][f"{size} {weights}{' insider' if insider else ''}"] = {
                    "relative_error": outcome.relative_error.tolist(),
                    "reconstruct": outcome.reconstruct.tolist(),
                    "membership": outcome.membership.tolist(),
                    "paired": outcome.paired.tolist(),
                    "placed": [
                        1.0 if named is None else float((named != each.labels.numpy()).mean())
                        for each, named in zip(batches, outcome.named, strict=True)
                    ],
                    "shuffled": [shuffled_distance(each.labels.numpy()) for each in batches],
                    "tracing": outcome.tracing.tolist(),
                    "ratio": float(np.median(outcome.ratios)),
                }
    return found


def shuffled_distance(truth: NDArray[np.int64]) -> float:
    """Expected share of wrong places of labels in a random order, 1 − Σ_c (n_c/k)²."""
    counts = np.unique(truth, return_counts=True)[1]
    return 1.0 - float(((counts / len(truth)) ** 2).sum())


def table(name: str, cells: list[Cell]) -> None:
    accuracies = np.array([[c["accuracy"] for c in cells]])
    reaches = np.array([[c["reach"] for c in cells]])
    print(f"\n{name}: accuracy {' '.join(f'{value:.3f}' for value in accuracies[0])}")
    heading("batch, attacked", "‖B‖/‖E‖", "shuffled", "CAP", "ours", "paper", "distances")
    for view, first in cells[0]["attacks"].items():
        ratios = " ".join(f"{c['attacks'][view]['ratio']:.2g}" for c in cells)
        size, what = view.split(" ", 1)
        for game in SHOWN:
            distances = np.array([[c["attacks"][view][game] for c in cells]])
            ends = cap_interval(accuracies, reaches, distances, 99.0)
            around = f" [{ends[0]:.3f}, {ends[1]:.3f}]" if ends else ""
            column, paper = COLUMNS.get(game, game), ""
            if what == "initial" and column in GAMES and int(size) in SIZES and name in PAPER:
                at = 3 * GAMES.index(column) + SIZES.index(int(size))
                paper = f"{PAPER[name][at]:.2f}"
            each = " ".join(f"{d:.2f}" for d in distances.mean(axis=2)[0])
            label = "cap_paper, reconstruct" if game == SHOWN[-1] else game
            ours = f"{cap(accuracies, distances):.3f}{around}"
            line(view, ratios, f"{np.mean(first['shuffled']):.2f}", label, ours, paper, each)


def main() -> None:
    given = arguments(__doc__)
    noise = f"dp:clip=1e9,sigma={given.sigma},per=release"
    specs = {
        "undefended": ["dp:clip=1e9,sigma=0,per=release"],
        "dp": [noise],
        "selective 5 %": ["selective:0.05", noise],
        "selective 30 %": ["selective:0.3", noise],
        "spn": [f"spn:bits=64,alpha={given.alpha}{f',head={given.head}' if given.head else ''}"],
    }
    shown = ("only", "cells", "sigma", "alpha")
    terms = {k: v for k, v in vars(given).items() if k not in shown}
    kept = {}
    if given.cells is not None and given.cells.is_file():
        kept = {each["key"]: each for each in map(json.loads, given.cells.open())}
    data = pictures(given.side)
    print(" ".join(f"{k}={v}" for k, v in terms.items()), flush=True)
    for name in given.only.split(","):
        settings = read_mechanism(specs[name], "--only").settings
        keys = [json.dumps([name, str(each), terms], sort_keys=True) for each in settings]
        for key, setting in zip(keys, settings, strict=True):
            if key not in kept:
                kept[key] = {"key": key, **cell(given, data, setting)}
                if given.cells is not None:
                    with given.cells.open("a") as file:
                        file.write(json.dumps(kept[key]) + "\n")
        table(name, [kept[key] for key in keys])


if __name__ == "__main__":
    main()
