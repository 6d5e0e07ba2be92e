"""No attack beats a floor; its number is on the safe side of the truth.

    python -m benchmarks.coverage.floors [PARTS …] [--runs 200] [--audits 100] [--records 1024]

``attacks``: records drawn from the prior, updates of tanh networks under noise, and attackers who
know all that a floor grants them: the most likely record (MAP) from the truth itself and from the
prior's mean, by Levenberg and Marquardt, and the mean of the posterior law, by Metropolis, of walks
that begin near the most likely record. Mean squared errors over the prior's variance, with standard
errors, beside the floor. ``coverage``: audits of 16 and 64 drawn records; how
often the safe number, Hall's and Student's, is beyond the mean of four audits of 1,024 (2.5 %
nominal). ``lognormal``: the same of units whose information in one direction is lognormal.
``bayes``: 2-8-2 networks of tanh on two
Gaussian classes and on two half-moons, whose best attacker has the variance of the posterior on a
grid of 301 × 301, on average over 200 updates; beside it the median of the audits' safe floors,
and how many lie beyond it.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn

from benchmarks.harness import arguments, drawn, fit, heading, line
from gradaudit.audits.floor.information import layer_information
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.van_trees import (
    Functional,
    gaussian_nats,
    unit_numbers,
    van_trees,
    van_trees_bound,
)
from gradaudit.core.statistics.intervals import skewed, student
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Layer, Target, layers_of

RATIOS, BAYES_RATIOS = (0.1, 0.3, 1.0), (0.01, 0.03, 0.1, 0.3, 1.0)
"""Noise over what a direction tells on average."""
FUNCTIONALS: tuple[Functional, ...] = ("mse_share", "nats")


@dataclass(frozen=True)
class Case:
    """A network with its data and prior."""

    name: str
    model: nn.Module
    inputs: Tensor
    labels: Tensor
    prior: GaussianPrior

    @property
    def target(self) -> Target:
        return Target(self.model, CrossEntropy())

    @property
    def layers(self) -> tuple[Layer, ...]:
        return layers_of(self.model, with_bias=True)

    def drawn(self, draws: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return self.labels[torch.randint(len(self.labels), (draws,), generator=generator)]

    def information(self, draws: int, seed: int) -> Tensor:
        """Of the whole update by units, under noise of deviation one."""
        how = self.target, self.layers, self.prior, self.drawn(draws, seed)
        shape = self.inputs.shape[1:]
        found = layer_information(*how, shape=shape, seed=seed)
        return torch.stack([*found.values()]).sum(dim=0)

    def gradient(self, record: Tensor, label: Tensor) -> Tensor:
        """One record's whole gradient, (elements,)."""
        names, parameters = zip(*self.model.named_parameters(), strict=True)

        def loss(values: tuple[Tensor, ...]) -> Tensor:
            state = dict(zip(names, values, strict=True))
            outputs = torch.func.functional_call(self.model, state, record[None])
            return nn.functional.cross_entropy(outputs, label[None])

        grads = torch.func.grad(loss)(tuple(p.detach() for p in parameters))
        return torch.cat([grad.flatten() for grad in grads])


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
            yield trained(spec, inputs, labels, steps)


def trained(spec: str, inputs: Tensor, labels: Tensor, steps: int) -> Case:
    """A network after so many steps of Adam."""
    model = load_model(spec, seed=0).double()
    torch.manual_seed(0)
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(model, inputs, labels, adam, drawn(len(labels), 100, steps))
    prior = GaussianPrior.fitted(inputs.flatten(1))
    return Case(f"{spec} after {steps} steps", model, inputs, labels, prior)


