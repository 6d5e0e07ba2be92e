"""Fan et al. 2020, figure 7: accuracy of standalone, FedAvg and federated SPN models.

    python -m benchmarks.papers.fan20_figure7 [--data cifar10|mnist] [--model MODEL]
        [--pictures 4800] [--rounds 60] [--clients 8 20 …] [--rate 0.01] [--alpha 0.1 0.01 …]
        [--alone 4] [--seeds 2]

Clients hold even parts of the training pictures (IID). Standalone: every client trains alone, as
many passes as there are rounds; the mean and deviation over clients of the accuracy on all test
pictures. FedAvg and SPN (64 bits, α₂ as given) as in the paper: momentum 0.9, batches of 64, one
local epoch a round. The paper has 300 rounds, AlexNet and VGG16, all of CIFAR10 and MNIST; it
finds FedAvg 10-40 % above standalone on CIFAR10 (2-4 % on MNIST) and SPN another 2-3 % above
(0.2 % on MNIST). Data, models and rounds here are those that two cores manage: clients hold fewer
pictures each than any of the paper's. The accuracy of the best tenth of the rounds is given too,
since the last one may overfit.
"""

from dataclasses import replace

import numpy as np
import torch

from benchmarks.harness import arguments, cifar10, heading, line, mnist
from gradaudit.accuracy import task_accuracy
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.federation.federated_training import FederatedTraining
from gradaudit.federation.partition import partition
from gradaudit.federation.settings import TrainingOptions
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target

MODELS = {
    "cifar10": "zoo:lenet?shape=3x32x32",
    "mnist": "zoo:lenet?shape=1x28x28",
}


def pictures(name: str) -> tuple[Records, Records]:
    """Training and test pictures, (records, channels, height, width) around zero."""
    if name == "cifar10":
        both = [cifar10(tested=tested) for tested in (False, True)]
    else:
        records = mnist()
        tested = np.arange(len(records)) % 5 == 0
        both = [records.take(np.flatnonzero(side)) for side in (~tested, tested)]
    train, test = (replace(each, inputs=(2 * each.inputs - 1).float()) for each in both)
    return train, test


def accuracies(
    spec: str, train: Records, test: Records, options: TrainingOptions, seed: int, defense: str = ""
) -> list[float]:
    """Test accuracy after every tenth of the rounds."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    target = Target(load_model(spec, seed=seed).to(device), CrossEntropy(), mode="train")
    defenses = [parse_defense(defense)] if defense else []
    training = FederatedTraining(target, train, options, defenses=defenses, seed=seed, test=test)
    found: list[float] = []
    for _ in range(options.rounds):
        training.advance()
        if training.number % max(1, options.rounds // 10) == 0:
            now = replace(training.target, model=training.server.model)
            found.append(task_accuracy(now, test).value or 0.0)
    return found


def main() -> None:
    given = arguments(__doc__)
    spec = given.model or MODELS[given.data]
    train, test = pictures(given.data)
    drawn = np.random.default_rng(0).permutation(len(train))[: given.pictures]
    train = train.take(np.sort(drawn))
    print(f"{spec}, {given.data}, {len(train)} training and {len(test)} test pictures")
    heading("clients", "training", "last", "best", "models")
    for clients in given.clients:
        options = TrainingOptions(
            clients=clients, rounds=given.rounds, rate=given.rate, momentum=0.9, batch_size=64
        )
        parts = partition("iid", train.labels.numpy(), clients, np.random.default_rng(0))
        alone = options.model_copy(update={"clients": 1})
        ways = [("standalone", alone, [(train.take(part), 0) for part in parts[: given.alone]], "")]
        for defense in ("", *(f"spn:bits=64,alpha={alpha:g}" for alpha in given.alpha)):
            seeds = [(train, seed) for seed in range(given.seeds)]
            ways.append((defense or "FedAvg", options, seeds, defense))
        for name, how, runs, defense in ways:
            found = np.array(
                [accuracies(spec, own, test, how, seed, defense) for own, seed in runs]
            )
            last, best = found[:, -1], found.max(axis=1).mean()
            told = f"{last.mean():.4f} ± {last.std():.4f}", f"{best:.4f}"
            line(clients, name, *told, len(runs))


if __name__ == "__main__":
    main()
