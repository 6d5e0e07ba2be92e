"""Jacobian norms against dense Jacobians, for every model, loss and way to differentiate."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gradaudit.audits.sensitivity.jacobian import Jacobians, LayerNorms
from gradaudit.errors import AuditError
from gradaudit.gradients.differentiation import (
    Batch,
    Differentiation,
    Doubled,
    Looped,
    Mapped,
    Variable,
    fastest,
)
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.jacobian_norms import by_probes, exact_norms
from gradaudit.gradients.trace import Gradients, Trace
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of
from tests.cases import CASES, Case
from tests.gradients.dense import jacobians as dense_jacobians

NORMS = ("f", "1", "inf")
SOFT = [case for case in CASES if case.id != "mlp-custom-each"]


def measured(
    target: Target,
    inputs: Tensor,
    labels: Tensor,
    by: Variable = "point",
    way: Differentiation | None = None,
    *,
    with_bias: bool = False,
    memory: int = 1 << 30,
    probes: int | None = None,
    seed: int = 0,
    workers: int = 1,
    one_norm: bool = True,
) -> dict[str, LayerNorms]:
    view = FunctionalModel.of(target)
    layers = layers_of(target.model, with_bias=with_bias)
    names = [name for layer in layers for name in layer.parameter_names]
    records, targets = view.cast(inputs), view.cast(labels)
    if by == "target":
        targets = target.loss.soft(view.check(records, targets), targets)
    trace = Trace.of(view, names, records, targets)
    batch = Batch(trace, records, trace.point(records), targets, range(len(records)))
    jacobians = Jacobians(batch, way or fastest(batch, by), by, layers, memory, seed)
    passes = by_probes(jacobians.size, probes, seed) if probes else exact_norms(jacobians.size)
    return jacobians.norms(passes[: None if one_norm else 1], lambda units: None, workers)


Dense = list[dict[str, tuple[Tensor, Tensor]]]
"""Of each record, by parameter: its gradient and the gradient's Jacobian."""


def dense_of(target: Target, inputs: Tensor, labels: Tensor, by: Variable) -> Dense:
    sizes = {name: p.numel() for name, p in target.model.named_parameters() if p.requires_grad}
    what = "input" if by == "point" else "label"
    found = []
    for record, label in zip(inputs, labels, strict=True):
        whole = dense_jacobians(target, record, label, list(sizes), by=what)
        gradients, jacobians = (each.split(list(sizes.values())) for each in whole)
        found.append(dict(zip(sizes, zip(gradients, jacobians, strict=True), strict=True)))
    return found


@cache
def measured_of_case(case: Case, by: Variable) -> dict[str, LayerNorms]:
    """All records' weights at once, in the fastest way, for all who compare with it."""
    return measured(case.target(), case.inputs, case.labels, by)


