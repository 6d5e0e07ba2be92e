"""On a device that mixes nothing with the CPU's tensors every audit finds the CPU's numbers.

The device is a fake one everywhere, and a GPU too where there is one.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import HANGS
from torch.utils import backend_registration

from gradaudit.audits import audits
from gradaudit.config import SubjectSettings
from gradaudit.progress import Silent
from gradaudit.run.opening import open_subject
from gradaudit.run.runner import measured

TESTS = Path(__file__).parent
TABLE = {"model": "zoo:mlp?inputs=10&classes=2", "data": "diabetes", "attribute": ["sex"]}
USERS = {"model": TABLE["model"].replace("10", "11"), "data": f"{TESTS}/device_subjects.py:users"}
TEXTS = {
    "model": f"{TESTS}/device_subjects.py:model_of_words",
    "data": f"{TESTS}/device_subjects.py:words",
}
GAME = {"shadow": 40, "batches": 12, "trials": 12, "repeats": 1, "rounds": 1, "family": "logistic"}
SAMPLE = TESTS.parent / "sample_models" / "models.py"
PICTURES = {"model": f"{SAMPLE}:digits_cnn", "data": "digits"}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("sensitivity", {**TABLE, "samples": 16}, {"probes": 8}),
    ("vinfo", TABLE, {"repeats": 2, "batches": 10, "batch_size": 4, "family": ["logistic"]}),
    ("subspace", TABLE, {"permutations": 19}),
    ("forward", PICTURES, {}),
    ("copa-metric", PICTURES, {"records": 1}),
    ("attack labels", TABLE, {"batches": 1, "iterations": 2, "restarts": 1}),
    (
        "attack reconstruct",
        TABLE,
        {
            "method": ["dlg", "idlg", "inverting-gradients", "closed-form", "r-gap"],
            "iterations": 2,
            "restarts": 1,
            "batches": 1,
        },
    ),
    ("attack reconstruct", PICTURES, {"method": ["copa"], "restarts": 1, "batches": 1}),
    ("attack tracing", TABLE, {}),
    ("attack malicious-server", TABLE, {}),
    ("attack record", TABLE, {"batch_size": 2, "updates": 8, "given": [3]}),
    ("floor", {**PICTURES, "samples": 4}, {"sigma": 0.1, "directions": 2}),
    ("attack property", TABLE, {**GAME, "batch_size": 6}),
    ("attack attribute", TABLE, {**GAME, "batch_size": 6}),
    ("attack distribution", TABLE, {**GAME, "batch_size": 6}),
    ("attack user", USERS, {**GAME, "batch_size": 4}),
    ("attack text", TEXTS, {"batch_size": 2, "batches": 1, "decoys": 2}),
    ("attack table", TABLE, {"batch_size": 2, "batches": 1}),
    ("attack attribution", TABLE, {"batch_size": 4, "others": 1, "rounds": 2, "repeats": 1}),
    (
        "tradeoff",
        TABLE,
        {
            "defense": ["dp:clip=1e6,sigma=0.001|10,per=release"],
            "method": "dlg:optimiser=adam",
            "iterations": 2,
            "rounds": 2,
            "clients": 2,
            "batches": 2,
            "participants": 2,
        },
    ),
    ("dp-audit", TABLE, {"mechanism": "dp:clip=1,sigma=1", "trials": 200, "iterations": 4}),
]
MATCHING = {"restarts": 2, "batches": 1}
LOOPS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], float]] = [
    (
        "attack reconstruct",
        TABLE,
        {**MATCHING, "method": ["dlg:optimiser=adam"], "iterations": 3},
        {"iterations": 6},
        0,
    ),
    (
        "attack reconstruct",
        PICTURES,
        {**MATCHING, "method": ["inverting-gradients"], "iterations": 3},
        {"iterations": 6},
        0,
    ),
    (
        "attack reconstruct",
        TABLE,
        {**MATCHING, "method": ["dlg"], "batch_size": 4, "iterations": 1},
        {"iterations": 2},
        35,
    ),
    (
        "dp-audit",
        TABLE,
        {"mechanism": "dp:clip=1,sigma=1", "trials": 200, "iterations": 4},
        {"iterations": 8, "trials": 400},
        0,
    ),
    ("sensitivity", {**TABLE, "samples": 16}, {"probes": 8}, {"probes": 16}, 8),
    (
        "floor",
        {**PICTURES, "samples": 4},
        {"sigma": 0.1, "directions": 2},
        {"directions": 4},
        0,
    ),
    ("subspace", TABLE, {"permutations": 19}, {"permutations": 39}, 0),
    (
        "vinfo",
        TABLE,
        {"repeats": 2, "batches": 10, "batch_size": 4, "family": ["logistic"]},
        {"repeats": 4, "batches": 20},
        4,
    ),
    ("attack property", TABLE, {**GAME, "batch_size": 6}, {"batches": 24, "trials": 24}, 0),
    ("attack text", TEXTS, {"batch_size": 2, "batches": 1, "decoys": 2}, {"decoys": 4}, 0),
]
"""Audit, subject, options, which of them are doubled, and how often the CPU may then wait more.

