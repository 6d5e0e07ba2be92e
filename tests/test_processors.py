"""Two processors give the same numbers, each metric to the tolerance that the README states.

Sums are added up in another order by wider instructions. What is computed directly differs in its
last digits; a fit decides alike; an optimisation of many steps in single precision takes another
path, and ends elsewhere.
"""

import json
import os
import subprocess
import sys
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command_line import HANGS

SAMPLES = Path(__file__).parents[1] / "sample_models"
OPTIONS: dict[str, dict[str, Any]] = {
    "sensitivity": {"probes": 8},
    "vinfo": {
        "repeats": 2,
        "batches": 10,
        "batch_size": 4,
        "family": ["forest", "logistic"],
        "correlation": False,
    },
    "subspace": {"permutations": 19},
    "copa-metric": {"records": 1},
    "forward": {},
    "attack property": {"shadow": 40, "trials": 60, "repeats": 1, "batch_size": 4, "batches": 10},
    "attack reconstruct": {"method": ["idlg:iterations=4"], "restarts": 1, "batches": 2},
    "dp-audit": {
        "mechanism": "dp:clip=1,sigma=1",
        "trials": 500,
        "record": "random",
        "restarts": 2,
        "iterations": 10,
    },
}
INSTRUCTIONS = {
    "default": {"ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "NEHALEM"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "OPENBLAS_CORETYPE": "HASWELL"},
}
TOLERANCES = {
    "copa-metric.*": 0.0,
    "sensitivity.*": 1e-9,
    "subspace.*": 1e-9,
    "forward.*": 1e-9,
    "dp-audit.*": 1e-2,
    "vinfo.*": 1e-3,
    "attack.a*": 1e-3,
    "attack.mse": 0.5,
    "attack.relative_error": 0.5,
    "attack.psnr": 0.5,
    "attack.ssim": 0.5,
    "attack.*": 1e-2,
}
"""Of a value and the ends of its interval, beside one or relative to what is larger."""

CHILD = """
import json, sys
import gradaudit
root, options = json.loads(sys.argv[1])
for name, chosen in options.items():
    model, weights, data, private = "digits_cnn", "digits/round-10", "digits", "ink"
    samples = {"vinfo": 120, "sensitivity": 2}.get(name, 40)
    if name == "dp-audit":
        model, weights, data, private = "diabetes_mlp", "diabetes/round-20", "diabetes", "sex"
    report = gradaudit.audit(
        f"{root}/models.py:{model}",
        data,
        audits={name: chosen},
        checkpoints=(f"{root}/{weights}.safetensors",),
        attributes=(private,),
        samples=samples,
    )
    print(report.model_dump_json())
"""


@cache
def rows(instructions: str) -> dict[str, dict[str, Any]]:
    """Every row of every audit by its key, of a process with one set of instructions."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps([str(SAMPLES), OPTIONS])],
        env={**os.environ, **INSTRUCTIONS[instructions]},
        capture_output=True,
        encoding="utf-8",
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(reports) == len(OPTIONS)
    return {
        json.dumps([audit, row["metric"], row["layer"], row["variant"]]): row
        for audit, report in zip(OPTIONS, reports, strict=True)
        for row in report["measurements"]
    }


def numbers(row: dict[str, Any]) -> list[float]:
    """The value and the ends of the interval, where there are any."""
    given = [] if row["value"] is None else [row["value"]]
    return [*given, *(row["interval"] or [])]


def tolerance(row: dict[str, Any]) -> float:
    name = f"{row['audit']}.{row['metric']}"
    return next(found for glob, found in TOLERANCES.items() if fnmatchcase(name, glob))


@pytest.mark.slow
def test_another_processor_gives_the_same_rows_and_numbers() -> None:
    plain, wide = rows("default"), rows("avx2")
    assert plain.keys() == wide.keys()
    assert any(row["value"] for row in plain.values())
    for key, row in plain.items():
        other, within = wide[key], tolerance(row)
        assert row["status"] == other["status"], key
        assert numbers(row) == pytest.approx(numbers(other), rel=within, abs=within), key
