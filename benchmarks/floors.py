"""No attack beats a floor; its confidence interval holds the truth; and what it takes.

    python benchmarks/floors.py [--runs 200] [--audits 400] [attacks] [coverage] [speed]

``attacks``: records drawn from the prior, updates of tanh networks under noise, and attackers who
know all that a floor grants them: the most likely record (MAP) from the truth itself and from the
prior's mean, by Levenberg and Marquardt, and the best linear estimate. Mean squared errors over the
prior's variance, with standard errors, beside the floor. ``coverage``: audits of a few records
drawn from a population whose information is known; how often the interval's safe end is beyond the
truth (2.5 % nominal), and how often the whole interval misses it. ``speed``: a LeNet at 32 × 32 in
colour, 64 records, CPU seconds. One thread.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn

from gradaudit.floors.prior import Prior
from gradaudit.floors.van_trees import (
    Functional,
    estimate,
    floor_of,
    informations,
    nats,
    share,
    sum_of_layers,
)
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Layer, Target, layers_of

LABELS = 10


@dataclass(frozen=True)
class Case:
    """A network with its data and prior."""

    name: str
    model: nn.Module
    inputs: Tensor
    labels: Tensor
    prior: Prior

    @property
    def target(self) -> Target:
        return Target(self.model, CrossEntropy())

    @property
    def layers(self) -> tuple[Layer, ...]:
        return layers_of(self.model, with_bias=True)

    def informations(self, draws: int, units: int, seed: int) -> dict[str, Tensor]:
        chosen = torch.randint(
            len(self.labels), (draws,), generator=torch.Generator().manual_seed(seed)
        )
        return informations(
            self.target,
            self.layers,
            self.prior,
            self.labels[chosen],
            shape=self.inputs.shape[1:],
            seed=seed,
            units=units,
        )

    def gradient(self, record: Tensor, label: Tensor) -> Tensor:
        """One record's whole gradient, (elements,)."""
        names, parameters = zip(*self.model.named_parameters(), strict=True)

        def loss(values: tuple[Tensor, ...]) -> Tensor:
            state = dict(zip(names, values, strict=True))
            outputs = torch.func.functional_call(self.model, state, record[None])
            return nn.functional.cross_entropy(outputs, label[None])

        grads = torch.func.grad(loss)(tuple(p.detach() for p in parameters))
        return torch.cat([grad.flatten() for grad in grads])


def trained(model: nn.Module, inputs: Tensor, labels: Tensor, steps: int) -> nn.Module:
    """After some steps of Adam on batches of 100."""
    torch.manual_seed(0)
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = torch.randint(len(labels), (100,))
        adam.zero_grad()
        nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
        adam.step()
    return model


def cases() -> Iterator[Case]:
    table = load_diabetes()
    rows = torch.tensor(table.data / table.data.std(axis=0))
    risen = torch.tensor((table.target > np.median(table.target)).astype(np.int64))
    pictures = load_digits()
    images, digits = torch.tensor(pictures.images / 16).unsqueeze(1), torch.tensor(pictures.target)
    for steps in (0, 300):
        for spec, inputs, labels in (
            ("zoo:mlp?inputs=10&classes=2&activation=tanh", rows, risen),
            ("zoo:cnn3?shape=1x8x8", images, digits),
        ):
            model = trained(load_model(spec, seed=0).double(), inputs, labels, steps)
            prior = Prior.fitted(inputs.flatten(1))
            yield Case(f"{spec} after {steps} steps", model, inputs, labels, prior)


def most_likely(
    case: Case, seen: Tensor, labels: Tensor, start: Tensor, sigma: float, steps: int = 60
) -> Tensor:
    """Records of highest posterior density near a start, (runs, d), by Levenberg and Marquardt.

    Records are z in the prior's directions; the residuals are (seen − g)/σ and z.
    """
    basis = case.prior.variances.sqrt()[:, None] * case.prior.axes
    shape = case.inputs.shape[1:]

    def residual(z: Tensor, label: Tensor, update: Tensor) -> Tensor:
        record = (case.prior.mean + z @ basis).reshape(shape)
        return (update - case.gradient(record, label)) / sigma

    residuals = torch.func.vmap(residual)
    slopes = torch.func.vmap(torch.func.jacfwd(residual))

    def objective(z: Tensor) -> Tensor:
        with torch.no_grad():
            return residuals(z, labels, seen).square().sum(dim=1) + z.square().sum(dim=1)

    z, best = start, objective(start)
    damping = torch.full_like(best, 1e-3)
    for _ in range(steps):
        with torch.no_grad():
            jacobians, apart = slopes(z, labels, seen), residuals(z, labels, seen)
        curvature = jacobians.mT @ jacobians + torch.eye(z.shape[1], dtype=z.dtype)
        slope = (jacobians.mT @ apart.unsqueeze(2)).squeeze(2) + z
        damped = curvature + torch.diag_embed(damping[:, None] * curvature.diagonal(dim1=1, dim2=2))
        step = torch.linalg.solve(damped, slope)
        now = objective(z - step)
        better = now < best
        gained = float(torch.where(better, best - now, 0).max())
        z = torch.where(better[:, None], z - step, z)
        best = torch.where(better, now, best)
        damping = torch.where(better, damping / 5, damping * 10).clamp(1e-9, 1e12)
        if gained < 1e-6 and float(damping.min()) > 1e3:
            break
    return z


