"""Reconstruction of a batch that makes an update in several rounds, attacked jointly, by PSNR.

A net is trained on other pictures between the rounds; the client's batch is the same in every
round, labels are known. Attacks get the updates of the newest R rounds: ``gradaudit`` is inverting
gradients with its defaults, ``breaching`` and ``leakpro`` have the settings of these tools for the
same attack (signed Adam, a rate that falls to a tenth three times; total variation of .2 on the sum
of the rounds' distances, and of 1e-6 on one round). Each R evaluates as many updates, so that more
rounds have fewer steps. A picture of 20 dB or more is a
success. docs/attacks.md has the numbers. Where noise limits the attack (a small CNN without the
prior, tests/attacks/reconstruction/test_joint_rounds.py), six rounds bring the mean squared error
to a fifth and a third.

    python -m benchmarks.coverage.joint_rounds [--nets lenet …] [--batch 1 8 16 …]
        [--rounds 1 2 5 10 …] [--attacks gradaudit breaching leakpro …] [--batches 4] [--steps 300]
        [--between 20] [--sigma 0.0]
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.harness import arguments, blurred, cifar10, fit, heading, line, seen_of
from benchmarks.nets import resnet18
from gradaudit import zoo
from gradaudit.attacks.reconstruction.base import AttackerView, Execution
from gradaudit.attacks.reconstruction.closeness import assigned
from gradaudit.attacks.reconstruction.gradient_matching import InvertingGradients
from gradaudit.attacks.reconstruction.matching.evaluator import Evaluator
from gradaudit.attacks.reconstruction.matching.objectives import Minimum, Objective
from gradaudit.attacks.reconstruction.matching.restarts import StepSize, descend
from gradaudit.core.statistics.intervals import student
from gradaudit.data.records import Records

NETS: dict[str, Callable[[], nn.Module]] = {
    "lenet": lambda: zoo.build("lenet"),
    "resnet18": lambda: resnet18(classes=10),
}


@dataclass(frozen=True)
class Falling(StepSize):
    """A rate that falls to a tenth at three eighths, five eighths and seven eighths."""

    def at(self, iteration: int, iterations: int) -> float:
        """The learning rate of one step, counted from 0."""
        return self.rate * 0.1 ** sum(8 * iteration >= n * iterations for n in (3, 5, 7))


class Peer(InvertingGradients):
    """Inverting gradients with the steps of its paper, as other tools take them."""

    def minimum(
        self, objective: Objective, points: Tensor, advance: Callable[[int], None]
    ) -> Minimum:
        """The minimum with another rate."""
        pace, steps = Falling(self.options.rate, signed=True), self.options.iterations
        return descend(
            Evaluator(objective), points, steps, pace, project=objective.inside, advance=advance
        )


def attack_of(name: str, steps: int, rounds: int) -> InvertingGradients:
    """The attack with so many steps."""
    if name in ("breaching", "leakpro"):
        tv = 0.2 / rounds if name == "breaching" else 1e-6
        return Peer(restarts=1, iterations=steps, tv=tv)
    return InvertingGradients(restarts=1, iterations=steps)


def rounds_of(net: str, pictures: Records, count: int, between: int) -> list[nn.Module]:
    """The model that clients receive in each of ``count`` rounds, oldest first."""
    torch.manual_seed(0)
    inputs, labels = pictures.inputs[1000:], pictures.labels[1000:]
    model, received = NETS[net](), []
    adam = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for number in range(count):
        received.append(deepcopy(model).eval())
        if number == count - 1:
            break
        generator = torch.Generator().manual_seed(number)
        batches = (torch.randint(len(inputs), (64,), generator=generator) for _ in range(between))
        fit(model.train(), inputs, labels, adam, batches)
    return received


def view_of(models: list[nn.Module], batch: Records, sigma: float) -> AttackerView:
    """View the batch's updates in all rounds, with noise of ``sigma`` times their rms."""
    generator = torch.Generator().manual_seed(0)
    views = [blurred(seen_of(net, batch, known_labels=True), sigma, generator) for net in models]
    return replace(views[-1], earlier=tuple(views[:-1]))


def psnr(attack: InvertingGradients, view: AttackerView, truth: Tensor, seed: int) -> np.ndarray:
    """Of each picture, in dB."""
    records = attack.run(view, Execution(seed)).records
    assert records is not None
    errors = (assigned(truth, records[None])[0] - truth).square().flatten(1).mean(dim=1)
    return np.asarray(-10 * errors.log10())


def main() -> None:
    given, every = arguments(__doc__), cifar10()
    pictures = replace(every, inputs=every.inputs.float())
    heading("net", "batch", "attack", "rounds", "steps", "PSNR (95 %)", "success", "each batch")
    for net in given.nets:
        models = rounds_of(net, pictures, max(given.rounds), given.between)
        for size, name, count in product(given.batch, given.attacks, given.rounds):
            if name == "leakpro" and count > 1:
                continue
            steps = max(given.steps // count, 1)
            attack, found = attack_of(name, steps, count), []
            for seed in range(given.batches):
                batch = pictures.take(np.arange(seed * size, (seed + 1) * size))
                view = view_of(models[-count:], batch, given.sigma)
                found.append(psnr(attack, view, batch.inputs, seed))
            means = np.array([each.mean() for each in found])
            share = (np.concatenate(found) >= 20).mean()
            low, high = student(means) if len(means) > 1 else (np.nan, np.nan)
            interval = f"{means.mean():.1f} [{low:.1f}, {high:.1f}]"
            line(net, size, name, count, steps, interval, f"{share:.2f}", means.round(1))


if __name__ == "__main__":
    main()
