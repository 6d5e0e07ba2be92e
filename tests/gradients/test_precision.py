"""Audits compute in full single precision, and leave torch as it was."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
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


def test_an_audit_runs_so(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def run(*_: object) -> Iterator[Measurement]:
        seen.append(set_now())
        yield from ()

    monkeypatch.setattr(Forward, "run", run)
    measured(subject(), Forward(Forward.Options()), Silent())
    assert seen == [["ieee"] * 3]
