"""How well a scan keeps its time: ten models of 10 thousand to 86 million parameters.

    python -m benchmarks.speed.budget [--budget 60s] [--models digits,mlp,lenet,vgg9] [--jobs 1]
        [--clock wall|cpu]

Every model is scanned by the command line, in a process of its own, with fresh weights (the sample
has its checkpoint). Others are ``mobilenet``, ``resnet18``, ``resnet50``, ``densenet121``,
``alexnet``, ``vit``, ``resnet224``, ``table`` (100,000 rows) and ``gpt2`` (a language model of 124
million, made here). With ``--clock cpu`` the scan's own clock counts the seconds that it computes,
not those that others do: for a machine that is busy.

Printed for each: seconds of the whole process beside the budget, CPU seconds, the most memory, how
many audits have numbers for how many layers, and what was made more roughly than asked, cut short
or left out. Pictures are UTKFace, scaled to each model's size; the table is Adult's. A time is kept
where a scan takes at most 1.25 of it.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.coverage import text_models
from benchmarks.harness import DATA, arguments, scaled, stored

BY_CPU = "--by-cpu-seconds"
HERE = f"{Path(__file__)}:pictures"
REVIEWS = DATA / "imdb_16k.csv.gz"
ADULT = f"csv:{DATA / 'adult.csv'}?label=income&scale=standard"


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
LARGE = (
    _of("resnet224", "torchvision:resnet18?num_classes=2", f"{HERE}?size=224", "gender"),
    _of("table", "zoo:mlp?inputs=100&hidden=512&classes=2", f"{Path(__file__)}:table", "group"),
    Scanned(
        "gpt2",
        (
            "-m",
            "hf:{made}",
            "-d",
            f"text:{REVIEWS}?text=text&attribute=sentiment&length=32",
            "-a",
            "sentiment",
        ),
    ),
)


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


def table(rows: int = 100_000, columns: int = 100, users: int = 0) -> dict[str, object]:
    """Rows of normal columns, some of them correlated with a label, a group and their user."""
    draws = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, 2, generator=draws)
    inputs = torch.randn(rows, columns, generator=draws)
    inputs[:, :20] += hidden[:, :1]
    inputs[:, 10:30] += hidden[:, 1:]
    label, group = (hidden + torch.randn(rows, 2, generator=draws) > 0).long().T
    made: dict[str, object] = {"labels": label, "attributes": {"group": group.numpy()}}
    if users:
        made["users"] = whose = torch.arange(rows) % users
        inputs = inputs + torch.randn(users, columns, generator=draws)[whose]
    return {"inputs": inputs, **made}


def by_cpu_seconds(arguments: list[str]) -> None:
    """The command line, in a process whose clock and alarm count what it computes."""
    time.monotonic = time.perf_counter = time.process_time
    signal.SIGALRM, signal.ITIMER_REAL = signal.SIGPROF, signal.ITIMER_PROF  # type: ignore[misc]
    sys.argv[:] = ["gradaudit", *arguments]
    runpy.run_module("gradaudit", run_name="__main__")


def main() -> None:
    if sys.argv[1:2] == [BY_CPU]:
        by_cpu_seconds(sys.argv[2:])
        return
    asked = arguments(__doc__)
    print(f"budget {asked.budget}, {asked.jobs} jobs, {os.cpu_count()} cores")
    print(f"{'model':<12}{'seconds':>8}{'CPU':>7}{'MiB':>7}  audits (layers)")
    program = ["gradaudit"] if asked.clock == "wall" else ["benchmarks.speed.budget", BY_CPU]
    options = ["--budget", asked.budget, "--jobs", str(asked.jobs)]
    for each in (*SCANNED, *LARGE):
        if each.name in asked.models.split(","):
            _scan(each, [sys.executable, "-m", *program, "scan", "-q", *options])


def _scan(scanned: Scanned, command: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, made = Path(folder) / "r.json", Path(folder) / "made"
        if scanned.name == "gpt2":
            text_models.make(made, "gpt2", 0, 50_257)
        subject = [part.format(made=made) for part in scanned.subject]
        begun = time.perf_counter()
        process = subprocess.Popen([*command, *subject, "-o", path], stdout=subprocess.DEVNULL)
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
