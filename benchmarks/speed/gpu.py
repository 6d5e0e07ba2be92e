"""Every audit and attack on a GPU beside the same on the CPU: time, memory, agreement.

    python -m benchmarks.speed.gpu [--device cuda|cpu] [--models digits,resnet18,gpt2] [--audits '']
        [--tolerance 1e-3] [--threads 8]

Models: the sample model, torchvision's ResNet-18 on pictures of 64×64 and GPT-2-small (124 million
parameters) on texts of 16 tokens, both with fresh weights. Printed for each audit: seconds on the
device after one run to warm up (kernels are chosen, and what is recorded is recorded anew), seconds
on the CPU with all its threads, their ratio, the device's most memory beyond the model, how many
rows have numbers, and how many of them agree: within a relative --tolerance where the audit is
deterministic, within the sum of the half widths of both intervals else. Random numbers of a device
are others than the CPU's, so that rows of noisy attacks agree in law alone; a row without an
interval then counts as agreeing only within the tolerance.

With --device cpu everything runs twice on the CPU, which checks the program, not a GPU: all rows
must then agree.
"""

import gc
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.harness import SAMPLES, arguments, heading, line
from gradaudit.audits import audits
from gradaudit.config import SubjectSettings
from gradaudit.progress import Silent
from gradaudit.report import Measurement
from gradaudit.run.opening import open_subject
from gradaudit.run.runner import measured
from gradaudit.subject import Subject

HERE = Path(__file__)
LENGTH, WORDS = 16, 1000
Options = Mapping[str, Any]
FEW: Options = {"batches": 1, "restarts": 2}
PICTURES: dict[str, Options] = {
    "sensitivity": {"probes": 16},
    "vinfo": {"repeats": 2, "batches": 40, "batch_size": 4, "family": ["logistic"]},
    "subspace": {"permutations": 99},
    "forward": {},
    "copa-metric": {"records": 1},
    "floor": {"sigma": 0.1, "directions": 8},
    "attack reconstruct": {**FEW, "method": ["inverting-gradients"], "iterations": 100},
    "attack labels": {**FEW, "iterations": 20},
    "attack tracing": {},
    "attack malicious-server": {},
    "attack property": {"shadow": 100, "batches": 100, "trials": 100, "repeats": 1, "rounds": 1},
}
TEXTS: dict[str, Options] = {
    "sensitivity": {"probes": 8},
    "attack text": {"batch_size": 1, "batches": 1, "decoys": 16},
    "attack malicious-server": {},
}
DRAWING = {"attack reconstruct", "attack labels", "attack tracing", "attack property"}
"""Draw on the device."""


class Run(NamedTuple):
    """One audit: seconds, bytes of the device beyond the model, rows, and why it broke off."""

    seconds: float
    memory: int
    rows: list[Measurement]
    fault: str | None


def pictures(size: int = 64, records: int = 200) -> dict[str, object]:
    """Noise around two means (records, 3, size, size), labels and a private mark."""
    draws = torch.Generator().manual_seed(0)
    labels, marks = torch.arange(records) % 2, torch.arange(records) // 2 % 2
    inputs = torch.rand(records, 3, size, size, generator=draws) * 0.8
    inputs[:, 0] += 0.2 * labels[:, None, None]
    inputs[:, 1, :8] += 0.2 * marks[:, None, None]
    return {"inputs": inputs, "labels": labels, "attributes": {"mark": marks.tolist()}}


def texts(records: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens (records, positions), and the next ones."""
    ids = torch.randint(1, WORDS, (records, LENGTH), generator=torch.Generator().manual_seed(0))
    labels = ids.roll(-1, dims=1)
    labels[:, -1] = -100
    return ids, labels


def cases(folder: Path) -> dict[str, tuple[dict[str, Any], dict[str, Options]]]:
    """By name: the settings of a model with its data, and what is asked of it."""
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    (folder / "config.json").write_text(json.dumps(config))
    digits = {"model": f"{SAMPLES / 'models.py'}:digits_cnn", "data": "digits"}
    of_pictures = {"data": f"{HERE}:pictures", "attribute": ["mark"], "samples": 16}
    resnet = {"model": "torchvision:resnet18?num_classes=2", **of_pictures}
    asked = {name: PICTURES[name] for name in PICTURES if name not in ("copa-metric", "vinfo")}
    return {
        "digits": ({**digits, "attribute": ["slant"], "samples": 200}, PICTURES),
        "resnet18": (resnet, asked),
        "gpt2": ({"model": f"hf:{folder}", "data": f"{HERE}:texts", "samples": 2}, TEXTS),
    }


def run(subject: Subject, name: str, options: Options) -> Run:
    """Run one audit to its end, and wait for the device."""
    kind, device = audits()[name], subject.target.device
    gc.collect()
    memory, on_a_gpu = 0, device.type == "cuda"
    if on_a_gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        memory = -torch.cuda.memory_allocated(device)
    begun = time.perf_counter()
    outcome = measured(subject, kind(kind.Options(**options)), Silent())
    if on_a_gpu:
        torch.cuda.synchronize(device)
        memory += torch.cuda.max_memory_allocated(device)
    return Run(time.perf_counter() - begun, memory, list(outcome.part.rows), outcome.fault)


def agree(here: Measurement, there: Measurement, tolerance: float, *, drawing: bool) -> bool:
    """Whether two rows say the same."""
    if here.value is None or there.value is None:
        return here.status == there.status
    apart = abs(here.value - there.value)
    if apart <= tolerance * max(abs(here.value), abs(there.value), tolerance):
        return True
    if not drawing or here.interval is None or there.interval is None:
        return False
    return apart <= sum((high - low) / 2 for low, high in (here.interval, there.interval))


def compared(name: str, here: Run, there: Run, tolerance: float) -> None:
    """Print one line of the table."""
    ours = {str(row.key): row for row in there.rows}
    with_numbers = [row for row in here.rows if row.value is not None]
    same = sum(
        str(row.key) in ours and agree(row, ours[str(row.key)], tolerance, drawing=name in DRAWING)
        for row in with_numbers
    )
    ratio = here.seconds / max(there.seconds, 1e-9)
    cells = f"{there.seconds:.2f}", f"{here.seconds:.2f}", f"{ratio:.1f}"
    rows = f"{same} of {len(with_numbers)}"
    line(name, *cells, f"{there.memory / 2**20:.0f}", rows, there.fault or here.fault or "")


def main() -> None:
    asked = arguments(__doc__)
    if asked.device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no GPU that torch can see; --device cpu checks the program alone")
    on = torch.cuda.get_device_name() if asked.device == "cuda" else "the CPU, no GPU"
    print(f"torch {torch.__version__} on {on}; the CPU has {torch.get_num_threads()} threads")
    chosen = [name for name in asked.audits.split(",") if name]
    with tempfile.TemporaryDirectory() as folder:
        models = cases(Path(folder))
        for model in asked.models.split(","):
            heading(model, "there, s", "CPU, s", "ratio", "MiB", "agree", "fault")
            settings, audited = models[model]
            here = open_subject(SubjectSettings(**settings, device="cpu"))
            there = open_subject(SubjectSettings(**settings, device=asked.device))
            for name, options in audited.items():
                if chosen and name not in chosen:
                    continue
                if asked.device != "cpu":
                    run(replace(there), name, options)
                both = run(here, name, options), run(there, name, options)
                compared(name, *both, asked.tolerance)


if __name__ == "__main__":
    main()
