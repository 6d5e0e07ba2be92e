"""What audits are expected to take at a pace."""

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from dp_subject import subject
from fake_audit import Counting
from torch import Tensor, nn

from gradaudit.audits import AuditCost
from gradaudit.audits.sizes import Size
from gradaudit.config import SubjectSettings
from gradaudit.data.common.user_data import records_of
from gradaudit.gradients.precision import slowness_of_double
from gradaudit.run.opening import open_subject
from gradaudit.run.pace import Pace, Passes
from gradaudit.run.parallel import sampled
from gradaudit.run.survey import _in_precisions

if TYPE_CHECKING:
    from gradaudit.subject import Subject


class Passing(Counting):
    """Takes three passes together, two alone and a second."""

    def cost(self, subject: "Subject") -> AuditCost:
        return AuditCost(passes=3, calls=2, seconds=1)


@pytest.mark.parametrize(("single", "expected"), [(False, 10 * 3 + 100 * 2 + 1), (True, 3 + 21)])
def test_a_size_in_single_precision_goes_at_its_pace(single: bool, expected: float) -> None:
    size = Size("least", Passing(Counting.Options(scale=1.0)), single=single)
    about = sampled(_in_precisions(subject()), size)
    assert about.target.precision is (torch.float32 if single else torch.float64)
    pace = Pace(Passes(alone=10, together=1), Passes(alone=10, together=1).slower(10))
    assert pace.seconds(size.audit, about) == expected


def test_double_precision_is_not_taken_to_be_faster() -> None:
    assert 1 <= slowness_of_double(torch.device("cpu")) < 100


def test_a_subject_in_single_precision_has_one_pace() -> None:
    pace = Pace.of(subject().in_precision(torch.float32))
    assert pace.single == pace.double


FIRST = """
import sys, torch
from gradaudit.run import pace
def timed(*_):
    before = set(sys.modules)
    torch.func.grad(torch.sum)(torch.zeros(1))
    sys.exit(len(set(sys.modules) - before))
pace._timed = timed
pace.Pace.of(None)
"""


@pytest.mark.processes
def test_what_the_first_gradient_of_a_process_loads_is_no_part_of_a_timed_pass() -> None:
    assert subprocess.run([sys.executable, "-c", FIRST], check=False).returncode == 0


class Clipped(torch.autograd.Function):
    """As code from before ``torch.func`` has them, which it does not take."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        return slopes[0] * (ctx.saved_tensors[0] > 0)


class Old(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(records, 2)."""
        return Clipped.apply(self.head(x))  # type: ignore[no-any-return]


def test_a_model_that_torch_func_does_not_take_has_a_pace() -> None:
    records = records_of((torch.ones(8, 2), torch.arange(8) % 2), "data")
    pace = Pace.of(open_subject(SubjectSettings(), model=Old(), records=records))
    assert pace.single.alone > 0