def assert_dense(
    found: dict[str, LayerNorms], target: Target, references: Dense, *, with_bias: bool = False
) -> None:
    for layer in layers_of(target.model, with_bias=with_bias):
        for k, reference in enumerate(references):
            own = [reference[name] for name in layer.parameter_names]
            gradient, dense = (torch.cat(parts) for parts in zip(*own, strict=True))
            norms = found[layer.name].samples
            got = torch.stack([norms["f"][k].sqrt(), norms["1"][k], norms["inf"][k]])[:, 0]
            expected = torch.stack([dense.norm(), dense.abs().sum(), dense.abs().max()])
            scale = {"rtol": 1e-7, "atol": 1e-13 * float(gradient.abs().max())}
            torch.testing.assert_close(got, expected, **scale)
            spread = gradient.max() - gradient.min()
            torch.testing.assert_close(found[layer.name].ranges[k], spread, rtol=1e-9, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_by_the_input(case: Case) -> None:
    """Biases are taken with every other case."""
    target, with_bias = case.target(), CASES.index(case) % 2 == 1
    found = measured_of_case(case, "point")
    if with_bias:
        found = measured(target, case.inputs, case.labels, with_bias=True)
    references = dense_of(target, case.inputs, case.labels, "point")
    assert_dense(found, target, references, with_bias=with_bias)


@pytest.mark.parametrize("case", SOFT, ids=str)
def test_by_the_label(case: Case) -> None:
    if not case.labels.is_floating_point() and case.id.startswith("mlp-custom"):
        pytest.skip("integer labels of a custom loss are not real numbers")
    data = case.target(), case.inputs, case.labels
    assert_dense(measured_of_case(case, "target"), data[0], dense_of(*data, "target"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "way", "by"),
    [
        (case, way, by)
        for number, case in enumerate(SOFT)
        for place, (way, by) in enumerate(product((Looped(), Doubled()), ("point", "target")))
        if (number + place) % 2
    ],
    ids=lambda part: type(part).__name__ if isinstance(part, Differentiation) else str(part),
)
def test_slower_ways_give_the_same(case: Case, way: Differentiation, by: Variable) -> None:
    slower = measured(case.target(), case.inputs[:2], case.labels[:2], by, way)
    for layer, norms in measured_of_case(case, by).items():
        other = slower[layer]
        assert other.methods == {way.title}
        for norm in NORMS:
            torch.testing.assert_close(
                other.samples[norm], norms.samples[norm][:2], rtol=1e-9, atol=1e-25
            )


class Sine(torch.autograd.Function):
    """Differentiable twice by plain autograd, unknown to ``torch.func``."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)  # type: ignore[attr-defined]
        return x.sin()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return gradient * x.cos()


class Sined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(Sine.apply(self.first(x)))


class Forked(nn.Module):
    """Control flow by values, which cannot be mapped over records."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.last(hidden.tanh() if x.sum() > 0 else hidden.sigmoid())


class Once(torch.autograd.Function):
    """Differentiable once."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return 2 * gradient


class Frozen(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(3, 3), nn.Linear(3, 2), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.last(self.first(x).tanh()))


@pytest.mark.parametrize(
    ("model", "way"),
    [(Sined, Doubled), (Forked, Looped), (Sined, None)],
    ids=["autograd function", "control flow", "by label"],
)
def test_the_fastest_way_that_works_is_taken(
    model: type[nn.Module], way: type[Differentiation] | None
) -> None:
    torch.manual_seed(0)
    data = Target(model(), CrossEntropy()), torch.randn(4, 3).double(), torch.arange(4) % 2
    by: Variable = "point" if way else "target"
    found = measured(*data, by)
    assert_dense(found, data[0], dense_of(*data, by))
    assert all(norms.methods == {(way or Doubled).title} for norms in found.values())


def test_a_model_without_a_gradient_is_refused() -> None:
    target = Target(Frozen(torch.Tensor.detach), CrossEntropy())
    with pytest.raises(AuditError, match="the loss cannot be differentiated by the model's par"):
        measured(target, torch.randn(2, 3).double(), torch.tensor([0, 1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [c for c in CASES if c.id in ("conv-strided", "conv-pooled", "text", "lstm")], ids=str
)
@pytest.mark.parametrize(("memory", "probes"), [(1 << 16, None), (1 << 12, 3)])
def test_numbers_do_not_depend_on_the_memory(case: Case, memory: int, probes: int | None) -> None:
    """All columns a few at a time, and probes one at a time, which takes no memory at all."""
    data = case.target(), case.inputs, case.labels
    much = measured(*data, probes=probes) if probes else measured_of_case(case, "point")
    little = measured(*data, memory=memory, probes=probes)
    for layer, norms in much.items():
        for norm, samples in norms.samples.items():
            torch.testing.assert_close(little[layer].samples[norm], samples, rtol=1e-10, atol=1e-25)


def test_the_same_seed_gives_the_same_numbers_and_another_others() -> None:
    case = CASES[0]
    data = case.target(), case.inputs, case.labels
    first, again, other = (measured(*data, probes=2, seed=seed) for seed in (0, 0, 1))
    for layer, norms in first.items():
        assert torch.equal(again[layer].samples["f"], norms.samples["f"])
        assert not torch.equal(other[layer].samples["f"], norms.samples["f"])


def test_as_many_probes_as_columns_are_the_columns() -> None:
    case = CASES[0]
    data = case.target(), case.inputs, case.labels
    exact, probed = measured(*data), measured(*data, probes=case.inputs[0].numel())
    for layer, norms in exact.items():
        assert all(torch.equal(probed[layer].samples[n], norms.samples[n]) for n in NORMS)


def test_each_record_is_a_batch_of_its_own_in_training_mode() -> None:
    case = next(case for case in CASES if case.id == "batch-norm")
    data = replace(case.target(), mode="train"), case.inputs, case.labels
    assert_dense(measured(*data), data[0], dense_of(*data, "point"))


class RecurrentText(nn.Module):
    """Tokens through dropout and an LSTM, neither of which is mapped over records."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 3, padding_idx=0)
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.lstm(self.dropout(self.embedding(x)))[0]
        logits: Tensor = self.head(hidden[:, -1])
        return logits


@pytest.mark.slow
@pytest.mark.parametrize("by", ["point", "target"])
def test_recurrent_networks_of_tokens(by: Variable) -> None:
    torch.manual_seed(0)
    data = (
        Target(RecurrentText(0.0), CrossEntropy()),
        torch.tensor([[1, 2, 3], [3, 3, 8], [5, 0, 0]]),
        torch.arange(3) % 2,
    )
    found = measured(*data, by)
    assert found["lstm"].methods == {Looped.title}
    assert_dense(found, data[0], dense_of(*data, by))


def test_tokens_behind_dropout_can_be_measured_in_training_mode() -> None:
    torch.manual_seed(0)
    target = Target(RecurrentText(0.5), CrossEntropy(), mode="train")
    found = measured(target, torch.tensor([[1, 2, 3]]).expand(3, -1), torch.zeros(3).long())
    assert len(set(found["embedding"].samples["f"].flatten().tolist())) == 3


@pytest.mark.slow
def test_dropout_has_one_mask_a_record_for_all_directions() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Dropout(0.5), nn.Linear(20, 2))
    inputs = torch.randn(1, 6).double().expand(3, -1)
    data = Target(model, CrossEntropy(), mode="train"), inputs, torch.zeros(3).long()
    found, again = measured(*data)["0"], measured(*data, memory=1 << 12)["0"]
    assert found.methods == {Looped.title}
    torch.testing.assert_close(found.samples["f"], again.samples["f"], rtol=1e-12, atol=0)
    assert len(set(found.samples["f"].flatten().tolist())) == 3
    # With a fixed mask m the layer's gradient moves in the masked units only.
    view = replace(FunctionalModel.of(data[0]), seed=1)

    def gradient(x: Tensor) -> Tensor:
        one = {"0.weight": view.parameters["0.weight"]}
        return torch.func.grad(view.record_loss)(one, x, data[2][1])["0.weight"]

    step = 1e-6 * torch.eye(6).double()
    columns = [(gradient(inputs[1] + e) - gradient(inputs[1] - e)) / 2e-6 for e in step]
    dense = torch.stack([column.flatten() for column in columns])
    torch.testing.assert_close(found.samples["f"][1, 0].sqrt(), dense.norm(), rtol=1e-6, atol=0)