@dataclass(frozen=True)
class Posterior:
    """What updates say of their records z, in the prior's directions.

    Attributes:
        case: the network.
        seen: the noisy updates, (runs, elements).
        labels: of the records.
        sigma: deviation of the noise.
    """

    case: Case
    seen: Tensor
    labels: Tensor
    sigma: float

    def residual(self, z: Tensor, label: Tensor, update: Tensor) -> Tensor:
        """(seen − g)/σ of one record."""
        prior = self.case.prior
        record = (prior.mean + z @ prior.leaders).reshape(self.case.inputs.shape[1:])
        return (update - self.case.gradient(record, label)) / self.sigma

    def residuals(self, z: Tensor) -> Tensor:
        """Of all, (runs, elements)."""
        with torch.no_grad():
            found: Tensor = torch.func.vmap(self.residual)(z, self.labels, self.seen)
        return found

    def slopes(self, z: Tensor) -> Tensor:
        """Their Jacobians, (runs, elements, d)."""
        with torch.no_grad():
            jacobians = torch.func.vmap(torch.func.jacfwd(self.residual))
            found: Tensor = jacobians(z, self.labels, self.seen)
        return found

    def curvature(self, jacobians: Tensor) -> Tensor:
        """Of minus the log density, without second derivatives, (runs, d, d)."""
        return jacobians.mT @ jacobians + torch.eye(jacobians.shape[2], dtype=jacobians.dtype)

    def objective(self, z: Tensor) -> Tensor:
        """Minus twice the log density but for a constant, (runs,)."""
        return self.residuals(z).square().sum(dim=1) + z.square().sum(dim=1)


def most_likely(posterior: Posterior, start: Tensor, steps: int = 60) -> Tensor:
    """Records of highest posterior density near a start, (runs, d), by Levenberg and Marquardt."""
    z, best = start, posterior.objective(start)
    damping = torch.full_like(best, 1e-3)
    for _ in range(steps):
        jacobians, apart = posterior.slopes(z), posterior.residuals(z)
        curvature = posterior.curvature(jacobians)
        slope = (jacobians.mT @ apart.unsqueeze(2)).squeeze(2) + z
        damped = curvature + torch.diag_embed(damping[:, None] * curvature.diagonal(dim1=1, dim2=2))
        step = torch.linalg.solve(damped, slope)
        now = posterior.objective(z - step)
        better = now < best
        gained = float(torch.where(better, best - now, 0).max())
        z = torch.where(better[:, None], z - step, z)
        best = torch.where(better, now, best)
        damping = torch.where(better, damping / 5, damping * 10).clamp(1e-9, 1e12)
        if gained < 1e-6 and float(damping.min()) > 1e3:
            break
    return z