def attacks(runs: int) -> None:
    """Attackers' errors beside the floor."""
    print(f"{'network':50} {'sigma':>7} {'floor':>15} {'MAP from truth':>14} {'MAP':>14} linear")
    for case in cases():
        infos = sum_of_layers(case.informations(256, 16, 1).values())
        scale = float(infos.mean(dim=0).diagonal().mean()) ** 0.5
        for ratio in (0.1, 0.3, 1.0):
            sigma = scale * ratio
            floor = floor_of([infos / sigma**2], case.prior)
            errors = played(case, sigma, runs)
            told = " ".join(f"{e.mean():.4f} ±{e.std() / len(e) ** 0.5:.4f}" for e in errors.T)
            ratio_best = floor.value / errors.mean(axis=0).min()
            print(
                f"{case.name[-50:]:50} {sigma:7.2g} {floor.value:.4f} [{floor.interval[0]:.4f}] "
                f"{told}  floor/best {ratio_best:.2f}",
                flush=True,
            )


def played(case: Case, sigma: float, runs: int) -> np.ndarray:
    """Squared errors over the prior's variance, (runs, attackers)."""
    generator = torch.Generator().manual_seed(5)
    prior, shape = case.prior, case.inputs.shape[1:]
    records = prior.draw(4 * runs, generator)
    labels = case.labels[torch.randint(len(case.labels), (4 * runs,), generator=generator)]
    truths = (records - prior.mean) @ prior.axes.mT / prior.variances.sqrt()
    sent = torch.func.vmap(case.gradient)(records.reshape(-1, *shape), labels).detach()
    noise = torch.randn(sent.shape, generator=generator, dtype=sent.dtype)
    seen = sent + sigma * noise
    linear = best_linear(seen[runs:], truths[runs:])
    truth, at, of = truths[:runs], seen[:runs], labels[:runs]
    guesses = (
        most_likely(case, at, of, truth, sigma),
        most_likely(case, at, of, torch.zeros_like(truth), sigma),
        linear(at),
    )
    errors = [(z - truth).square() @ prior.variances / prior.variance for z in guesses]
    return torch.stack(errors, dim=1).numpy()


def best_linear(seen: Tensor, truths: Tensor) -> Callable[[Tensor], Tensor]:
    """Ridge regression of records on updates, in its dual."""
    mean = seen.mean(dim=0)
    centred = seen - mean
    gram = centred @ centred.mT
    ridge = gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    weights = centred.mT @ torch.linalg.solve(gram + ridge, truths)
    return lambda update: (update - mean) @ weights


def coverage(audits: int) -> None:
    """How often intervals miss what is known of a population."""
    print(
        f"{'network':50} {'records':>7} {'metric':>6} {'truth':>8} {'value':>8} "
        f"{'unsafe %':>8} {'missed %':>8}"
    )
    measures: dict[str, Functional] = {"share": share, "nats": nats}
    for case in cases():
        population = sum_of_layers(case.informations(2000, 2000, 2).values())
        scale = float(population.mean(dim=0).diagonal().mean()) ** 0.5
        for records, ratio, (name, measure) in itertools.product(
            (16, 64), (0.1, 1.0), measures.items()
        ):
            found = resampled(measure, population / (scale * ratio) ** 2, case, records, audits)
            print(f"{case.name[-50:]:50} {records:7} {name:>6} {found}", flush=True)


def resampled(
    measure: Functional, population: Tensor, case: Case, records: int, audits: int
) -> str:
    """The truth, the mean value, how often the safe end and the interval miss it."""
    truth = measure(population.mean(dim=0), case.prior)[0]
    generator = torch.Generator().manual_seed(7)
    values, unsafe, missed = [], 0, 0
    for _ in range(audits):
        chosen = torch.randint(len(population), (records,), generator=generator)
        units = population[chosen].reshape(16, -1, *population.shape[1:]).mean(dim=1)
        found = estimate(measure, units, case.prior)
        low, high = found.interval
        values.append(found.value)
        unsafe += low > truth if measure is share else high < truth
        missed += not low <= truth <= high
    return (
        f"{truth:8.4g} {np.mean(values):8.4g} {100 * unsafe / audits:8.1f} "
        f"{100 * missed / audits:8.1f}"
    )


def speed() -> None:
    """CPU seconds of a LeNet's floor."""
    generator = torch.Generator().manual_seed(0)
    rough = torch.rand(1000, 3, 32, 32, generator=generator, dtype=torch.float64)
    inputs = nn.functional.avg_pool2d(rough, 5, stride=1, padding=2)
    model = load_model("zoo:deep-leakage?classes=10", seed=0)
    start = time.process_time()
    prior = Prior.fitted(inputs.flatten(1))
    labels = torch.randint(LABELS, (1000,), generator=generator)
    case = Case("LeNet", model, inputs, labels, prior)
    infos = case.informations(64, 16, 0)
    fitted = time.process_time()
    floors = {name: floor_of([part / 1e-6], prior) for name, part in infos.items()}
    whole = floor_of([part / 1e-6 for part in infos.values()], prior)
    print(f"informations {fitted - start:.1f} s, floors {time.process_time() - fitted:.1f} s")
    print(floors, whole)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=[])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--audits", type=int, default=400)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    parts: dict[str, Callable[[], None]] = {
        "attacks": lambda: attacks(asked.runs),
        "coverage": lambda: coverage(asked.audits),
        "speed": speed,
    }
    for part in asked.parts or parts:
        parts[part]()
