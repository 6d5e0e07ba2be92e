"""Which weight of the total variation inverting gradients should have by default.

Several nets, untrained and trained for some epochs on real pictures of different kinds, each share
the gradients of batches that they were not trained on; the labels are known. For every weight, the
mean over batches of the answer's PSNR, and over the nets of its distance from the best weight's.

The default was decided by ``inverting_settings.py``, which runs weights side by side.

    python benchmarks/total_variation.py [--data DIR] [--iterations 500] [--pictures 3]
"""

import argparse
import statistics
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradaudit import zoo
from gradaudit.attacks.reconstruction.gradient_matching import InvertingGradients, InvertingOptions
from gradaudit.attacks.reconstruction.observing import ThreatModel
from gradaudit.attacks.reconstruction.scores import scores_of
from gradaudit.data.records import Records
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.sharing.protocol import SharingProtocol

WEIGHTS = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
SETS = {"cifar10": "cifar10_6k_jpeg.npz", "faces": "utkface_32.npz"}
LABELS = {"cifar10": "labels", "faces": "gender"}


class Residual(nn.Module):
    """Two convolutions with batch norm and a way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(before, after, 3, stride, 1, bias=False),
                norm1=nn.BatchNorm2d(after),
                relu=nn.ReLU(),
                conv2=nn.Conv2d(after, after, 3, 1, 1, bias=False),
                norm2=nn.BatchNorm2d(after),
            )
        )
        self.around = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.around(x))


def residual() -> nn.Module:
    blocks = [Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2)]
    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), *blocks, *ends)


NETS: dict[str, Callable[[], nn.Module]] = {
    "residual": residual,
    "lenet": lambda: zoo.build("lenet"),
    "alexnet-mo21": lambda: zoo.build("alexnet-mo21"),
}


def pictures(folder: Path, name: str) -> tuple[Tensor, Tensor]:
    with np.load(folder / SETS[name], allow_pickle=False) as data:
        inputs = torch.tensor(data["images"]).permute(0, 3, 1, 2).float() / 255
        return inputs, torch.tensor(data[LABELS[name]]).long()


def trained(model: nn.Module, inputs: Tensor, labels: Tensor, epochs: int) -> nn.Module:
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(64):  # type: ignore[no-untyped-call]
            optimiser.zero_grad()
            F.cross_entropy(model(inputs[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return model.eval()


def psnr(model: nn.Module, batch: Records, weight: float, iterations: int) -> float:
    target = Target(model, CrossEntropy())
    threat = ThreatModel(target, SharingProtocol(), target.layers, known_labels=True)
    view = threat.observed(batch, torch.Generator()).view
    attack = InvertingGradients(InvertingOptions(tv=weight, iterations=iterations))
    found = attack.run(view, 1, torch.Generator().manual_seed(0), Silent())
    return float(scores_of(batch.inputs, found.inputs, pictures=True)["psnr"][0])


def line(model: nn.Module, batches: list[Records], iterations: int) -> Iterator[float]:
    for weight in WEIGHTS:
        yield statistics.mean(psnr(model, batch, weight, iterations) for batch in batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--pictures", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--nets", nargs="+", default=list(NETS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    losses = []
    print(f"{'PSNR in dB, weight':32}" + "".join(f"{weight:9g}" for weight in WEIGHTS))
    for name in SETS:
        if not (given.data / SETS[name]).exists():
            sys.exit(f"skipped: {given.data / SETS[name]} is not there; name its folder by --data")
        inputs, labels = pictures(given.data, name)
        batches = [Records(inputs[n : n + 1], labels[n : n + 1]) for n in range(given.pictures)]
        for net in given.nets:
            for epochs in (0, given.epochs):
                torch.manual_seed(0)
                model = trained(NETS[net](), inputs[100:3100], labels[100:3100], epochs)
                found = list(line(model, batches, given.iterations))
                losses.append([max(found) - one for one in found])
                title = f"{net} on {name}, {epochs} epochs"
                print(f"{title:32}" + "".join(f"{one:9.2f}" for one in found), flush=True)
    print(f"{'below the best, mean':32}" + "".join(f"{v:9.2f}" for v in np.mean(losses, axis=0)))
    print(f"{'below the best, most':32}" + "".join(f"{v:9.2f}" for v in np.max(losses, axis=0)))


if __name__ == "__main__":
    main()