def mean_of(posterior: Posterior, near: Tensor, steps: int) -> Tensor:
    """The posterior's mean, (runs, d): Metropolis walks with steps of the density's own shape.

    The first half of a walk is not counted, and adapts the length of its steps.
    """
    generator = torch.Generator().manual_seed(9)
    curvature = posterior.curvature(posterior.slopes(near))
    shape = torch.linalg.inv(torch.linalg.cholesky(curvature)).mT

    def jump(like: Tensor) -> Tensor:
        normal = torch.randn(like.shape, generator=generator, dtype=like.dtype)
        jumped: Tensor = (shape @ normal.unsqueeze(2)).squeeze(2)
        return jumped

    z = near + jump(near)
    now, total = posterior.objective(z), torch.zeros_like(z)
    length = torch.full((len(z), 1), 2.38 / z.shape[1] ** 0.5, dtype=z.dtype)
    for step in range(steps):
        proposed = z + length * jump(z)
        then = posterior.objective(proposed)
        drawn = torch.rand(then.shape, generator=generator, dtype=then.dtype)
        taken = drawn.log() < (now - then) / 2
        z = torch.where(taken[:, None], proposed, z)
        now = torch.where(taken, then, now)
        if 2 * step < steps:
            length *= torch.where(taken, 1.03, 0.99)[:, None]
        else:
            total += z
    return total / (steps // 2)


def scale_of(information: Tensor) -> float:
    """What a direction tells on average."""
    return math.sqrt(float(information.mean(dim=0).diagonal().mean()))


def attacks(runs: int) -> None:
    """Attackers' errors beside the floor."""
    attackers = ("MAP from truth", "MAP", "posterior mean")
    heading("network", "sigma", "floor [safe]", *attackers, "floor / best")
    for case in cases():
        told = case.information(1024, 1)
        for ratio in RATIOS:
            sigma = scale_of(told) * ratio
            floor = van_trees_bound("mse_share", told / sigma**2, case.prior)
            errors = played(case, sigma, runs)
            line(
                case.name,
                f"{sigma:.2g}",
                f"{floor.value:.4f} [{floor.safe:.4f}]",
                *(f"{e.mean():.4f} ±{e.std() / len(e) ** 0.5:.4f}" for e in errors.T),
                f"{floor.value / errors.mean(axis=0).min():.2f}",
            )


def played(case: Case, sigma: float, runs: int) -> np.ndarray:
    """Squared errors over the prior's variance, (runs, attackers)."""
    generator = torch.Generator().manual_seed(5)
    prior, shape = case.prior, case.inputs.shape[1:]
    records = prior.draw(runs, generator)
    labels = case.labels[torch.randint(len(case.labels), (runs,), generator=generator)]
    truths = (records - prior.mean) @ prior.axes.mT / prior.variances.sqrt()
    sent = torch.func.vmap(case.gradient)(records.reshape(-1, *shape), labels).detach()
    noise = torch.randn(sent.shape, generator=generator, dtype=sent.dtype)
    seen = sent + sigma * noise
    posterior = Posterior(case, seen, labels, sigma)
    near = most_likely(posterior, truths)
    far = most_likely(posterior, torch.zeros_like(truths))
    guesses = (near, far, mean_of(posterior, near, 2400))
    errors = [(z - truths).square() @ prior.variances / prior.variance for z in guesses]
    return torch.stack(errors, dim=1).numpy()


def coverage(audits: int) -> None:
    """How often safe numbers lie beyond the number of many more records."""
    ends = {"Hall": skewed, "Student": student}
    heading(
        "network",
        "records",
        "metric",
        "noise",
        "many",
        "value",
        *ends,
        *(f"unsafe {n}" for n in ends),
    )
    for case, records in itertools.product(cases(), (16, 64)):
        many = [case.information(1024, seed) for seed in range(4)]
        scale = scale_of(many[0])
        seeds = range(1000, 1000 + audits)
        few = [case.information(records, seed) for seed in seeds]
        for ratio, name in itertools.product(RATIOS, FUNCTIONALS):
            factor, side = (scale * ratio) ** -2, 0 if name == "mse_share" else 1
            how = name, factor, case.prior
            truth = float(np.mean([numbers_of(one, *how).mean() for one in many]))
            found = [numbers_of(one, *how) for one in few]
            safe = {n: np.array([end(each)[side] for each in found]) for n, end in ends.items()}
            line(
                case.name,
                records,
                name,
                ratio,
                f"{truth:.4g}",
                f"{np.mean([each.mean() for each in found]):.4g}",
                *(f"{max(0.0, float(np.median(each))):.4g}" for each in safe.values()),
                *(f"{((1 - 2 * side) * (each - truth) > 0).mean():.1%}" for each in safe.values()),
            )


def numbers_of(
    information: Tensor, measure: Functional, factor: float, prior: GaussianPrior
) -> np.ndarray:
    """Units' numbers under noise of this inverse variance."""
    return unit_numbers(measure, information * factor, prior).numpy()


def lognormal(audits: int) -> None:
    """The same of one direction, whose information is lognormal of deviation 1."""
    heading("units", "information", "metric", "unsafe Hall", "unsafe Student")
    prior, draws = prior_of(torch.zeros(1), torch.eye(1)), torch.Generator()
    for units, scale, name in itertools.product((4, 16), (0.3, 1.0, 10.0), FUNCTIONALS):
        draws.manual_seed(0)
        mean = torch.full((1, 1), scale * math.exp(0.5), dtype=torch.float64)
        share = name == "mse_share"
        truth = float(van_trees(mean, [1.0]) if share else gaussian_nats(mean))
        sign, beyond = (1, np.zeros(2)) if share else (-1, np.zeros(2))
        for _ in range(audits):
            told = scale * torch.randn(units, 4, generator=draws, dtype=torch.float64).exp()
            numbers = unit_numbers(name, told.mean(dim=1)[:, None, None], prior).numpy()
            ends = [end(numbers)[0 if share else 1] for end in (skewed, student)]
            beyond += sign * (np.array(ends) - truth) > 0
        line(units, scale, name, *(f"{rate:.1%}" for rate in beyond / audits))


def prior_of(mean: Tensor, covariance: Tensor) -> GaussianPrior:
    """The law with this mean (d,) and covariance (d, d)."""
    variances, axes = torch.linalg.eigh(covariance.double())
    return GaussianPrior(mean.double(), axes.mT.flip(0), variances.flip(0).clamp(min=0))


def gauss(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    labels = torch.randint(2, (500,), generator=generator)
    noise = torch.randn(500, 2, generator=generator, dtype=torch.float64)
    return 0.8 * noise + 0.8 * (2.0 * labels - 1)[:, None], labels


def moons(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    labels = torch.randint(2, (500,), generator=generator)
    angles = math.pi * torch.rand(500, generator=generator, dtype=torch.float64)
    side = 1.0 - 2 * labels
    across, along = angles.cos() * side + labels - 0.5, angles.sin() * side + 0.5 * labels - 0.25
    noise = torch.randn(500, 2, generator=generator, dtype=torch.float64)
    return torch.stack([across, along], dim=1) + 0.15 * noise, labels


def planar_cases() -> Iterator[Case]:
    """Networks of two inputs after 0, 300 and 2,000 steps of Adam."""
    for make, steps in itertools.product((gauss, moons), (0, 300, 2000)):
        inputs, labels = make(torch.Generator().manual_seed(0))
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)).double()
        adam = torch.optim.Adam(model.parameters(), lr=1e-2)
        fit(model, inputs, labels, adam, [torch.arange(500)] * steps)
        prior = prior_of(inputs.mean(dim=0), torch.cov(inputs.mT))
        yield Case(f"{make.__name__} after {steps} steps", model, inputs, labels, prior)


class Grid:
    """The best attacker of records of two numbers: who takes the mean of the posterior."""

    def __init__(self, case: Case, updates: int = 200) -> None:
        axis = torch.linspace(-4.5, 4.5, 301, dtype=torch.float64)
        self.points, prior = torch.cartesian_prod(axis, axis), case.prior
        self.shares = prior.variances / prior.variance
        generator = torch.Generator().manual_seed(1)
        gradients, at = torch.func.vmap(case.gradient), prior.mean + self.points @ prior.leaders
        self.sent = [gradients(at, torch.full((len(at),), label)) for label in (0, 1)]
        z = torch.randn(updates, 2, generator=generator, dtype=torch.float64)
        self.classes = case.labels[torch.randint(500, (updates,), generator=generator)]
        self.clean = gradients(prior.mean + z @ prior.leaders, self.classes)
        self.noise = torch.randn(self.clean.shape, generator=generator, dtype=torch.float64)

    def error(self, sigma: float) -> tuple[float, float]:
        """Mean squared error over the prior's variance, and its standard error."""
        errors, squares = [], self.points.square()
        for seen, label in zip(self.clean + sigma * self.noise, self.classes, strict=True):
            apart = (seen - self.sent[label]).square().sum(dim=1) / sigma**2
            posterior = torch.softmax(-(apart + squares.sum(dim=1)) / 2, 0)
            variance = posterior @ squares - (posterior @ self.points).square()
            errors.append(float(variance @ self.shares))
        return float(np.mean(errors)), float(np.std(errors)) / len(errors) ** 0.5


def bayes(audits: int, records: int) -> None:
    """Floors beside the exact error of the best attacker."""
    heading("network", "noise", "Bayes", "floor", "Bayes / floor", "beyond")
    for case in planar_cases():
        told, grid = [case.information(records, seed) for seed in range(audits)], Grid(case)
        scale = float(np.mean([scale_of(one) ** 2 for one in told])) ** 0.5
        for ratio in BAYES_RATIOS:
            sigma = ratio * scale
            error, spread = grid.error(sigma)
            at = [one / sigma**2 for one in told]
            safe = np.array([van_trees_bound("mse_share", one, case.prior).safe for one in at])
            times = f"{error / max(float(np.median(safe)), 1e-12):.3g}"
            beyond = f"{int((safe > error + 2 * spread).sum())} of {audits}"
            shown = f"{error:.4g} ±{spread:.2g}", f"{np.median(safe):.4g}"
            line(case.name, ratio, *shown, times, beyond)


if __name__ == "__main__":
    asked = arguments(__doc__)
    parts: Mapping[str, Callable[[], None]] = {
        "attacks": lambda: attacks(asked.runs),
        "coverage": lambda: coverage(asked.audits),
        "lognormal": lambda: lognormal(asked.audits),
        "bayes": lambda: bayes(asked.audits, asked.records),
    }
    for part in asked.parts or parts:
        parts[part]()
