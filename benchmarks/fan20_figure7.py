"""Fan et al. 2020, figure 7: accuracy of standalone, FedAvg and federated SPN models.

    python benchmarks/fan20_figure7.py [--data cifar10|mnist] [--model zoo:NAME] [--rounds R]

Clients hold even parts of the training pictures (IID). Standalone: every client trains alone, as
many passes as there are rounds; the mean and deviation over clients of the accuracy on all test
pictures. FedAvg and SPN (64 bits, α₂ as given) as in the paper: momentum 0.9, batches of 64, one
local epoch a round. The paper has 300 rounds, AlexNet and VGG16, all of CIFAR10 and MNIST; it
finds FedAvg 10-40 % above standalone on CIFAR10 (2-4 % on MNIST) and SPN another 2-3 % above
(0.2 % on MNIST). Data, models and rounds here are those that two cores manage: clients hold fewer
pictures each than any of the paper's. The accuracy of the best tenth of the rounds is given too,
since the last one may overfit. Needs ../shared/data beside the checkout, or GRADAUDIT_SHARED.
"""

import argparse
import gzip
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from gradaudit.accuracy import task_accuracy
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.federation.partition import partition
from gradaudit.federation.server import FederatedTraining
from gradaudit.federation.settings import TrainingOptions
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target

SHARED = Path(os.environ.get("GRADAUDIT_SHARED", Path(__file__).parents[2] / "shared")) / "data"
MODELS = {
    "cifar10": "zoo:lenet?shape=3x32x32",
    "mnist": "zoo:lenet?shape=1x28x28",
}


def pictures(name: str) -> tuple[Records, Records]:
    """Training and test pictures, (records, channels, height, width) around zero."""
    files = {"cifar10": "cifar10_6k_jpeg.npz", "mnist": "mnist-t10k-images-idx3-ubyte.gz"}
    file = SHARED / files[name]
    if not file.exists():
        sys.exit(f"{file} is not there; name the folder of data with GRADAUDIT_SHARED")
    if name == "cifar10":
        with np.load(file) as archive:
            images = archive["images"].transpose(0, 3, 1, 2)
            labels, tested = archive["labels"], archive["is_test"].astype(bool)
    else:
        raw = np.frombuffer(gzip.decompress(file.read_bytes())[16:], np.uint8)
        images = raw.reshape(-1, 1, 28, 28)
        other = file.with_name("mnist-t10k-labels-idx1-ubyte.gz")
        labels = np.frombuffer(gzip.decompress(other.read_bytes())[8:], np.uint8)
        tested = np.arange(len(labels)) % 5 == 0
    inputs = torch.from_numpy(images.astype(np.float32)) / 127.5 - 1
    records = Records(inputs, torch.from_numpy(labels.astype(np.int64)))
    return records.take(np.flatnonzero(~tested)), records.take(np.flatnonzero(tested))


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


def told(name: str, curves: Sequence[Sequence[float]], began: float) -> None:
    last = np.asarray([curve[-1] for curve in curves])
    best = np.asarray([max(curve) for curve in curves])
    print(
        f"{name:24s} last {last.mean():.4f} ± {last.std():.4f}   best {best.mean():.4f}   "
        f"n {len(curves)}   {time.monotonic() - began:.0f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="cifar10", choices=MODELS)
    parser.add_argument("--model")
    parser.add_argument("--pictures", type=int, default=4800, help="for training")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--clients", type=int, nargs="+", default=[8, 20])
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.1, 0.01])
    parser.add_argument("--alone", type=int, default=4, help="standalone clients that are trained")
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    spec = arguments.model or MODELS[arguments.data]
    train, test = pictures(arguments.data)
    drawn = np.random.default_rng(0).permutation(len(train))[: arguments.pictures]
    train = train.take(np.sort(drawn))
    print(f"{spec}, {arguments.data}, {len(train)} training and {len(test)} test pictures")
    for clients in arguments.clients:
        options = TrainingOptions(
            clients=clients,
            rounds=arguments.rounds,
            rate=arguments.rate,
            momentum=0.9,
            batch_size=64,
        )
        print(f"{clients} clients, {len(train) // clients} pictures each")
        parts = partition("iid", train.labels.numpy(), clients, np.random.default_rng(0))
        began = time.monotonic()
        alone = options.model_copy(update={"clients": 1})
        chosen = parts[: arguments.alone]
        told(
            "standalone",
            [accuracies(spec, train.take(part), test, alone, 0) for part in chosen],
            began,
        )
        for defense in ("", *(f"spn:bits=64,alpha={alpha:g}" for alpha in arguments.alpha)):
            began = time.monotonic()
            seeds = range(arguments.seeds)
            told(
                defense or "FedAvg",
                [accuracies(spec, train, test, options, seed, defense) for seed in seeds],
                began,
            )


if __name__ == "__main__":
    main()