def test_a_dead_network_has_no_jacobian_and_no_range() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    with torch.no_grad():
        model[0].bias.fill_(-100)
    found = measured(Target(model, CrossEntropy()), torch.rand(2, 4), torch.tensor([0, 1]))
    for name in ("0", "2"):
        assert all(not found[name].samples[norm].any() for norm in NORMS)
        assert not found[name].ranges.any()


def test_a_blank_picture_has_a_jacobian_but_no_range() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2))
    found = measured(Target(model, CrossEntropy()), torch.zeros(1, 1, 3, 3), torch.tensor([0]))
    assert found["0"].ranges.item() == 0
    assert found["0"].samples["f"].item() > 0


@pytest.mark.slow
def test_no_memory_is_counted_for_tangents_that_are_not_formed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F norms at one of 400 rows of 300 numbers need no matrix of 400 x 300 in a direction."""
    asked: list[int] = []
    wide = nn.Unflatten(1, (2, 6)), nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 400), nn.Flatten()
    target = Target(nn.Sequential(*wide), CrossEntropy(), "eval")
    original = Mapped.moved

    def counted(self: Mapped, batch: Batch, directions: Tensor, by: Variable) -> Gradients:
        asked.append(len(directions))
        return original(self, batch, directions, by)

    monkeypatch.setattr(Mapped, "moved", counted)
    data = torch.rand(1, 12), torch.zeros(1, dtype=torch.long)
    least = [
        min(asked.pop() for _ in range(len(asked)))
        for one_norm in (False, True)
        if measured(target, *data, memory=6 << 20, probes=8, one_norm=one_norm, way=Mapped())
    ]
    assert least == [8, 1]
