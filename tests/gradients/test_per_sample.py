"""Per-sample gradients against explicit autograd, one record at a time, in float64."""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch
from cases import CASES, RECORDS, Case
from torch import Tensor, nn

from gradaudit.errors import AuditError, NotApplicable
from gradaudit.gradients import per_sample
from gradaudit.gradients.memory import peak_bytes
from gradaudit.gradients.per_sample import PerSampleGradients, per_sample_gradients
from gradaudit.models.losses import CrossEntropy, MeanSquaredError
from gradaudit.models.target import Target, layers_of
from tests.gradients.batches import batch_gradient

EACH = pytest.mark.parametrize("case", CASES, ids=str)
SOME = pytest.mark.parametrize("case", CASES[::4], ids=str)
COUPLING = pytest.mark.parametrize("case", [case for case in CASES if case.couples], ids=str)
EXACT = {"rtol": 1e-9, "atol": 1e-12}


@cache
def by_autograd(case: Case) -> dict[str, Tensor]:
    """Each parameter's gradients (records, elements) by one backward pass a record."""
    model = case.make_model()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows: dict[str, list[Tensor]] = {name: [] for name in trained}
    for record, label in zip(case.inputs, case.labels, strict=True):
        loss = case.loss.per_record(model(record[None]), label[None])[0]
        found = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True)
        for name, gradient in zip(trained, found, strict=True):
            rows[name].append(gradient.flatten())
    return {name: torch.stack(gradients) for name, gradients in rows.items()}


def dense(case: Case, layers) -> dict[str, Tensor]:
    """Each layer's gradients (records, elements)."""
    of = by_autograd(case)
    return {layer.name: torch.cat([of[n] for n in layer.parameter_names], 1) for layer in layers}


def joined(gradients: PerSampleGradients) -> dict[str, Tensor]:
    chunks = list(gradients)
    return {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}


def of_case(case: Case, **options) -> PerSampleGradients:
    layers = layers_of(case.make_model(), with_bias=True)
    options = {"dtype": torch.float64, **options}
    return per_sample_gradients(case.target(), case.inputs, case.labels, layers, **options)


@cache
def whole(case: Case) -> tuple[PerSampleGradients, dict[str, Tensor]]:
    """Of all records at once in double precision, for all who compare with it."""
    gradients = of_case(case)
    return gradients, joined(gradients)


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], **tolerance) -> None:
    assert list(found) == list(expected)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], **(tolerance or EXACT), msg=name)


@EACH
def test_equal_autograd_record_by_record_and_chunks_make_no_difference(case):
    together, found = whole(case)
    assert together.batch == len(together) == RECORDS
    assert_same(found, dense(case, together.layers))
    held = of_case(case, memory=1, hold=1 << 30)
    chunks = list(held)
    assert [len(next(iter(chunk.values()))) for chunk in chunks] == [1] * RECORDS
    assert_same({name: torch.cat([chunk[name] for chunk in chunks]) for name in found}, found)
    with pytest.MonkeyPatch.context() as patch:  # what is held is not run again
        patch.setattr(per_sample, "at_once", None)
        patch.setattr(per_sample, "one_by_one", None)
        for layer in held.layers:  # as of a layer alone
            of_layer = joined(replace(held, layers=(layer,)))
            assert_same(of_layer, {layer.name: found[layer.name]})


def test_layers_without_their_biases_and_again():
    case = CASES[0]
    layers = layers_of(case.make_model())
    data = case.target(), case.inputs, case.labels, layers
    gradients = per_sample_gradients(*data, dtype=torch.float64, memory=1)
    found = joined(gradients)
    assert_same(found, dense(case, layers))
    assert_same(joined(gradients), found, rtol=0, atol=0)


def test_nothing_is_held_that_takes_more_than_it_may():
    taken = of_case(CASES[0], hold=1 << 30)
    joined(taken)
    size = sum(rows.nbytes for rows in taken.held.values())
    assert of_case(CASES[0], hold=size).held is not None
    assert of_case(CASES[0], hold=size - 1).held is None


@EACH
def test_a_loop_gives_the_same(case, monkeypatch):
    def unvmappable(*_):
        raise RuntimeError("vmap cannot follow this model")

    monkeypatch.setattr(per_sample, "at_once", unvmappable)
    gradients = of_case(case)
    assert gradients.way == "loop"
    assert_same(joined(gradients), dense(case, gradients.layers))


@SOME
def test_in_single_precision(case):
    layers = layers_of(case.make_model(), with_bias=True)
    gradients = per_sample_gradients(case.target(), case.inputs, case.labels, layers)
    found = joined(gradients)
    assert {rows.dtype for rows in found.values()} == {torch.float32}
    in_double = {name: rows.double() for name, rows in found.items()}
    assert_same(in_double, dense(case, layers), rtol=1e-4, atol=1e-5)


@SOME
def test_the_model_is_left_as_it_was(case):
    target = case.target()
    model = target.model
    for module in model.modules():
        module.training = len(list(module.children())) == 0  # flags that no single call sets
    before = copy.deepcopy(model)
    random = torch.get_rng_state()
    for compute in (per_sample_gradients, batch_gradient):
        list(compute(target, case.inputs, case.labels, target.layers))
    torch.testing.assert_close(model.state_dict(), before.state_dict(), rtol=0, atol=0)
    assert [m.training for m in model.modules()] == [m.training for m in before.modules()]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.get_default_dtype() == torch.float32


