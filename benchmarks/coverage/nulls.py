"""What audits find where the truth is known: nothing at all, or so many nats.

    python -m benchmarks.coverage.nulls [--attributes 20] [--repeats 6] [--batches 32]
        [--batch-size 16] [--family forest,mlp,logistic] [--permutations 99] [--pairs 40]
        [--rows 600] [--seeds 20] [--layers '*'] [--readings mean,samples]
        [--parts features,inputs,subspace,vinfo]

1. Attributes drawn at random for the records of ``digits``, audited with the sample model: how many
   intervals of ``vinfo`` hold 0, attribute by attribute and layer by layer, how far AUROC lies from
   1/2, and Kolmogorov-Smirnov's p-value of the subspace audit's p-values against a uniform law (on
   the grid that so many permutations leave). Attributes of ``vinfo`` have two equally likely
   values.
2. Two Gaussian classes, apart by as much as makes I(X; A) 0.1, 0.3 and 0.5 nats, as the features
   that the predictive families see; and the same hidden in the inputs of a linear model, whose
   gradients, of batches of one record, hold what the input does.

The bundled sample model and data are all that it needs.
"""

import argparse
import time
from dataclasses import replace

import numpy as np
import torch
from scipy import optimize, stats

import gradaudit
from benchmarks.harness import SAMPLES, arguments
from gradaudit.audits.vinfo.v_information import BatchSets, LabelledFeatures, v_information
from gradaudit.data import load_records
from gradaudit.data.records import Attribute, Records
from gradaudit.report import Measurement, Report
from gradaudit.statistics.intervals import student

MODEL = f"{SAMPLES / 'models.py'}:digits_cnn"
CHECKPOINT = SAMPLES / "digits" / "round-10.safetensors"
NATS = (0.1, 0.3, 0.5)
WANTED = 0.05
UNIFORM = np.array([0.5, 0.5])


def with_random_attributes(records: Records, count: int, seed: int) -> Records:
    """Records with ``count`` attributes that are fair coins."""
    generator = np.random.default_rng(seed)
    coins = generator.integers(0, 2, (count, len(records)))
    found = {f"coin {i}": Attribute(codes, ("no", "yes")) for i, codes in enumerate(coins)}
    return replace(records, attributes=found)


def audited(
    records: Records, audit: str, options: dict[str, object], samples: int, layers: list[str]
) -> Report:
    return gradaudit.audit(
        MODEL,
        records,
        audits={audit: options},
        checkpoints=(CHECKPOINT,),
        attributes=tuple(records.attributes),
        layers=layers,
        samples=samples,
    )


def random_vinfo(records: Records, given: argparse.Namespace) -> None:
    begun = time.perf_counter()
    options = {
        "repeats": given.repeats,
        "batches": given.batches,
        "batch_size": given.batch_size,
        "family": given.family,
        "correlation": False,
    }
    own = with_random_attributes(records, given.attributes, 0)
    report = audited(own, "vinfo", options, len(records), given.layers.split(","))
    print(f"\nvinfo of {given.attributes} random attributes: {options}")
    rows = [row for row in report.measurements if set(row.variant) == {"attribute"}]
    information = by_layer(rows, "vinfo")
    auroc = by_layer(rows, "auroc")
    print("layer   intervals that hold 0   and 1/2   mean nats   mean AUROC (spread)")
    for layer, of_layer in information.items():
        held = sum(holds(row, 0.0) for row in of_layer)
        half = sum(holds(row, 0.5) for row in auroc[layer])
        means = np.array([row.details["mean"] for row in of_layer], dtype=float)
        areas = np.array([row.value for row in auroc[layer]], dtype=float)
        print(
            f"{layer:6}  {held:10} of {len(of_layer)}  {half:10} of {len(of_layer)}"
            f"{means.mean():12.4f}{areas.mean():10.3f} ({areas.std(ddof=1):.3f})"
        )
    least = min(sum(holds(row, 0.0) for row in of_layer) for of_layer in information.values())
    names = list(own.attributes)
    clean = sum(
        all(holds(row, 0.0) for row in rows if row.metric == "vinfo" and named(row, name))
        for name in names
    )
    print(
        f"fewest in a layer {least} (wanted: 17 of 20); attributes whose intervals hold 0 in every "
        f"layer {clean} of {len(names)}; {time.perf_counter() - begun:.0f} s",
        flush=True,
    )


def named(row: Measurement, name: str) -> bool:
    return bool(row.variant["attribute"] == name)


def by_layer(rows: list[Measurement], metric: str) -> dict[str, list[Measurement]]:
    found: dict[str, list[Measurement]] = {}
    for row in rows:
        if row.metric == metric and row.status == "measured":
            found.setdefault(str(row.layer), []).append(row)
    return found


def holds(row: Measurement, value: float) -> bool:
    low, high = row.interval or (np.nan, np.nan)
    return bool(low <= value <= high)


def random_subspaces(records: Records, given: argparse.Namespace) -> None:
    for reading in given.readings.split(","):
        begun = time.perf_counter()
        options = {"reading": reading, "permutations": given.permutations}
        own = with_random_attributes(records, given.pairs, 1)
        report = audited(own, "subspace", options, 256, given.layers.split(","))
        print(f"\nsubspace of {given.pairs} random attributes, 256 records: {options}")
        p_values: dict[tuple[str, str], float] = {}
        for row in report.measurements:
            if row.metric != "p_value" or not row.variant:
                continue
            if row.status != "measured":
                p_values[str(row.layer), row.reason or ""] = np.nan
            else:
                p_values[str(row.layer), str(sorted(row.variant.items()))] = row.value or 0.0
        for layer in dict.fromkeys(layer for layer, _ in p_values):
            found = np.array([p for (of, _), p in p_values.items() if of == layer])
            if np.isnan(found).all():
                why = next(why for of, why in p_values if of == layer)
                print(f"{layer:6}  skipped: {why}")
                continue
            # a p-value k/(N + 1) is uniform on a grid; a draw within its cell makes it continuous
            spread = np.random.default_rng(2).random(len(found)) / (given.permutations + 1)
            test = stats.kstest(found - spread, "uniform")
            print(
                f"{layer:6}  {len(found)} p-values, mean {found.mean():.3f}, "
                f"{np.mean(found <= 0.05):.2f} at most 0.05; KS D {test.statistic:.3f}, "
                f"p {test.pvalue:.3f}"
            )
        print(f"{time.perf_counter() - begun:.0f} s", flush=True)


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
    records = load_records("digits")
    parts = {
        "features": lambda: planted_features(given),
        "inputs": lambda: planted_inputs(given),
        "subspace": lambda: random_subspaces(records, given),
        "vinfo": lambda: random_vinfo(records, given),
    }
    for part in given.parts.split(","):
        parts[part]()


if __name__ == "__main__":
    main()
