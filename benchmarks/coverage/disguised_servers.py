"""Whether ``attack malicious-server`` flags a server like LOKI, and servers trained as SEER is.

    python -m benchmarks.coverage.disguised_servers [--servers 4] [--first 0] [--steps 12000]
        [--batch-size 8] [--only '']

``loki``: a module before the model passes the pictures through convolutions that copy them for one
client and are zero for all others, into a linear layer whose rows bin by mean brightness (J. Zhao
et al., "LOKI: large-scale data reconstruction attack against federated learning through model
manipulation", 2024, section IV). ``seer``: the weights of the shared model, a secret linear map d
of 8,000 elements of the gradient and a linear decoder r are trained together, so that d of a
batch's gradient forgets all pictures but the one that is brighter than the rest, and r of it is
that picture (K. Garov et al., "Hiding in plain sight: disguising data stealing attacks in federated
learning", 2024, section 4). Pictures are MNIST's at 14 × 14, models MLPs with two hidden layers,
fresh ones for each server. Printed are, of SEER's servers, the PSNR of what d and r read off
updates of batches that they were not trained on, the share above 19 dB (the paper's measure of
success) and the PSNR of the mean picture; of both, whether a limit is reached, and the strongest of
each sign over its limit.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from benchmarks.coverage.malicious_server import Imprint
from benchmarks.harness import arguments, heading, line, mnist
from gradaudit.audits.attack_malicious_server.check import LIMITS, check
from gradaudit.data.records import Records
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target

ELEMENTS, SECRET, TOGETHER, SUCCESS = 8000, 512, 8, 19.0
CHECKED, CLIENTS = 128, 4
TRAINED = 8000
"""Number of pictures that servers are trained on; the others make the batches that are read."""


class Loki(nn.Module):
    """Convolutions that copy the pictures for one client alone, before an imprint's bins."""

    def __init__(self, records: Tensor, bins: int, client: int) -> None:
        super().__init__()
        self.copies = nn.Conv2d(1, CLIENTS, 3, padding=1, bias=False)
        copied = torch.zeros(len(records), CLIENTS, *records.shape[2:])
        copied[:, client] = records[:, 0]
        with torch.no_grad():
            self.copies.weight.zero_()
            self.copies.weight[client, 0, 1, 1] = 1
        self.imprint = Imprint(copied, bins)

    def forward(self, x: Tensor) -> Tensor:
        """(records, 1, height, width), almost as they came in."""
        binned = torch.relu(self.imprint.bins(torch.relu(self.copies(x)).flatten(1)))
        added = self.imprint.back(binned)[:, : x[0].numel()].reshape(x.shape)
        handed_on: Tensor = x + self.imprint.strength * added
        return handed_on


def fresh(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    sizes = (196, 128, 64, 10)
    layers = [nn.Linear(*pair) for pair in pairwise(sizes)]
    return nn.Sequential(nn.Flatten(), layers[0], nn.GELU(), layers[1], nn.GELU(), layers[2])


def disguised(records: Records, size: int, steps: int, seed: int) -> tuple[nn.Module, Tensor]:
    """A shared model trained with its secret decoder, and (2, 200) PSNR on held-out batches.

    The second row is that of the mean picture.
    """
    model, generator = fresh(seed), torch.Generator().manual_seed(seed)
    weights = dict(model.named_parameters())
    total = sum(each.numel() for each in weights.values())
    chosen = torch.randperm(total, generator=generator)[:ELEMENTS]
    secret = nn.Linear(ELEMENTS, SECRET, bias=False)
    decoder = nn.Linear(SECRET, records.inputs[0].numel())
    brightness = records.inputs.flatten(1).mean(dim=1)
    bright = brightness > brightness[:TRAINED].quantile(1 - 1 / size)
    trained = torch.arange(len(brightness)) < TRAINED

    def loss(given: Mapping[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        outputs = functional_call(model, dict(given), (inputs,))
        return nn.functional.cross_entropy(outputs, labels, reduction="sum")

    def elements(inputs: Tensor, labels: Tensor) -> Tensor:
        gradients = grad(loss)(weights, inputs, labels)
        return 50 * torch.cat([gradients[name].flatten() for name in weights])[chosen]

    def drawn(allowed: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of batches (count, size), of each the first record is bright."""
        pools, sizes = (allowed & bright, allowed & ~bright), (1, size - 1)
        parts = [
            pool.nonzero()[:, 0][torch.randint(int(pool.sum()), (count, n), generator=generator)]
            for pool, n in zip(pools, sizes, strict=True)
        ]
        batch = torch.cat(parts, dim=1)
        return records.inputs[batch], records.labels[batch]

    read = vmap(elements)
    learnt = [*weights.values(), *secret.parameters(), *decoder.parameters()]
    optimiser = torch.optim.Adam(learnt, lr=1e-3)
    slower = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, steps)
    for _ in range(steps):
        inputs, labels = drawn(trained, TOGETHER)
        seen = decoder(secret(read(inputs, labels)))
        error = (seen - inputs[:, 0].flatten(1)).square().mean()
        left = secret(read(inputs[:, 1:], labels[:, 1:])).square().mean()
        optimiser.zero_grad()
        torch.autograd.backward(error + left)
        optimiser.step()
        slower.step()
    inputs, labels = drawn(~trained, 200)
    wanted = inputs[:, 0].flatten(1)
    with torch.no_grad():
        seen = decoder(secret(read(inputs, labels))).clamp(0, 1)
    return model, torch.stack([psnr(seen, wanted), psnr(wanted.mean(dim=0), wanted)])


def psnr(rebuilt: Tensor, wanted: Tensor) -> Tensor:
    """(records,) of pictures in [0, 1]."""
    return -10 * (rebuilt - wanted).square().mean(dim=1).log10()


def signs(model: nn.Module, records: Records) -> dict[str, float]:
    """The strongest of each sign over the layers, as a share of its limit."""
    found = check(Target(model, CrossEntropy()), records.take(np.arange(CHECKED)), [])
    return {
        name: max((getattr(each, name) or 0) / limit for each in found.values())
        for name, limit in LIMITS.items()
    }


def main() -> None:
    given = arguments(__doc__)
    digits = mnist()
    records = Records(nn.functional.avg_pool2d(digits.inputs.float(), 2), digits.labels)
    heading("server", "flagged", "PSNR (dB)", "above 19 dB", "mean picture (dB)", *LIMITS)
    for seed in range(given.first, given.first + given.servers):
        for kind in (name for name in ("loki", "seer") if given.only in name):
            if kind == "loki":
                before = Loki(records.inputs[:TRAINED], 32 * 2 ** (seed % 4), seed % CLIENTS)
                model: nn.Module = nn.Sequential(before, fresh(seed))
                cells = ["–"] * 3
            else:
                model, (seen, plain) = disguised(records, given.batch_size, given.steps, seed)
                shares = (seen.mean(), (seen > SUCCESS).double().mean(), plain.mean())
                cells = [f"{float(share):.2f}" for share in shares]
            strongest = signs(model, records)
            line(
                kind,
                max(strongest.values()) >= 1,
                *cells,
                *(f"{v:.2f}" for v in strongest.values()),
            )


if __name__ == "__main__":
    main()
