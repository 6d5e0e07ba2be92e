"""Every parameter's gradient, put together from its uses, is the one that autograd gives."""

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradaudit.errors import AuditError
from gradaudit.gradients.capture import Capture
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.trace import Trace
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from tests.cases import CASES, Case

WHOLE = {
    "conv-autoencoder": {"2.weight", "2.bias"},
    "unused-and-frozen": {"spare.weight", "spare.bias"},
    "own-parameters": {"scale", "mixing"},
    "language": {"embedding.weight"},
    "lstm": {f"lstm.{kind}_{part}_l0" for kind in ("weight", "bias") for part in ("ih", "hh")},
}


def trace_of(target: Target, inputs: Tensor, labels: Tensor) -> Trace:
    view = FunctionalModel.of(target)
    return Trace.of(view, list(view.parameters), view.cast(inputs), view.cast(labels))


@cache
def trace_of_case(case: Case) -> Trace:
    """For all who look at it."""
    return trace_of(case.target(), case.inputs, case.labels)


def by_autograd(case: Case, record: int) -> dict[str, Tensor]:
    model = case.make_model()
    record_at = slice(record, record + 1)
    case.loss.per_record(model(case.inputs[record_at]), case.labels[record_at]).sum().backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.named_parameters()
        if p.requires_grad
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_sums_over_uses(case: Case) -> None:
    trace = trace_of_case(case)
    assert set(trace.whole) == WHOLE.get(case.id, set())
    assert set(trace.uses) | set(trace.whole) == set(trace.view.parameters)
    for record in range(len(case.inputs)):
        data = case.inputs[record]
        found = trace.gradients(trace.point(data[None])[0], case.labels[record], data)
        seen = found.seen | trace.tokens(data)
        expected = by_autograd(case, record)
        for name, uses in trace.uses.items():
            total = torch.zeros_like(expected[name]).flatten()
            for site, use in uses:
                left, came_in = use.left(found.deltas[site][None]), seen[site][None]
                total += use.weight(left @ use.right(came_in).to(left).mT, came_in)[0]
            torch.testing.assert_close(total.reshape_as(expected[name]), expected[name])
        for name in trace.whole:
            torch.testing.assert_close(found.whole[name], expected[name])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_plain_autograd_gives_the_same(case: Case) -> None:
    trace = trace_of_case(case)
    record = trace.point(case.inputs[:1])[0], case.labels[0], case.inputs[0]
    torch.testing.assert_close(trace.connected(*record), trace.gradients(*record))


class Twofold(nn.Module):
    """A weight that is used by a linear map and also on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).tanh() + self.linear.weight.sum(dim=1)


class TiedToTheEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).mean(dim=1).tanh())


def test_a_weight_that_its_uses_do_not_explain_is_taken_whole() -> None:
    torch.manual_seed(0)
    inputs, labels = torch.randn(2, 3).double(), torch.tensor([0, 1])
    trace = trace_of(Target(Twofold(), CrossEntropy()), inputs, labels)
    assert trace.whole == ("linear.weight",)
    assert set(trace.uses) == {"linear.bias"}
    assert len(trace.sites) == 1


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) if x.sum() > 0 else self.other(x)


def test_layers_that_some_records_do_not_meet_are_taken_whole() -> None:
    inputs = torch.tensor([[1.0, 2, 3], [1, 1, 1], [0, 0, 1], [-1, -2, -3]]).double()
    trace = trace_of(Target(Branching(), CrossEntropy()), inputs, torch.tensor([0, 1, 0, 1]))
    assert set(trace.whole) == {"one.weight", "one.bias", "other.weight", "other.bias"}
    assert not trace.sites


def test_a_record_that_meets_other_layers_is_refused() -> None:
    inputs = torch.tensor([[1.0, 2, 3], [-1, -2, -3]]).double()
    trace = trace_of(Target(Branching(), CrossEntropy()), inputs[:1], torch.tensor([0]))
    with pytest.raises(AuditError, match="other layers to some records"):
        trace.gradients(inputs[1], torch.tensor(0), inputs[1])


def test_unlike_uses_of_one_weight_are_taken_whole() -> None:
    target = Target(TiedToTheEmbedding(), CrossEntropy())
    trace = trace_of(target, torch.tensor([[1, 2, 2]]), torch.tensor([0]))
    assert trace.whole == ("embedding.weight",)
    assert trace.embedded == {0: (1, 3, 3)}


@pytest.mark.parametrize("tokens", [[0, 3, 3, 0], [1, 1, 1, 1], [0, 1, 2, 3, 4, 4, 2, 1]])
def test_an_embedding_with_padding(tokens: list[int]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 3, padding_idx=0), nn.Flatten(), nn.Tanh())
    inputs = torch.tensor([tokens])
    trace = trace_of(Target(model, CrossEntropy()), inputs, torch.tensor([2]))
    found = trace.gradients(trace.point(inputs)[0], torch.tensor(2), inputs[0])
    (((site, use),),) = trace.uses.values()
    left = use.left(found.deltas[site][None])
    total = use.weight(left @ use.right(inputs[:, None]).to(left).mT, inputs[:, None])
    F.cross_entropy(model.double()(inputs), torch.tensor([2])).backward()
    assert model[0].weight.grad is not None
    torch.testing.assert_close(total.reshape(5, 3), model[0].weight.grad)


def test_a_capture_sees_inside_attention_and_changes_nothing() -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(4, 2, batch_first=True).eval()
    x = torch.randn(1, 3, 4)
    capture = Capture(dict(attention.named_parameters()))
    with capture:
        out, weights = attention(x, x, x)
    expected, expected_weights = attention(x, x, x)
    assert [name for site in capture.sites for name, _ in site.uses] == [
        "in_proj_weight",
        "in_proj_bias",
        "out_proj.weight",
        "out_proj.bias",
    ]
    torch.testing.assert_close((out, weights), (expected, expected_weights))


@pytest.mark.parametrize("case", [c for c in CASES if c.inputs.is_floating_point()], ids=str)
def test_single_precision_is_no_reason_to_take_parameters_whole(case: Case) -> None:
    view = FunctionalModel.of(case.target(), dtype=torch.float32)
    labels = view.cast(case.labels)
    trace = Trace.of(view, list(view.parameters), view.cast(case.inputs), labels)
    assert set(trace.whole) == WHOLE.get(case.id, set())
