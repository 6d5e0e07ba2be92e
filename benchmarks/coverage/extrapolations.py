"""Whether a sweep's extrapolated intervals hold what is measured there, on real data.

    python -m benchmarks.coverage.extrapolations FOLDER [--jobs 2] [--only '']

Batch sizes of 1 to 128 are swept with the command line, a report in the folder for each pair of
model and data and each audit, unless it is there. Then each series is fitted on batches up to 16,
and counted is how often the intervals for 32, 64 and 128 hold what was measured there. The
constants of ``gradaudit.sweeping.extrapolation`` were set before anything was measured.
"""

import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from joblib import Parallel, delayed

from benchmarks.harness import DATA, arguments
from gradaudit.audits import Metric
from gradaudit.judging.policy import known_metrics
from gradaudit.report import Measurement, Report
from gradaudit.sweeping.extrapolation import EDGE, Curve
from gradaudit.sweeping.grid import FEWEST

KEY = "batch-size"
SIZES = "1,2,4,8,16,32,64,128"
FITTED, LIMIT_S = 16, 240
TABLE = "&scale=standard&attribute=sex"
SPEECH = "inputs=features&label=emotion&attribute=gender&scale=standard"
SPECS = {
    "digits": ("digits", "slant"),
    "diabetes": ("diabetes?scale=standard", "sex"),
    "german": (f"csv:{DATA / 'german_credit.csv'}?label=class-label{TABLE}", "sex"),
    "adult": (f"csv:{DATA / 'adult.csv'}?label=income&drop=fnlwgt{TABLE}", "sex"),
    "ravdess": (f"npz:{DATA / 'ravdess_emobase.npz'}?{SPEECH}", "gender"),
    "utkface": (f"npz:{DATA / 'utkface_32.npz'}?inputs=images&label=gender&attribute=race", "race"),
    "cifar": (f"npz:{DATA / 'cifar10_6k_jpeg.npz'}?inputs=images&label=labels", ""),
}
"""How the command line names data, and the attribute that is asked about."""
AUDITS = {
    "vinfo": ["vinfo", "--repeats=6", "--batches=40", "--family=logistic,norms"],
    "attribute": ["attack", "attribute", "--repeats=3", "--trials=60", "--batches=60"],
    "reconstruct": [
        "attack", "reconstruct", "--method=dlg", "--batches=4", "--restarts=1", "--iterations=4",
    ],
    "table": ["attack", "table", "--method=row-space"],
}  # fmt: skip
APPLY = {
    "vinfo": [data for data, (_, attribute) in SPECS.items() if attribute],
    "attribute": ["german", "adult", "diabetes", "ravdess"],
    "reconstruct": ["digits", "diabetes", "cifar", "utkface"],
    "table": ["german", "adult", "diabetes"],
}
PAIRS = (
    ("german", "zoo:mlp?inputs=61&hidden=64&classes=2"),
    ("diabetes", "zoo:mlp?inputs=10&hidden=16&classes=2"),
    ("digits", "zoo:cnn3?shape=1x8x8"),
    ("adult", "zoo:mlp?inputs=107&hidden=32&classes=2"),
    ("german", "zoo:mlp?inputs=61&hidden=16&classes=2&activation=tanh"),
    ("ravdess", "zoo:mlp?inputs=988&hidden=16&classes=8"),
    ("cifar", "zoo:cnn3?variant=2"),
    ("digits", "zoo:mlp?inputs=1x8x8&hidden=24"),
    ("utkface", "zoo:cnn3?classes=2&variant=2"),
)


def measure(name: str, model: str, audit: str, folder: Path, *, trained: bool) -> None:
    """Write the report of one sweep of a model as drawn, or after five rounds of training."""
    kind = model.removeprefix("zoo:").replace("?", "_").replace("&", "_")
    title = f"{name}-{kind}-{'trained' if trained else 'initial'}"
    file, run = folder / f"{title}.{audit}.json", folder / f"{title}.run"
    if file.exists():
        return
    data, attribute = SPECS[name]
    subject = ["-m", model, "-d", data]
    if trained:
        _command("train", *subject, "--rounds=5", "--every=5", "--out", str(run))
        subject += ["-c", str(next(run.glob("round-*5.safetensors")))]
    asked = ["-a", attribute] if audit in ("vinfo", "attribute") else []
    over = ["--over", f"{KEY}={SIZES}", "-q", "-o", str(file)]
    _command("sweep", *AUDITS[audit], *subject, *asked, *over)


def _command(*words: str) -> None:
    program = [sys.executable, "-m", "gradaudit", *words]
    try:
        done = subprocess.run(program, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        print(words[:3], f"more than {LIMIT_S} s", flush=True)
        return
    if done.returncode > 1:
        print(words[:3], done.stderr[-300:], flush=True)


def outcomes(folder: Path, known: Mapping[str, Metric]) -> Iterator[tuple[str, str]]:
    """Of each series in the reports: the metric, and whether an interval held or none was told."""
    for file in sorted(folder.glob("*.json")):
        series: dict[object, list[Measurement]] = defaultdict(list)
        for row in Report.from_file(file).rows:
            told = row.id in known and known[row.id].riskier and known[row.id].chance is not None
            if told and row.variant.keys() == {KEY} and row.value is not None:
                series[row.id, row.layer].append(row)
        for rows in series.values():
            yield from _of_series(known[rows[0].id], sorted(rows, key=_size))


def _size(row: Measurement) -> float:
    return float(row.variant[KEY])


def _of_series(metric: Metric, rows: Sequence[Measurement]) -> Iterator[tuple[str, str]]:
    fitted, later = ([r for r in rows if (_size(r) > FITTED) == late] for late in (False, True))
    if len(fitted) < FEWEST or not later:
        return
    curve = Curve.of(metric, fitted, KEY)
    if curve.why_not():
        yield rows[0].id, "refused series"
        return
    for row in later:
        found = curve.predict(_size(row))
        inside = found.low - EDGE <= (row.value or 0.0) <= found.high + EDGE
        yield rows[0].id, "held" if inside else "missed"


def main() -> None:
    given = arguments(__doc__)
    given.folder.mkdir(exist_ok=True)
    Parallel(given.jobs)(
        delayed(measure)(*pair, audit, given.folder, trained=trained)
        for audit, pair, trained in product(AUDITS, PAIRS, (False, True))
        if pair[0] in APPLY[audit] and given.only in f"{pair[0]} {audit}"
    )
    for metric, count in sorted(Counter(outcomes(given.folder, known_metrics())).items()):
        print(*metric, count)


if __name__ == "__main__":
    main()
