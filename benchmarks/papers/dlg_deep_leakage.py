"""Deep Leakage from Gradients on its own network: PSNR of every restart, and the labels of iDLG.

The network of the released code (three convolutions of 5×5, sigmoid, weights and biases drawn from
uniform(−0.5, 0.5)), one 32×32 colour picture of CIFAR-10, 300 outer iterations of L-BFGS with a
strong Wolfe line search, labels unknown. To be met: at least 30 dB in 6 of 8 restarts, and the
right label from the signs for every picture.

    python -m benchmarks.papers.dlg_deep_leakage [--restarts 8] [--iterations 300] [--pictures 1]
        [--labels 100] [--method dlg] [--convolutions 3]

Needs cifar10_6k_jpeg.npz; the pictures were decoded from JPEG and are compared as they are.
"""

import numpy as np
import torch

from benchmarks.harness import arguments, cifar10, heading, line
from gradaudit import zoo
from gradaudit.attacks.reconstruction import Execution, load_method
from gradaudit.attacks.reconstruction.attempts import attempt
from gradaudit.attacks.reconstruction.matching.unknowns import infer_label
from gradaudit.attacks.reconstruction.observing import AttackedBatch, ThreatModel
from gradaudit.data.records import Records
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.sharing.protocol import SharingProtocol

WANTED_DB = 30.0


def observer(convolutions: int) -> ThreatModel:
    """Clients of the paper's network that share their gradient."""
    torch.manual_seed(0)
    model = zoo.build(
        "deep-leakage", classes=10, convolutions=convolutions, init="uniform:0.5"
    ).double()
    target = Target(model, CrossEntropy())
    return ThreatModel(target, SharingProtocol(), target.layers)


def labels_read(clients: ThreatModel, data: Records, count: int) -> int:
    """How many of the first pictures' labels the signs tell."""
    right = 0
    for index in range(count):
        seen = of_one(clients, data, index)
        right += int(infer_label(seen.view)[0]) == int(seen.labels[0])
    return right


def of_one(clients: ThreatModel, data: Records, index: int) -> AttackedBatch:
    return clients.observed(data.take(np.array([index])), torch.Generator().manual_seed(0))


def main() -> None:
    given = arguments(__doc__)
    data, clients = cifar10(), observer(given.convolutions)
    print(f"iDLG: {labels_read(clients, data, given.labels)} of {given.labels} labels right")
    method = load_method(given.method, {"iterations": given.iterations}, given.restarts)
    heading("picture", f"reach {WANTED_DB:.0f} dB", "PSNR", "SSIM", "labels right")
    for index in range(given.pictures):
        seen = of_one(clients, data, index)
        made = attempt(method, seen, Execution(np.random.SeedSequence(index)))
        psnr = made.scores["psnr"]
        reached = f"{int((psnr >= WANTED_DB).sum())} of {given.restarts}"
        told = (" ".join(f"{v:.3g}" for v in made.scores[name]) for name in ("psnr", "ssim"))
        line(index, reached, *told, "–" if made.labels is None else f"{made.labels.sum():.0f}")


if __name__ == "__main__":
    main()
