"""Forests for ordered values: one for all thresholds against one for each (Frank and Hall).

    python benchmarks/ordered_forests.py [--seeds 4] [--family forest] [--studies digits]

Distributional inference (Li et al. 2024, 3.2) on the sample model, on Adult and on UTKFace, with
the sets and batches of each seed the same for both. Printed: success rate and AUROC of the whole
update and of the mean of layers, the mean difference over seeds with its standard error, and the
CPU seconds of the fits. Needs ../shared/data beside the checkout, or GRADAUDIT_SHARED.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

import gradaudit
from gradaudit.families.base import Family
from gradaudit.families.forest import Forest
from gradaudit.report import Report

SHARED = Path(os.environ.get("GRADAUDIT_SHARED", Path(__file__).parents[2] / "shared"))
SAMPLE = Path(__file__).parents[1] / "sample_models"
WAYS: dict[str, Callable[..., Any]] = {
    "each": Family.fit_ordered,
    "shared": Forest.fit_ordered,
}


class Study(NamedTuple):
    """A model, its data, and the attribute that is asked about."""

    model: str
    data: str
    attribute: str
    checkpoints: tuple[Path, ...] = ()


STUDIES = {
    "digits": Study(
        f"{SAMPLE / 'models.py'}:digits_cnn",
        "digits",
        "ink",
        (SAMPLE / "digits" / "round-10.safetensors",),
    ),
    "adult": Study(
        "zoo:mlp?inputs=108&classes=2&hidden=64",
        f"csv:{SHARED / 'data' / 'adult.csv'}?label=income&scale=standard&attribute=sex",
        "sex",
    ),
    "utkface": Study(
        "zoo:lenet?classes=2",
        f"npz:{SHARED / 'data' / 'utkface_32.npz'}?inputs=images&label=gender&attribute=race",
        "race",
    ),
}


@contextmanager
def fitted(way: str) -> Iterator[list[float]]:
    """Forests fitted in this way; the CPU seconds of every fit."""
    seconds: list[float] = []

    def timed(*arguments: Any) -> Any:
        begun = time.process_time()
        above = WAYS[way](*arguments)
        seconds.append(time.process_time() - begun)
        return above

    with patch.object(Forest, "fit_ordered", timed):
        yield seconds


def played(study: Study, family: str, seed: int) -> Report:
    options = {"batches": 150, "trials": 1000, "repeats": 1, "family": [family]}
    if not study.checkpoints:
        options["rounds"] = 1
    return gradaudit.audit(
        study.model,
        study.data,
        audits={"attack distribution": options},
        attributes=[study.attribute],
        checkpoints=study.checkpoints,
        seed=seed,
    )


def scores(report: Report) -> dict[str, float]:
    found = {}
    for metric in ("asr", "auroc"):
        rows = report.select(f"attack.{metric}", variant={})
        found[metric] = next(row.value or 0.0 for row in rows if row.layer is None)
        found[f"{metric}, layers"] = float(
            np.mean([row.value or 0.0 for row in rows if row.layer is not None])
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--family", default="forest")
    parser.add_argument("--studies", default=",".join(STUDIES))
    given = parser.parse_args()
    for name in given.studies.split(","):
        found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        seconds = dict.fromkeys(WAYS, 0.0)
        for seed in range(given.seeds):
            for way in WAYS:
                with fitted(way) as each:
                    found[way].append(scores(played(STUDIES[name], given.family, seed)))
                seconds[way] += sum(each)
        print(f"{name}: {seconds['each']:.1f} s each, {seconds['shared']:.1f} s shared", flush=True)
        for score in found["each"][0]:
            apart, shared = (np.array([one[score] for one in found[way]]) for way in WAYS)
            error = (shared - apart).std(ddof=1) / len(apart) ** 0.5
            print(
                f"  {score:14} {apart.mean():.4f} each, {shared.mean():.4f} shared, "
                f"difference {(shared - apart).mean():+.4f} ± {error:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
