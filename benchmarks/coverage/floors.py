"""No attack beats a floor; its number is on the safe side of the truth.

    python -m benchmarks.coverage.floors [PARTS …] [--runs 200] [--audits 100]

``attacks``: records drawn from the prior, updates of tanh networks under noise, and attackers who
know all that a floor grants them: the most likely record (MAP) from the truth itself and from the
prior's mean, by Levenberg and Marquardt, and the mean of the posterior law, by Metropolis, of walks
that begin near the most likely record. Mean squared errors over the prior's variance, with standard
errors, beside the floor. ``coverage``: audits of 64 drawn records, with all bounds; how often the
safe number lies beyond the mean of four audits of 1,024 (2.5 % nominal). ``intervals``: how often
the interval of ``floor.gap``'s attack on 16 records holds its mean over all audits (95 % nominal).
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn

from benchmarks.harness import arguments, drawn, fit
from gradaudit.audits.floor.functionals import Functional, nats, share
from gradaudit.audits.floor.information import Information, layer_information, sum_of_layers
from gradaudit.audits.floor.playing import AttackedRecords
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.rate_distortion import UpdateLaw, update_laws
from gradaudit.audits.floor.release import Release
from gradaudit.audits.floor.van_trees import Estimate, van_trees_bound
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.per_sample import names_of
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Layer, Target, layers_of

RATIOS = (0.1, 0.3, 1.0)
"""Noise over what a direction tells on average."""


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

    def informations(self, draws: int, seed: int) -> dict[str, Information]:
        labels, shape = self.drawn(draws, seed), self.inputs.shape[1:]
        how = self.target, self.layers, self.prior, labels
        return layer_information(*how, shape=shape, seed=seed)

    def law(self, draws: int, seed: int) -> UpdateLaw:
        """Of the whole update, under noise of deviation one."""
        release = Release(tuple(names_of(self.layers)), 1, 1.0)
        how = self.target, self.layers, self.prior, self.drawn(draws, seed), (release,)
        shape = self.inputs.shape[1:]
        found = update_laws(*how, shape=shape, seed=seed, memory=1 << 30)
        return reduce(add, found.values())

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
            model = load_model(spec, seed=0).double()
            torch.manual_seed(0)
            adam = torch.optim.Adam(model.parameters(), lr=3e-3)
            fit(model, inputs, labels, adam, drawn(len(labels), 100, steps))
            prior = GaussianPrior.fitted(inputs.flatten(1))
            yield Case(f"{spec} after {steps} steps", model, inputs, labels, prior)


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


def attacks(runs: int) -> None:
    """Attackers' errors beside the floor."""
    print(
        f"{'network':50} {'sigma':>7} {'floor':>15} {'MAP from truth':>14} {'MAP':>14} "
        f"{'posterior mean':>14}"
    )
    for case in cases():
        infos = sum_of_layers(case.informations(1024, 1).values())
        law = case.law(1024, 1)
        scale = float(infos.mean.diagonal().mean()) ** 0.5
        for ratio in RATIOS:
            sigma = scale * ratio
            floor = van_trees_bound(share, infos / sigma**2, case.prior, law * sigma**-2)
            errors = played(case, sigma, runs)
            told = " ".join(f"{e.mean():.4f} ±{e.std() / len(e) ** 0.5:.4f}" for e in errors.T)
            ratio_best = floor.value / errors.mean(axis=0).min()
            print(
                f"{case.name[-50:]:50} {sigma:7.2g} {floor.value:.4f} [{floor.safe:.4f}] "
                f"{told}  floor/best {ratio_best:.2f}",
                flush=True,
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
    print(f"{'network':50} {'metric':>6} {'noise':>5} {'many':>8} {'value':>8} {'unsafe %':>8}")
    measures: dict[str, Functional] = {"share": share, "nats": nats}
    for case in cases():
        many = [measured_of(case, 1024, seed) for seed in range(4)]
        scale = float(many[0][0].mean.diagonal().mean()) ** 0.5
        few = [measured_of(case, 64, 1000 + seed) for seed in range(audits)]
        for ratio, (name, measure) in itertools.product(RATIOS, measures.items()):
            factor = (scale * ratio) ** -2

            def bound(
                told: Told, measure: Functional = measure, factor: float = factor, case: Case = case
            ) -> Estimate:
                infos, law = told
                return van_trees_bound(measure, infos * factor, case.prior, law * factor)

            truth = float(np.mean([bound(each).value for each in many]))
            found = [bound(each) for each in few]
            unsafe = [measure.sign * (each.safe - truth) > 0 for each in found]
            print(
                f"{case.name[-50:]:50} {name:>6} {ratio:5} {truth:8.4g} "
                f"{np.mean([each.value for each in found]):8.4g} {100 * np.mean(unsafe):8.1f}",
                flush=True,
            )


Told = tuple[Information, UpdateLaw]


def measured_of(case: Case, draws: int, seed: int) -> Told:
    """What an audit of so many drawn records measures, at noise of deviation one."""
    return sum_of_layers(case.informations(draws, seed).values()), case.law(draws, seed)


def intervals(audits: int) -> None:
    """How often the interval of an attack on 16 records holds its mean over all audits."""
    print(f"{'network':50} {'noise':>5} {'share':>8} {'width':>8} {'holds %':>8}")
    for case in cases():
        told = measured_of(case, 64, 1)[0]
        scale = float(told.mean.diagonal().mean()) ** 0.5
        names = tuple(names_of(case.layers))
        view = FunctionalModel.of(case.target, dtype=torch.float64)
        for ratio in RATIOS:
            release, found = Release(names, 1, scale * ratio), []
            for seed in range(audits):
                labels = case.drawn(16, seed)
                drawn_ones = case.prior.draw(16, torch.Generator().manual_seed(5000 + seed))
                shaped = drawn_ones.reshape(-1, *case.inputs.shape[1:])
                records = AttackedRecords([(view, 1)], case.prior, shaped, labels, (release,), seed)
                found.append(records.played(case.layers))
            mean = float(np.mean([attack.share for attack in found]))
            ends = np.array([attack.interval for attack in found])
            held = (ends[:, 0] <= mean) & (mean <= ends[:, 1])
            print(
                f"{case.name[-50:]:50} {ratio:5} {mean:8.4f} {np.diff(ends).mean():8.4f} "
                f"{100 * held.mean():8.1f}",
                flush=True,
            )


if __name__ == "__main__":
    asked = arguments(__doc__)
    parts: dict[str, Callable[[], None]] = {
        "attacks": lambda: attacks(asked.runs),
        "coverage": lambda: coverage(asked.audits),
        "intervals": lambda: intervals(asked.audits),
    }
    for part in asked.parts or parts:
        parts[part]()
