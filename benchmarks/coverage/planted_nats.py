"""What audits find where the truth is so many nats.

    python -m benchmarks.coverage.planted_nats [--parts features,inputs] [--rows 600] [--seeds 20]
        [--family forest,mlp,logistic] [--repeats 6]

Two Gaussian classes, apart by as much as makes I(X; A) 0.1, 0.3 and 0.5 nats, as the features that
the predictive families see; and the same hidden in the inputs of a linear model, whose gradients,
of batches of one record, hold what the input does. What is found of nothing is in the studies
``vinfo``, ``scan`` and ``subspace``.
"""

import argparse

import numpy as np
import torch
from scipy import optimize, stats

import gradaudit
from benchmarks.harness import arguments, heading, line
from gradaudit.audits.vinfo.v_information import BatchSets, LabelledFeatures, usable_information
from gradaudit.core.statistics.intervals import student
from gradaudit.data.records import Attribute, Records

NATS = (0.1, 0.3, 0.5)
UNIFORM = np.array([0.5, 0.5])
Found = tuple[float, tuple[float, float], float]
"""Nats with their interval, and AUROC."""


def information(shift: float) -> float:
    """I(X; A) in nats of two equally likely Gaussians of unit variance, by quadrature."""
    grid = np.linspace(-12, 12 + shift, 20_001)
    log_odds = shift * grid - shift**2 / 2
    density = np.exp(-((grid - shift) ** 2) / 2) / np.sqrt(2 * np.pi)
    step = grid[1] - grid[0]
    return float(np.log(2) - (density * np.logaddexp(0, -log_odds)).sum() * step)


def planted_features(shift: float, given: argparse.Namespace) -> Found:
    """Straight into the families: folds and a score set of independent rows, of several seeds."""
    found = [
        usable_information(
            gaussian_sets(shift, given.rows, seed),
            UNIFORM,
            tuple(given.family.split(",")),
            np.random.SeedSequence(seed),
        )
        for seed in range(given.seeds)
    ]
    values = np.array([each.information for each in found])
    return float(values.mean()), student(values), float(np.mean([each.auroc for each in found]))


def gaussian_sets(shift: float, rows: int, seed: int) -> BatchSets:
    """Rows with value a at a·shift in the first of three columns."""
    generator = np.random.default_rng(seed)

    def drawn(count: int) -> LabelledFeatures:
        labels = np.arange(count) % 2
        features = generator.normal(size=(count, 3))
        features[:, 0] += shift * labels
        return LabelledFeatures(features, labels)

    return BatchSets((drawn(rows // 2), drawn(rows // 2), drawn(rows // 2)), drawn(rows))


def planted_inputs(shift: float, given: argparse.Namespace) -> Found:
    """Through the audit: the gradient of a linear model by one record tells its input.

    The loss is the squared error of an output of 0 to a target of 1, so that the gradient by the
    weight is the input times −2. There are ten times as many records as rows.
    """
    size, generator = 10 * given.rows, np.random.default_rng(3)
    codes = np.arange(size) % 2
    inputs = generator.normal(size=(size, 3))
    inputs[:, 0] += shift * codes
    linear = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.zeros_(linear.weight)
    planted = Attribute(codes.astype(np.int64), ("no", "yes"))
    options = {
        "batch_size": 1,
        "batches": given.rows // 2,
        "repeats": given.repeats,
        "family": given.family,
        "correlation": False,
    }
    report = gradaudit.audit(
        torch.nn.Sequential(linear),
        Records(torch.from_numpy(inputs).float(), torch.ones(size, 1), (), {"planted": planted}),
        loss="mse",
        audits={"vinfo": options},
        attributes=("planted",),
        samples=size,
    )
    (row,) = report.select("vinfo.vinfo", variant={})
    (area,) = report.select("vinfo.auroc", variant={})
    return row.value or 0.0, row.interval or (np.nan, np.nan), area.value or 0.0


def main() -> None:
    given = arguments(__doc__)
    parts = {"features": planted_features, "inputs": planted_inputs}
    heading("planted in", "nats", "found", "AUROC, true", "found")
    for part in given.parts.split(","):
        for nats in NATS:
            shift = optimize.brentq(lambda at, nats=nats: information(at) - nats, 0, 20)
            value, (low, high), area = parts[part](shift, given)
            told = f"{value:.3f} [{low:.3f}, {high:.3f}]"
            line(part, nats, told, f"{stats.norm.cdf(shift / 2**0.5):.3f}", f"{area:.3f}")


if __name__ == "__main__":
    main()
