"""Reconstruction of a batch that makes an update in several rounds, attacked jointly, by PSNR.

A net is trained on other pictures between the rounds; the client's batch is the same in every
round, labels are known. Inverting gradients with its default settings attacks the updates of the
newest R rounds together. ``--cost equal`` gives each R the same number of evaluated updates, so
that more rounds have fewer steps; ``steps`` gives each R the same number of steps.

LeNet, first rounds of training, no noise, PSNR in dB over R = 1, 2, 5, 10 rounds: 200 steps each,
two batches of one picture, 15.0, 16.2, 15.8, 18.5 (weights of the rounds by the length of their
updates 15.0, 16.3, 15.6, 17.4; the update of all rounds as one 15.0, 16.1, 14.6, 16.9); the same
cost of 600 evaluated updates, three batches of one 16.3, 17.0, 15.0, 16.8, of eight 11.1, 9.8,
10.1, 11.8; 300 steps each with noise of .3 of the rms, three batches of one 16.8, 17.3, 16.4,
17.5. At equal cost rounds add nothing that shows in three batches: the net limits the attack.
Where noise does (a small CNN without the prior, tests/attacks/reconstruction/test_joint_rounds.py),
six rounds bring the mean squared error to a fifth and a third.

    python -m benchmarks.coverage.joint_rounds [--nets lenet …] [--batch 1 8 16 …]
        [--rounds 1 2 5 10 …] [--batches 4] [--steps 300] [--between 20]
        [--cost equal|steps] [--sigma 0.0]
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import product

import numpy as np
import torch
from torch import nn

from benchmarks.harness import arguments, blurred, cifar10, fit, heading, line, seen_of
from benchmarks.nets import resnet18, small_residual
from gradaudit import zoo
from gradaudit.attacks.reconstruction.base import AttackerView, Execution
from gradaudit.attacks.reconstruction.closeness import scores_of
from gradaudit.attacks.reconstruction.gradient_matching import InvertingGradients
from gradaudit.data.records import Records

NETS: dict[str, Callable[[], nn.Module]] = {
    "lenet": lambda: zoo.build("lenet"),
    "residual": small_residual,
    "resnet18": lambda: resnet18(classes=10),
}


def rounds_of(net: str, pictures: Records, count: int, between: int) -> list[nn.Module]:
    """The model that clients receive in each of ``count`` rounds, oldest first."""
    torch.manual_seed(0)
    inputs, labels = pictures.inputs[1000:], pictures.labels[1000:]
    model, received = NETS[net](), []
    adam = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for number in range(count):
        received.append(deepcopy(model).eval())
        generator = torch.Generator().manual_seed(number)
        batches = (torch.randint(len(inputs), (64,), generator=generator) for _ in range(between))
        model = fit(model, inputs, labels, adam, batches)
    return received


def views_of(models: list[nn.Module], batch: Records, sigma: float) -> AttackerView:
    """View the batch's updates in all rounds, with noise of ``sigma`` times their rms."""
    generator = torch.Generator().manual_seed(0)
    clean = (seen_of(model, batch, known_labels=True) for model in models)
    views = [blurred(view, sigma, generator) for view in clean]
    return replace(views[-1], earlier=tuple(views[:-1]))


def psnr(view: AttackerView, batch: Records, steps: int, seed: int) -> float:
    attack = InvertingGradients(restarts=1, iterations=steps)
    records = attack.run(view, Execution(seed)).records
    assert records is not None
    return float(scores_of(batch.inputs, records[None], pictures=True)["psnr"][0])


def main() -> None:
    given, every = arguments(__doc__), cifar10()
    pictures = replace(every, inputs=every.inputs.float())
    heading("net", "batch", "rounds", "steps", "mean PSNR", "each")
    for net in given.nets:
        models = rounds_of(net, pictures, max(given.rounds), given.between)
        for size, count in product(given.batch, given.rounds):
            steps = given.steps if given.cost == "steps" else max(given.steps // count, 1)
            found = []
            for seed in range(given.batches):
                batch = pictures.take(np.arange(seed * size, (seed + 1) * size))
                view = views_of(models[-count:], batch, given.sigma)
                found.append(psnr(view, batch, steps, seed))
            each = " ".join(f"{value:.1f}" for value in found)
            line(net, size, count, steps, f"{np.mean(found):.2f}", each)


if __name__ == "__main__":
    main()
