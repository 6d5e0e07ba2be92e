"""How well a scan keeps its time: ten models of 10 thousand to 86 million parameters.

    python -m benchmarks.speed.budget [--budget 60s] [--models digits,mlp,lenet,vgg9] [--jobs 1]

Every model is scanned by the command line, in a process of its own, with fresh weights (the sample
has its checkpoint). Others are ``mobilenet``, ``resnet18``, ``resnet50``, ``densenet121``,
``alexnet``, ``vit`` and ``resnet224``.

Printed for each: seconds of the whole process beside the budget, CPU seconds, the most memory, how
many audits have numbers for how many layers, and what was made smaller than asked, cut short
or left out. Pictures are UTKFace, scaled to each model's size, the table is Adult. A time is kept
where a scan takes at most 1.25 of it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness import DATA, arguments, heading, line, scaled, stored

HERE = f"{Path(__file__)}:pictures"
ADULT = f"csv:{DATA / 'adult.csv'}?label=income&scale=standard"
SMALL, LARGE = f"{HERE}?size=64", f"{HERE}?size=224"
SCANNED = {
    "digits": (),
    "mlp": ("zoo:mlp?inputs=108&hidden=512&classes=2", ADULT, "sex"),
    "lenet": ("zoo:lenet?classes=2", f"{HERE}?size=32", "gender"),
    "vgg9": ("zoo:vgg9?classes=2", f"{HERE}?size=32", "gender"),
    "mobilenet": ("torchvision:mobilenet_v3_small?num_classes=2", SMALL, "gender"),
    "resnet18": ("torchvision:resnet18?num_classes=2", SMALL, "gender"),
    "resnet50": ("torchvision:resnet50?num_classes=2", SMALL, "gender"),
    "densenet121": ("torchvision:densenet121?num_classes=2", SMALL, "gender"),
    "alexnet": ("torchvision:alexnet?num_classes=2", SMALL, "gender"),
    "vit": ("torchvision:vit_b_16?num_classes=2", f"{LARGE}&records=1000", "gender"),
    "resnet224": ("torchvision:resnet18?num_classes=2", LARGE, "gender"),
}
"""Model, data and attribute as the command line names them; nothing for the sample."""


def pictures(size: int, records: int = 5000) -> dict[str, object]:
    """Faces of (records, 3, size, size), whether they are older than 30, and their gender."""
    file = stored("utkface_32.npz")
    inputs, ages = scaled(file["images"][:records]).float(), file["age"][:records]
    genders = file["gender_names"][file["gender"][:records]]
    return {
        "inputs": torch.nn.functional.interpolate(inputs, size=size, mode="bilinear"),
        "labels": torch.from_numpy((ages > 30).astype(np.int64)),
        "attributes": {"gender": genders.tolist()},
    }


def main() -> None:
    asked = arguments(__doc__)
    options = ["--budget", asked.budget, "--jobs", str(asked.jobs)]
    heading("model", "seconds", "CPU", "MiB", "audits (layers)")
    for name in asked.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "r.json"
            subject = chain(*zip(("-m", "-d", "-a"), SCANNED[name], strict=False))
            command = [sys.executable, "-m", "gradaudit", "scan", "-q", *options, *subject]
            begun = time.perf_counter()
            process = subprocess.Popen([*command, "-o", str(path)], stdout=subprocess.DEVNULL)
            _, status, used = os.wait4(process.pid, 0)
            wall, cpu = time.perf_counter() - begun, used.ru_utime + used.ru_stime
            said = f"status {os.waitstatus_to_exitcode(status)}"
            said = _summary(path) if path.exists() else said
            line(name, f"{wall:.1f}", f"{cpu:.0f}", used.ru_maxrss >> 10, said)


def _summary(path: Path) -> str:
    report = json.loads(path.read_text())
    layers: dict[str, set[str]] = {}
    for row in report["measurements"]:
        if row["status"] == "measured":
            layers.setdefault(row["audit"], set()).add(row["layer"])
    plan = report["provenance"]["plan"]
    said = [f"{name} {len(names - {None})}" for name, names in layers.items()]
    for key in ("smaller", "cut_short", "left_out"):
        said += [f"{key}: {', '.join(plan[key])}"] if plan[key] else []
    return f"of {len(report['target']['layers'])} layers: " + "; ".join(said)


if __name__ == "__main__":
    main()
