"""Recurrent cells, routed experts, complex weights and fixed precisions: a number, or a remedy."""

import pytest
import torch
from torch import Tensor, nn

from gradaudit.audits.sensitivity.jacobian_sensitivity import DifferentiableTarget
from gradaudit.config import SubjectSettings
from gradaudit.data.records import Records
from gradaudit.errors import AuditError
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of
from gradaudit.progress import Silent
from gradaudit.run.opening import open_subject

_STEP = 1e-6


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], *, packed: bool) -> None:
        super().__init__()
        self.cells, self.head, self.packed = kind(2, 4, batch_first=True), nn.Linear(4, 2), packed

    def forward(self, x: Tensor) -> Tensor:
        steps = x.unflatten(1, (3, 2))
        if self.packed:
            lengths = torch.full((len(x),), 3)
            steps = nn.utils.rnn.pack_padded_sequence(steps, lengths, batch_first=True)
        states = self.cells(steps)[1]
        return self.head((states[0] if isinstance(states, tuple) else states)[-1])


class Routed(nn.Module):
    """Experts of which some get no record at all."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(6, 3), nn.Linear(4, 2)
        self.experts = nn.ModuleList([nn.Linear(6, 4) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        chosen, out = self.gate(x).argmax(1), x.new_zeros(len(x), 4)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            out = out.index_copy(0, rows, expert(x[rows]))
        return self.head(out.tanh())


class ComplexPairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(6, 4, 2)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.view_as_complex(self.weight)
        return self.head((x.to(weight.dtype) @ weight).abs())


class Complex(ComplexPairs):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.view_as_complex(self.weight.detach()))


class Single(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.float())


def records() -> Records:
    inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    return Records(inputs, torch.arange(4) % 2, ("a", "b"))


def measured(model: nn.Module, dtype: torch.dtype) -> dict[str, float]:
    target = Target(model, CrossEntropy(), precision=dtype)
    observed = DifferentiableTarget.of(target, layers_of(model), records(), 0)
    found = observed.jacobian_sensitivity("point", 0, seed=0, memory=1 << 30, progress=Silent())
    return {name: norms["f"].mean for name, norms in found.raw.items()}


def by_differences(model: nn.Module) -> float:
    """The mean norm for the head's weight."""
    model = model.double()

    def gradient(x: Tensor, label: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x[None]), label[None])
        return torch.autograd.grad(loss, model.get_parameter("head.weight"))[0].flatten()

    def norm(x: Tensor, label: Tensor) -> Tensor:
        steps = _STEP * torch.eye(len(x), dtype=x.dtype)
        columns = [(gradient(x + s, label) - gradient(x - s, label)) / (2 * _STEP) for s in steps]
        return torch.stack(columns).norm()

    data = records()
    return float(torch.stack(list(map(norm, data.inputs.double(), data.labels))).mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Recurrent(nn.GRU, packed=True),
        lambda: Recurrent(nn.LSTM, packed=False),
        lambda: Recurrent(nn.LSTM, packed=True),
        Routed,
        ComplexPairs,
    ],
    ids=["packed GRU", "LSTM", "packed LSTM", "experts", "pairs"],
)
def test_the_sensitivity_is_that_of_differences(make, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = make()
    found = measured(model, dtype)["head"]
    assert found == pytest.approx(by_differences(model), rel=1e-3)


def test_complex_parameters_are_refused_by_name() -> None:
    with pytest.raises(AuditError, match=r"parameters weight are complex.*view_as_complex"):
        measured(Complex(), torch.float64)


def test_a_model_in_single_precision_is_told_the_option_and_works_with_it() -> None:
    with pytest.raises(AuditError, match="Float and Double; use --dtype float32, in which it can"):
        measured(Single(), torch.float64)
    assert measured(Single(), torch.float32)["head"] > 0.1


@pytest.mark.parametrize(("end", "count"), [(nn.Softmax(1), 1), (nn.Identity(), 0)])
def test_outputs_that_are_probabilities_are_remarked_on(end: nn.Module, count: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 2), end)
    subject = open_subject(SubjectSettings(), model=model, records=records(), loss=CrossEntropy())
    remark = "all outputs are probabilities, and --loss cross-entropy takes logits"
    assert subject.target.notes == (remark,) * count
