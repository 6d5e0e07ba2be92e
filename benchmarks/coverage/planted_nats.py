"""What audits find where the truth is so many nats.

    python -m benchmarks.coverage.planted_nats [--parts features,inputs] [--rows 600] [--seeds 20]
        [--family forest,mlp,logistic] [--repeats 6]

Two Gaussian classes, apart by as much as makes I(X; A) 0.1, 0.3 and 0.5 nats, as the features that
the predictive families see; and the same hidden in the inputs of a linear model, whose gradients,
of batches of one record, hold what the input does. What is found of nothing is in the studies
``vinfo``, ``scan`` and ``subspace``.
"""

import argparse
import time

import numpy as np
import torch
from scipy import optimize, stats

import gradaudit
from benchmarks.harness import arguments
from gradaudit.audits.vinfo.v_information import BatchSets, LabelledFeatures, v_information
from gradaudit.data.records import Attribute, Records
from gradaudit.statistics.intervals import student

NATS = (0.1, 0.3, 0.5)
WANTED = 0.05
UNIFORM = np.array([0.5, 0.5])


def information(shift: float) -> float:
    """I(X; A) in nats of two equally likely Gaussians of unit variance, by quadrature."""
    grid = np.linspace(-12, 12 + shift, 20_001)
    log_odds = shift * grid - shift**2 / 2
    density = np.exp(-((grid - shift) ** 2) / 2) / np.sqrt(2 * np.pi)
    step = grid[1] - grid[0]
    return float(np.log(2) - (density * np.logaddexp(0, -log_odds)).sum() * step)


def shift_of(nats: float) -> float:
    return float(optimize.brentq(lambda shift: information(shift) - nats, 0, 20))


def planted_features(given: argparse.Namespace) -> None:
    """Straight into the families: folds and a score set of independent rows."""
    print(
        f"\nplanted in features, {given.rows} rows to fit on and to score, {given.seeds} seeds, "
        f"{given.family}"
    )
    print("nats  found                    error    AUROC, true and found")
    for nats in NATS:
        begun = time.perf_counter()
        shift = shift_of(nats)
        found = [
            v_information(
                gaussian_sets(shift, given.rows, seed),
                UNIFORM,
                tuple(given.family.split(",")),
                np.random.SeedSequence(seed),
            )
            for seed in range(given.seeds)
        ]
        values = np.array([each.information for each in found])
        area = np.mean([each.auroc for each in found])
        true = float(stats.norm.cdf(shift / np.sqrt(2)))
        show(nats, values, f"{true:.3f} {area:.3f}", begun)


def gaussian_sets(shift: float, rows: int, seed: int) -> BatchSets:
    """Rows with value a at a·shift in the first of three columns."""
    generator = np.random.default_rng(seed)

    def drawn(count: int) -> LabelledFeatures:
        labels = np.arange(count) % 2
        features = generator.normal(size=(count, 3))
        features[:, 0] += shift * labels
        return LabelledFeatures(features, labels)

    return BatchSets((drawn(rows // 2), drawn(rows // 2), drawn(rows // 2)), drawn(rows))


def planted_inputs(given: argparse.Namespace) -> None:
    """Through the audit: the gradient of a linear model by one record tells its input.

    The loss is the squared error of an output of 0 to a target of 1, so that the gradient by the
    weight is the input times −2.
    """
    size = 10 * given.rows
    print(f"\nplanted in inputs, {size} records, batches of 1, {given.family}, vinfo audit")
    print("nats  found                    error    AUROC, true and found")
    for nats in NATS:
        begun = time.perf_counter()
        shift = shift_of(nats)
        generator = np.random.default_rng(3)
        codes = np.arange(size) % 2
        inputs = generator.normal(size=(size, 3))
        inputs[:, 0] += shift * codes
        linear = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.zeros_(linear.weight)
        model = torch.nn.Sequential(linear)
        records = Records(
            inputs=torch.from_numpy(inputs).float(),
            labels=torch.ones(size, 1),
            attributes={"planted": Attribute(codes.astype(np.int64), ("no", "yes"))},
        )
        report = gradaudit.audit(
            model,
            records,
            loss="mse",
            audits={
                "vinfo": {
                    "batch_size": 1,
                    "batches": given.rows // 2,
                    "repeats": given.repeats,
                    "family": given.family,
                    "correlation": False,
                }
            },
            attributes=("planted",),
            samples=size,
        )
        (row,) = report.select("vinfo.vinfo", variant={})
        (area,) = report.select("vinfo.auroc", variant={})
        low, high = row.interval or (np.nan, np.nan)
        true = float(stats.norm.cdf(shift / np.sqrt(2)))
        line(nats, row.value or 0.0, low, high, f"{true:.3f} {area.value:.3f}", begun)


def show(nats: float, values: np.ndarray, areas: str, begun: float) -> None:
    line(nats, float(values.mean()), *student(values), areas, begun)


def line(nats: float, value: float, low: float, high: float, areas: str, begun: float) -> None:
    verdict = "within" if abs(value - nats) <= WANTED else "NOT within"
    print(
        f"{nats:.1f}   {value:.3f} [{low:.3f}, {high:.3f}]   {value - nats:+.3f}   {areas}   "
        f"{verdict} {WANTED}; {time.perf_counter() - begun:.0f} s",
        flush=True,
    )


def main() -> None:
    given = arguments(__doc__)
    parts = {"features": planted_features, "inputs": planted_inputs}
    for part in given.parts.split(","):
        parts[part](given)


if __name__ == "__main__":
    main()
