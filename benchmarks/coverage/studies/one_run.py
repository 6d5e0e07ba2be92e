"""How often dp-audit's bounds from one run exceed the truth.

Scores are drawn from the law of Gaussian runs, and of a training whose truth is known.
"""

import math
from collections.abc import Iterator, Mapping
from functools import cache, partial
from itertools import product

import numpy as np
import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn

from benchmarks.coverage.studies.base import Cell, Outcome, Study
from gradaudit.audits.dp_audit.law.estimates import gaussian_bound
from gradaudit.audits.dp_audit.law.one_run_bounds import epsilon_one_run
from gradaudit.audits.dp_audit.law.theory import epsilon_composed, epsilon_gaussian
from gradaudit.core.randomness import rng
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.federation.federated_training import FederatedTraining
from gradaudit.federation.record_canaries import RecordCanaries
from gradaudit.federation.settings import TrainingOptions
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target

ALPHA, DELTA = 0.05, 1e-5
HOLDS, ALL_HOLD = (0.95, 1.0), (0.85, 1.0)
CLIENTS, ROUNDS = 5, 3


@cache
def epsilon_of(mu: float) -> float:
    return epsilon_gaussian(mu, DELTA)


def judged(scores: np.ndarray, included: np.ndarray, truth: float) -> Mapping[str, Outcome]:
    plain, sharper = epsilon_one_run(scores, included, delta=DELTA, alpha=ALPHA)
    shift = gaussian_bound(scores[~included], scores[included], delta=DELTA, alpha=ALPHA)
    return {
        "one-run": Outcome(plain.value <= truth),
        "f-DP, if Gaussian": Outcome(sharper.value <= truth),
        "mean shift, if Gaussian": Outcome(shift.epsilon <= truth),
    }


def simulated(mu: float, canaries: int, seed: int) -> Mapping[str, Outcome]:
    draws = rng(seed, "one-run")
    included = draws.integers(2, size=canaries).astype(bool)
    scores = draws.standard_normal(canaries) + mu * included
    return judged(scores, included, epsilon_of(mu))


def together(mu: float, canaries: int, seed: int) -> Mapping[str, Outcome]:
    """Whether the largest of the bounds holds: none is beyond the truth."""
    outcomes = simulated(mu, canaries, seed).values()
    return {"largest of the three": Outcome(all(one.covered for one in outcomes))}


def trained(sigma: float, canaries: int, seed: int) -> Mapping[str, Outcome]:
    """A client more moves the sum of N updates by the clip, under noise σ√N, in every round."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(10, 50), nn.ReLU(), nn.Linear(50, 2))
    records = Records(torch.randn(50, 10), torch.arange(50) % 2)
    training = FederatedTraining(
        Target(model, CrossEntropy()),
        records,
        TrainingOptions(clients=CLIENTS, canaries=canaries),
        defenses=[parse_defense(f"dp:clip=1,sigma={sigma},per=release")],
        seed=seed,
    )
    for _ in range(ROUNDS):
        training.advance()
    assert training.canaries is not None
    scores = training.canaries.scores
    members = CLIENTS + int(scores.included.sum())
    truth = math.sqrt(ROUNDS) / (sigma * math.sqrt(members - 1))
    totals = scores.cosines.sum(axis=0)[:, 0]
    return judged(totals, scores.included, epsilon_gaussian(truth, DELTA))


def of_records(
    rate: float, multiplier: float, steps: int, seed: int, large: bool = False
) -> Mapping[str, Outcome]:
    """Canary records in a training by Opacus, under Poisson sampling.

    The large one has 1,000 records, 6,154 parameters and as many canaries as there are by default.
    """
    records, width, count = (1000, 64, None) if large else (100, 24, 300)
    torch.manual_seed(seed)
    inputs, labels = torch.randn(records, 20 if large else 8), torch.arange(records) % 4
    inner = [nn.Linear(width, width), nn.ReLU()] if large else []
    layers = [nn.Linear(inputs.shape[1], width), nn.ReLU(), *inner, nn.Linear(width, 4 + 6 * large)]
    model, draws = GradSampleModule(nn.Sequential(*layers)), rng(seed, "one-run records")
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        noise_multiplier=multiplier,
        max_grad_norm=1.0,
        expected_batch_size=rate * records,
    )
    with RecordCanaries(optimizer, sampling_rate=rate, count=count, seed=seed) as canaries:
        for _ in range(steps):
            optimizer.zero_grad()
            taken = torch.from_numpy(draws.random(records) < rate)
            loss = nn.functional.cross_entropy(model(inputs[taken]), labels[taken])
            torch.autograd.backward(loss)
            optimizer.step()
    scores = canaries.scores()
    promise = epsilon_composed(multiplier, steps, DELTA, sampling_rate=rate, relation="remove")
    totals = scores.cosines.sum(axis=0)[:, 0]
    plain, sharper = epsilon_one_run(
        totals, scores.included, delta=DELTA, alpha=ALPHA, unit="record"
    )
    third = {"power: a third of the truth": Outcome(plain.value >= promise / 3)} if large else {}
    return {
        "one-run": Outcome(plain.value <= promise),
        "f-DP, if Gaussian": Outcome(sharper.value <= promise),
        **third,
    }


def cells(canaries: tuple[int, ...], shifts: tuple[float, ...]) -> Iterator[Cell]:
    for count, mu in product(canaries, shifts):
        yield Cell({"canaries": count, "mu": mu}, partial(simulated, mu, count), HOLDS)


def full() -> Iterator[Cell]:
    yield from cells((100, 400, 1000), (0.0, 0.5, 1.0, 2.0, 4.0))
    for mu in (0.5, 1.0, 4.0):
        yield Cell(
            {"taken together, canaries": 400, "mu": mu}, partial(together, mu, 400), ALL_HOLD
        )
    for sigma in (0.05, 0.2):
        yield Cell({"training, canaries": 200, "sigma": sigma}, partial(trained, sigma, 200), HOLDS)
    for rate, noise, steps in ((0.2, 1.0, 30), (1.0, 5.0, 20)):
        play = partial(of_records, rate, noise, steps)
        yield Cell({"records, rate": rate, "noise": noise}, play, HOLDS)
    large = {"records, parameters 6154, rate": 0.1, "noise": 1.0, "steps": 100}
    yield Cell(large, partial(of_records, 0.1, 1.0, 100, large=True), HOLDS)


STUDY = Study(
    "one-run",
    "Scores of canaries that are normal with a shift μ for those that are in, or the canaries of a "
    "training of three rounds with noise, or canary records in a training by Opacus; the truth is "
    "the ε of μ, or of the noise, at δ = 1e-5.",
    quick=partial(cells, (200,), (0.0, 1.0, 3.0)),
    full=full,
    notes=(
        "The mean shift's bound is exact for normal scores: it errs in just 5 % of runs. Each of "
        "the three holds by itself; of the largest of them only 85 % is promised.",
    ),
)
