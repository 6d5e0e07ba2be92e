"""The shared table is sound: small, reproducible, and every layer of it has a gradient to audit."""

import pytest
import torch
from cases import CASES, RECORDS, Case

from gradaudit.models.target import layers_of

EACH = pytest.mark.parametrize("case", CASES, ids=str)


def test_names_are_unique() -> None:
    assert len({case.id for case in CASES}) == len(CASES)


@EACH
def test_a_case_is_small_and_its_parts_fit(case: Case) -> None:
    model = case.make_model()
    losses = case.loss.per_record(model(case.inputs), case.labels)
    assert losses.shape == (RECORDS,)
    assert losses.dtype == torch.float64
    assert losses.isfinite().all()
    assert sum(layer.parameters for layer in layers_of(model, with_bias=True)) <= 300
    assert case.inputs[0].numel() <= 60


@EACH
def test_every_layer_that_runs_has_a_gradient(case: Case) -> None:
    model = case.make_model()
    case.loss.per_record(model(case.inputs), case.labels).mean().backward()  # type: ignore[no-untyped-call]
    parameters = dict(model.named_parameters())
    for layer in layers_of(model):
        for name in layer.parameter_names:
            gradient = parameters[name].grad
            if layer.name == "spare":
                assert gradient is None
            else:
                assert gradient is not None
                assert gradient.count_nonzero() > 0, name


@EACH
def test_a_seed_makes_the_model_and_leaves_the_global_generator(case: Case) -> None:
    state = torch.random.get_rng_state()
    first, second, other = case.make_model(1), case.make_model(1), case.make_model(2)
    assert torch.equal(torch.random.get_rng_state(), state)
    outputs = [model(case.inputs) for model in (first, second, other)]
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    assert not first.training


@EACH
def test_records_couple_only_where_the_case_says_so(case: Case) -> None:
    model = case.make_model().train()
    together = model(case.inputs)[:2]
    alone = model(case.inputs[:2])
    assert torch.allclose(together, alone) is not case.couples


def test_the_saturated_case_is_saturated() -> None:
    case = next(case for case in CASES if case.id == "mlp-saturated")
    losses = case.loss.per_record(case.make_model()(case.inputs), case.labels)
    assert losses.min() < 1e-11
    assert losses.max() < 0.1