L-BFGS waits once an evaluation, 20 to 30 times an outer step, as its line search is on the CPU;
what goes in chunks or blocks waits a few times for each.
"""
ELSEWHERE = {"observe", "job"}
"""Read updates from files, or simulate them."""
DRAWING = {"dp-audit", "tradeoff"}
"""Draw noise on the device, where seeds mean other numbers."""


Case = tuple[str, dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def both() -> dict[str, dict[str, Any]]:
    """What every case and loop comes to, by its name: the cases here and there, loops there."""
    return run([*CASES, *(case for loop in LOOPS for case in once_and_twice(loop))])


def once_and_twice(loop: tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], float]) -> Any:
    """A case of the loop, and one of double length."""
    audit, subject, options, doubled, _ = loop
    return (audit, subject, options), (audit, subject, {**options, **doubled})


def name(case: Case) -> str:
    return json.dumps(case)


def run(cases: list[Case]) -> dict[str, dict[str, Any]]:
    """Here, of those in ``CASES``, and there, in one process."""
    named, both = {name(case): case for case in cases}, set(map(name, CASES))
    chosen = [
        {
            "audit": audit,
            "subject": {"samples": 100, **subject},
            "options": options,
            "only_there": key not in both,
        }
        for key, (audit, subject, options) in named.items()
    ]
    child = subprocess.run(
        [sys.executable, TESTS / "fake_device.py"],
        input=json.dumps(chosen),
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return dict(zip(named, json.loads(child.stdout), strict=True))


def test_every_audit_is_tried() -> None:
    assert {audit for audit, _, _ in CASES} | ELSEWHERE == set(audits())


needs_a_device = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch takes no device that is written in Python",
)


@pytest.mark.slow
@needs_a_device
@pytest.mark.parametrize("loop", range(len(LOOPS)), ids=lambda loop: LOOPS[loop][0])
def test_no_loop_waits_for_the_device(both: dict[str, dict[str, Any]], loop: int) -> None:
    once, twice = (both[name(case)]["there"]["waits"] for case in once_and_twice(LOOPS[loop]))
    assert 0 < once <= twice <= once + LOOPS[loop][-1]


@pytest.mark.slow
@needs_a_device
@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda case: CASES[case][0])
def test_no_operation_mixes_devices_and_no_number_changes(
    both: dict[str, dict[str, Any]], case: int
) -> None:
    here, there = (both[name(CASES[case])][place] for place in ("here", "there"))
    assert there["fault"] is None
    assert any(status == "measured" for status, _, _ in here["rows"].values())
    assert there["rows"].keys() == here["rows"].keys()
    for key, (status, value, reason) in here["rows"].items():
        near = None if value is None else pytest.approx(value, rel=1e-5, abs=1e-9)
        assert there["rows"][key] == [status, near, reason], key


needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def on(device: str, case: tuple[str, dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    """The rows of an audit as status, value and reason, by what tells them apart."""
    audit, subject, options = case
    opened = open_subject(SubjectSettings(**{"samples": 100, **subject, "device": device}))
    outcome = measured(opened, audits()[audit](audits()[audit].Options(**options)), Silent())
    assert outcome.fault is None
    return {str(row.key): [row.status, row.value, row.reason] for row in outcome.part.rows}


@pytest.mark.slow
@needs_a_gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_gpu_finds_the_same_numbers(case: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    here, there = on("cpu", case), on("cuda", case)
    assert there.keys() == here.keys()
    for key, (status, value, reason) in here.items():
        drawn = value is None or case[0] in DRAWING
        near = there[key][1] if drawn else pytest.approx(value, rel=1e-2, abs=1e-6)
        assert there[key] == [status, near, reason], key
        assert (there[key][1] is None) == (value is None), key
