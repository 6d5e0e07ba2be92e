"""Audits compute in full single precision, and leave torch as it was."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from dp_subject import subject
from torch import backends

from gradaudit.audits.forward import Forward
from gradaudit.gradients.precision import full_single_precision
from gradaudit.progress import Silent
from gradaudit.report import Measurement
from gradaudit.runner import measured


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


def test_an_audit_runs_so(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def run(*_: object) -> Iterator[Measurement]:
        seen.append(set_now())
        yield from ()

    monkeypatch.setattr(Forward, "run", run)
    measured(subject(), Forward(Forward.Options()), Silent())
    assert seen == [["ieee"] * 3]
