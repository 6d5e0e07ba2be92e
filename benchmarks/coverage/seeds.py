"""How often two seeds' values lie within the interval for their difference, by metric.

    python -m benchmarks.coverage.seeds FOLDER [--seeds 40] [--models sample,mlp,cnn3] [--quick]

Each model is scanned by ``gradaudit scan --quick`` once for each seed, in a process of its own: the
sample CNN, a multilayer perceptron on diabetes and a CNN of the zoo on digits, each of the two with
the same untrained weights for every seed. Reports lie in FOLDER, and those that are there are not
made again; ``--quick`` takes two seeds of the sample. Of each pair of seeds and each headline row
the difference is held against the root of the summed squares of both half widths, on the sides that
face each other; right is 90 % or more. Rows without an interval are held against what they are
known to (``details.known_to``), and apart.
"""

import math
import subprocess
import sys
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.harness import arguments
from gradaudit.evidence.changes import changes
from gradaudit.judging import known_metrics
from gradaudit.report import Measurement, Report
from gradaudit.zoo import build

MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "mlp": ("mlp", {"inputs": (10,), "classes": 2}, "diabetes"),
    "cnn3": ("cnn3", {"shape": (1, 8, 8)}, "digits"),
}
"""Name in the zoo, its arguments and the data; the sample needs none."""
RIGHT = 0.9


def scanned(folder: Path, model: str, seed: int) -> Report:
    """The report of a model and a seed, made where it is not there."""
    path = folder / f"{model}-{seed}.json"
    if not path.exists():
        command = [sys.executable, "-m", "gradaudit", "scan", *subject(folder, model), "--quick"]
        running = path.with_suffix(".running.json")
        options = ["--seed", str(seed), "--jobs", "1", "-q", "--exit-zero", "-o", str(running)]
        subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
        running.rename(path)
    return Report.from_file(path)


def subject(folder: Path, model: str) -> list[str]:
    """The options that name a model with the same weights for every seed, and its data."""
    if model not in MODELS:
        return []
    name, given, data = MODELS[model]
    path = folder / f"{model}.safetensors"
    torch.manual_seed(0)
    save_file(build(name, **given).state_dict(), path)
    sizes = {k: "x".join(map(str, x)) if isinstance(x, tuple) else x for k, x in given.items()}
    chosen = "&".join(f"{key}={size}" for key, size in sizes.items())
    return ["-m", f"zoo:{name}?{chosen}".rstrip("?"), "-c", str(path), "-d", data]


def agree(old: Measurement, new: Measurement) -> bool | None:
    """Whether two values lie within the interval for their difference; None without one."""
    if old.known_to is None or new.known_to is None or old.value is None or new.value is None:
        return None
    (low, less), (high, more) = sorted(
        ((old.known_to, old.value), (new.known_to, new.value)), key=lambda one: one[1]
    )
    return more - less <= math.hypot(low[1] - less, more - high[0])


def main() -> None:
    given = arguments(__doc__)
    folder = Path(given.folder)
    folder.mkdir(exist_ok=True)
    models, seeds = (["sample"], 2) if given.quick else (given.models.split(","), given.seeds)
    for model in models:
        reports = [scanned(folder, model, seed) for seed in range(seeds)]
        found: dict[str, list[bool]] = defaultdict(list)
        bare: dict[str, int] = defaultdict(int)
        rows = shown = turned = 0
        for old, new in combinations(reports, 2):
            for change in changes(old, new):
                rows, shown = rows + 1, shown + change.shown
                turned += change.direction is not None
                if change.old is None or change.new is None or change.difference is None:
                    continue
                known, name = agree(change.old, change.new), change.row.id
                if known is not None:
                    found[name + ("" if change.old.interval else " (known to)")].append(known)
                elif change.difference:
                    bare[name] += 1
        print(f"{model}, {seeds} seeds: {shown} of {rows} rows changed, {turned} worse or better")
        for name, held in sorted(found.items()):
            share = sum(held) / len(held)
            judged = known_metrics()[name.split(" ")[0]].question
            mark = " !" if share < RIGHT else ""
            print(f"  {name}{'' if judged else ' (no limit)'}: {share:.1%} of {len(held)}{mark}")
        for name, count in sorted(bare.items()):
            print(f"  {name}: no interval, {count} pairs differ")


if __name__ == "__main__":
    main()
