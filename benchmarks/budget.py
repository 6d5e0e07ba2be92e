"""How well a scan keeps its time: ten models of 10 thousand to 86 million parameters.

    python benchmarks/budget.py [--budget 60s] [--models digits,resnet18] [--jobs 1]

Every model is scanned by the command line, in a process of its own, with fresh weights (the sample
has its checkpoint). Printed for each: seconds of the whole process beside the budget, CPU seconds,
the most memory, how many audits have numbers for how many layers, and what was made more roughly
than asked, cut short or left out. Pictures are UTKFace (../shared/data/utkface_32.npz beside the
checkout, or GRADAUDIT_SHARED), scaled to each model's size; the table is Adult's. A time is kept
where a scan takes at most 1.25 of it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

SHARED = Path(os.environ.get("GRADAUDIT_SHARED", Path(__file__).parents[2] / "shared"))
HERE = f"{Path(__file__)}:pictures"
ADULT = f"csv:{SHARED / 'data' / 'adult.csv'}?label=income"


class Scanned(NamedTuple):
    """A model and data as the command line names them."""

    name: str
    subject: tuple[str, ...]


def _of(name: str, model: str, data: str, attribute: str) -> Scanned:
    return Scanned(name, ("-m", model, "-d", data, "-a", attribute))


SCANNED = (
    Scanned("digits", ()),
    _of("mlp", "zoo:mlp?inputs=108&hidden=512&classes=2", ADULT, "sex"),
    _of("lenet", "zoo:lenet?classes=2", f"{HERE}?size=32", "gender"),
    _of("vgg9", "zoo:vgg9?classes=2", f"{HERE}?size=32", "gender"),
    _of("mobilenet", "torchvision:mobilenet_v3_small?num_classes=2", f"{HERE}?size=64", "gender"),
    _of("resnet18", "torchvision:resnet18?num_classes=2", f"{HERE}?size=64", "gender"),
    _of("resnet50", "torchvision:resnet50?num_classes=2", f"{HERE}?size=64", "gender"),
    _of("densenet121", "torchvision:densenet121?num_classes=2", f"{HERE}?size=64", "gender"),
    _of("alexnet", "torchvision:alexnet?num_classes=2", f"{HERE}?size=64", "gender"),
    _of("vit", "torchvision:vit_b_16?num_classes=2", f"{HERE}?size=224&records=1000", "gender"),
)


def pictures(size: int, records: int = 5000) -> dict[str, object]:
    """Faces of (records, 3, size, size), whether they are older than 30, and their gender."""
    with np.load(SHARED / "data" / "utkface_32.npz", allow_pickle=False) as stored:
        images, ages = stored["images"][:records], stored["age"][:records]
        genders = stored["gender_names"][stored["gender"][:records]]
    inputs = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return {
        "inputs": torch.nn.functional.interpolate(inputs, size=size, mode="bilinear"),
        "labels": torch.from_numpy((ages > 30).astype(np.int64)),
        "attributes": {"gender": genders.tolist()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--models", default=",".join(each.name for each in SCANNED))
    parser.add_argument("--jobs", default="1")
    asked = parser.parse_args()
    print(f"budget {asked.budget}, {asked.jobs} jobs, {os.cpu_count()} cores")
    print(f"{'model':<12}{'seconds':>8}{'CPU':>7}{'MiB':>7}  audits (layers)")
    for each in SCANNED:
        if each.name in asked.models.split(","):
            _scan(each, asked.budget, asked.jobs)


def _scan(scanned: Scanned, budget: str, jobs: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.json"
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "gradaudit",
            "scan",
            *scanned.subject,
            "-q",
            "-o",
            path,
        ]
        begun = time.perf_counter()
        process = subprocess.Popen(
            [*command, "--budget", budget, "--jobs", jobs], stdout=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begun
        cpu = used.ru_utime + used.ru_stime
        print(
            f"{scanned.name:<12}{seconds:8.1f}{cpu:7.0f}{used.ru_maxrss >> 10:7}  "
            + (_summary(path) if path.exists() else f"status {os.waitstatus_to_exitcode(status)}"),
            flush=True,
        )


def _summary(path: Path) -> str:
    report = json.loads(path.read_text())
    layers: dict[str, set[str]] = {}
    for row in report["measurements"]:
        if row["status"] == "measured":
            layers.setdefault(row["audit"], set()).add(row["layer"])
    plan = report["provenance"]["plan"]
    said = [f"{name} {len(names - {None})}" for name, names in layers.items()]
    for key in ("rougher", "cut_short", "left_out"):
        said += [f"{key}: {', '.join(plan[key])}"] if plan[key] else []
    return f"of {len(report['target']['layers'])} layers: " + "; ".join(said)


if __name__ == "__main__":
    main()
