"""Audits compute in full single precision, and leave torch as it was."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from dp_subject import subject
from torch import backends

from gradaudit.audits import Audit
from gradaudit.audits.copa_metric import CopaMetric
from gradaudit.audits.forward import Forward
from gradaudit.audits.sensitivity import Sensitivity
from gradaudit.config import SubjectSettings
from gradaudit.gradients import precision
from gradaudit.gradients.precision import full_single_precision, usual_precision
from gradaudit.progress import Silent
from gradaudit.report import Measurement
from gradaudit.run.opening import open_subject
from gradaudit.run.runner import measured

SAMPLES = Path(__file__).parents[2] / "sample_models"
SAMPLE, WEIGHTS = SAMPLES / "models.py", SAMPLES / "digits" / "round-10.safetensors"


def set_now() -> list[str]:
    given: Any = backends
    places = given.cuda.matmul, given.cudnn.conv, given.cudnn.rnn
    return [place.fp32_precision for place in places]


def test_what_was_set_comes_back_even_after_an_error() -> None:
    before = set_now()
    with suppress(KeyError), full_single_precision():
        assert set_now() == ["ieee"] * 3
        raise KeyError
    assert set_now() == before


@pytest.mark.parametrize("chosen", ["highest", "high", "medium"])
def test_code_that_asks_for_older_settings_goes_on(chosen: str) -> None:
    given: Any = backends
    of_the_user, of_the_cpu = torch.get_float32_matmul_precision(), given.mkldnn.matmul
    try:
        torch.set_float32_matmul_precision(chosen)
        before = [*set_now(), of_the_cpu.fp32_precision, given.cudnn.allow_tf32]
        with full_single_precision(), given.cudnn.flags(enabled=False):
            assert torch.get_float32_matmul_precision() == "highest"
            assert of_the_cpu.fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == chosen
        assert [*set_now(), of_the_cpu.fp32_precision, given.cudnn.allow_tf32] == before
    finally:
        torch.set_float32_matmul_precision(of_the_user)


def test_what_double_precision_costs_is_measured_so(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(precision, "_seconds_of", lambda matrix: seen.append(set_now()) or 1.0)
    assert precision.slowness_of_double(torch.device("cpu")) == 1
    assert seen
    assert all(each == ["ieee"] * 3 for each in seen)


def test_an_audit_runs_so(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def run(*_: object) -> Iterator[Measurement]:
        seen.append(set_now())
        yield from ()

    monkeypatch.setattr(Forward, "run", run)
    measured(subject(), Forward(Forward.Options()), Silent())
    assert seen == [["ieee"] * 3]


def test_precision_is_chosen_by_products_of_all_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def timed(dtype: torch.dtype, _: torch.device) -> float:
        seen.append(set_now())
        return {torch.float32: 1.0, torch.float64: 3.0}[dtype]

    monkeypatch.setattr(precision, "_seconds_of_a_product", timed)
    assert precision.slowness_of_double(torch.device("cpu")) == 3
    assert seen == [["ieee"] * 3] * 2


@pytest.mark.parametrize(
    ("device", "slowness", "usual"),
    [
        ("cpu", 64.0, torch.float64),
        ("cuda", 2.0, torch.float64),
        ("cuda", 32.0, torch.float32),
        ("mps", 1.0, torch.float32),
    ],
)
def test_double_precision_is_usual_where_it_is_not_slow(
    monkeypatch: pytest.MonkeyPatch, device: str, slowness: float, usual: torch.dtype
) -> None:
    monkeypatch.setattr(precision, "slowness_of_double", lambda _: slowness)
    assert usual_precision(torch.device(device)) is usual


@pytest.mark.slow
@pytest.mark.parametrize(
    ("audit", "agreeing"), [(Sensitivity, 1e-5), (Forward, 1e-5), (CopaMetric, 0.0)]
)
def test_numbers_of_single_precision_are_those_of_double(
    audit: type[Audit[Any]], agreeing: float
) -> None:
    """Ranks are those of double precision whatever is asked for."""
    values = {}
    for dtype in ("float64", "float32"):
        settings = {"model": f"{SAMPLE}:digits_cnn", "data": "digits", "samples": 8}
        asked = open_subject(SubjectSettings(**settings, checkpoint=(WEIGHTS,), dtype=dtype))
        assert asked.target.precision is getattr(torch, dtype)
        rows = measured(asked, audit(audit.Options()), Silent()).part.rows
        values[dtype] = [row.value for row in rows if row.status == "measured"]
    assert values["float64"]
    assert values["float32"] == pytest.approx(values["float64"], rel=agreeing, abs=0)