@COUPLING
def test_coupled_records_are_refused_with_the_remedy(case):
    target = Target(case.make_model(), case.loss, mode="train")
    with pytest.raises(NotApplicable, match=r"batch's statistics; use --mode eval$"):
        per_sample_gradients(target, case.inputs, case.labels, target.layers)


def test_records_coupled_by_the_model_itself_are_refused():
    class Centred(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x - x.mean(dim=0))

    target = Target(Centred(3, 2), MeanSquaredError())
    with pytest.raises(NotApplicable, match="the model is a function of several records"):
        per_sample_gradients(target, torch.rand(4, 3), torch.rand(4, 2), target.layers)


@COUPLING
def test_a_coupled_batch_has_a_gradient(case):
    model = case.make_model().train()
    target = Target(copy.deepcopy(model), case.loss, mode="train")
    found = batch_gradient(target, case.inputs, case.labels, target.layers, dtype=torch.float64)
    loss = case.loss.per_record(model(case.inputs), case.labels).mean()
    expected = torch.autograd.grad(loss, [model.get_parameter(f"{n}.weight") for n in found])
    for gradient, own in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(gradient, own.flatten(), **EXACT)
    torch.testing.assert_close(target.model.state_dict(), case.make_model().state_dict())


class Branching(nn.Module):
    """Chooses its way by the record, which vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        rows = [self.one(row) if float(row.sum()) > 0 else self.other(row) for row in x]
        return torch.stack(rows)


def test_a_model_that_cannot_be_vmapped_is_looped_over():
    torch.manual_seed(0)
    inputs, labels = torch.randn(9, 3).double(), torch.arange(9) % 2
    case = Case("branching", Branching, inputs, labels, CrossEntropy())
    assert (inputs.sum(dim=1) > 0).unique().numel() == 2, "both branches are taken"
    gradients = of_case(case)
    assert gradients.way == "loop"
    assert_same(joined(gradients), dense(case, gradients.layers))


def test_vmap_that_differs_from_the_loop_is_not_taken(monkeypatch):
    plain = per_sample.at_once

    def off(*facts):
        return {name: rows * (1 + 1e-6) for name, rows in plain(*facts).items()}

    monkeypatch.setattr(per_sample, "at_once", off)
    gradients = of_case(CASES[0])
    assert gradients.way == "loop"
    assert_same(joined(gradients), dense(CASES[0], gradients.layers))


def dropping(records: int = 6) -> tuple[Target, Tensor, Tensor]:
    """A model in which dropout decides the gradient: its nonzero entries are the record's mask."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(40, 1))
    return (
        Target(model, MeanSquaredError(), mode="train"),
        torch.ones(records, 40),
        -torch.ones(records, 1),
    )


@pytest.mark.parametrize("memory", [1 << 30, 1])
def test_dropout_draws_for_each_record_and_repeats_under_a_seed(memory):
    target, inputs, labels = dropping()

    def masks(seed: int) -> Tensor:
        gradients = per_sample_gradients(
            target, inputs, labels, target.layers, seed=seed, memory=memory
        )
        return joined(gradients)["1"] != 0

    drawn = masks(0)
    assert 0.3 < drawn.double().mean() < 0.7
    assert len(drawn.unique(dim=0)) == len(inputs)
    assert torch.equal(drawn, masks(0))
    assert not torch.equal(drawn, masks(1))


def convolutional() -> Target:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.Conv2d(4, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1152, 5),
    )
    return Target(model, CrossEntropy())


@pytest.mark.parametrize("budget", [1 << 20, 8 << 20])
def test_a_batch_keeps_to_its_memory(budget):
    target = convolutional()
    gradients = per_sample_gradients(
        target, torch.rand(600, 1, 16, 16), torch.arange(600) % 5, target.layers, memory=budget
    )
    assert 1 < gradients.batch < 600
    used = peak_bytes(lambda: next(iter(gradients)))
    assert 0.4 * budget < used <= 1.05 * budget


def test_a_single_record_and_a_chosen_layer():
    target = convolutional()
    layer = target.layers[1]
    (chunk,) = per_sample_gradients(target, torch.rand(1, 1, 16, 16), torch.ones(1).long(), [layer])
    assert {name: rows.shape for name, rows in chunk.items()} == {layer.name: (1, layer.parameters)}


def test_records_that_do_not_fit_the_model_are_told():
    target = convolutional()
    for compute in (per_sample_gradients, batch_gradient):
        with pytest.raises(AuditError, match="the model cannot be run on inputs of shape"):
            compute(target, torch.rand(2, 3), torch.ones(2).long(), target.layers)
        with pytest.raises(AuditError, match="the model has 5 classes"):
            compute(target, torch.rand(2, 1, 16, 16), torch.full((2,), 9), target.layers)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_on_a_gpu(case):
    target = Target(case.make_model().cuda(), case.loss)
    gradients = per_sample_gradients(
        target, case.inputs, case.labels, target.layers, dtype=torch.float64
    )
    found = joined(gradients)
    assert {rows.device.type for rows in found.values()} == {"cuda"}
    on_cpu = {name: rows.cpu() for name, rows in found.items()}
    assert_same(on_cpu, dense(case, target.layers), rtol=1e-7, atol=1e-9)
