"""Cheap audits of models of every shape: each layer has the right number or a reason."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradaudit.audits import audits
from gradaudit.audits.sensitivity.jacobian_sensitivity import DifferentiableTarget
from gradaudit.config import SubjectSettings, settle
from gradaudit.data.common.packing import arguments
from gradaudit.data.common.user_data import records_of
from gradaudit.data.records import Records
from gradaudit.errors import GradauditError
from gradaudit.gradients.per_sample import per_sample_gradients
from gradaudit.models.outputs import unwrap
from gradaudit.models.target import layers_of
from gradaudit.progress import Silent
from gradaudit.run.opening import open_subject
from gradaudit.run.runner import run
from gradaudit.subject import Subject
from tests.shapes import COUNT, SHAPES, Shape

CHEAP: Mapping[str, Mapping[str, Any]] = {
    "sensitivity": {"probes": 8},
    "subspace": {"permutations": 19},
    "forward": {},
    "copa-metric": {"records": 1},
    "attack labels": {"batches": 1, "method": ("idlg",)},
    "attack reconstruct": {"method": ("closed-form",), "batches": 1},
    "attack text": {"batches": 1, "search": False},
}
STEP = 1e-5


def subject(shape: Shape) -> Subject:
    attribute = {"half": torch.arange(COUNT) % 2}
    parts = {"inputs": shape.inputs, "labels": shape.labels, "attributes": attribute}
    settings = SubjectSettings(mode=shape.mode, attribute=("half",), samples=COUNT)
    return open_subject(
        settings, model=shape.model(), records=records_of(parts, "data"), loss=shape.loss()
    )


@pytest.mark.parametrize("name", SHAPES)
def test_every_audit_has_a_cost_or_a_reason(name: str) -> None:
    audited = subject(SHAPES[name])
    for audit in audits().values():
        with suppress(GradauditError):
            assert audit(audit.Options()).gradients(audited) >= 0


@pytest.mark.parametrize("name", SHAPES)
def test_every_layer_has_a_number_or_a_reason(name: str) -> None:
    shape, known = SHAPES[name], audits()
    audited = subject(shape)
    chosen = [known[audit](settle(known[audit].Options, {}, dict(o))) for audit, o in CHEAP.items()]
    report = run(audited, chosen)
    assert report.provenance["broken"] == {}
    assert not [row for row in report.measurements if row.status == "failed"]
    for layer in audited.layers:
        for metric in ("sensitivity.input_f", "sensitivity.label_f", "forward.fraction"):
            row = report.select(metric, layer=layer.name, variant={})[0]
            expected = shape.reasons.get(row.audit)
            assert (row.status == "measured") is (expected is None), row.reason
            assert expected is None or expected in (row.reason or "")
        (row,) = report.select("subspace.grassmann", layer=layer.name, variant={})
        assert row.status == "measured" or "dimensions" in row.reason or row.audit in shape.reasons


def plain_gradients(
    model: nn.Module, shape: Shape, audited: Subject, record: Tensor, label: Tensor
) -> dict[str, Tensor]:
    """By layer, as torch has them of a batch of one."""
    given, named = arguments(audited.target.parts, record[None])
    loss = shape.plain(unwrap(model(*given, **named)), label[None])
    known = dict(model.named_parameters())
    names = {layer.name: layer.parameter_names for layer in audited.layers}
    slopes = {
        layer: torch.autograd.grad(loss, [known[p] for p in parts], retain_graph=True)
        for layer, parts in names.items()
    }
    return {layer: torch.cat([g.flatten() for g in of]) for layer, of in slopes.items()}


def plain(shape: Shape) -> tuple[nn.Module, torch.dtype]:
    dtype = torch.float32 if shape.tolerance > 1e-6 else torch.float64
    return shape.model().to(dtype).eval(), dtype


def cast(records: Records, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    sides = records.inputs, records.labels
    inputs, labels = (side.to(dtype) if side.is_floating_point() else side for side in sides)
    return inputs, labels


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape.mode == "eval"])
def test_gradients_of_records_are_those_of_torch(name: str) -> None:
    shape = SHAPES[name]
    audited, (model, dtype) = subject(shape), plain(shape)
    records = audited.records
    (found,) = per_sample_gradients(
        audited.target, records.inputs[:3], records.labels[:3], audited.layers, dtype=dtype
    )
    inputs, labels = cast(records, dtype)
    torch.set_default_dtype(dtype)
    try:
        each = [plain_gradients(model, shape, audited, inputs[k], labels[k]) for k in range(3)]
    finally:
        torch.set_default_dtype(torch.float32)
    for layer, gradients in found.items():
        expected = torch.stack([of_record[layer] for of_record in each])
        torch.testing.assert_close(gradients, expected, rtol=shape.tolerance, atol=shape.tolerance)


MOVING = [
    *("flat-mse", "segmentation", "hard-sigmoid", "bare-hard-functions", "weight-norm"),
    *("weighted-ignored", "gru"),
]


@pytest.mark.parametrize("name", MOVING)
def test_sensitivity_to_the_input_is_that_of_differences(name: str) -> None:
    shape = SHAPES[name]
    audited, (model, _) = subject(shape), plain(shape)
    layers = layers_of(audited.target.model)
    observed = DifferentiableTarget.of(audited.target, layers, audited.records, 0)
    inputs, labels = cast(audited.records, torch.float64)
    one = DifferentiableTarget(observed.view, layers, inputs[:1], labels[:1], observed.outputs[:1])
    measured = one.jacobian_sensitivity("point", 0, seed=0, memory=1 << 28, progress=Silent())
    squares = dict.fromkeys((layer.name for layer in layers), 0.0)
    for step in STEP * torch.eye(inputs[0].numel(), dtype=torch.float64):
        moved = [inputs[0] + sign * step.reshape(inputs[0].shape) for sign in (1, -1)]
        ahead, behind = (plain_gradients(model, shape, audited, x, labels[0]) for x in moved)
        for layer in squares:
            squares[layer] += float(((ahead[layer] - behind[layer]) / (2 * STEP)).square().sum())
    for layer, square in squares.items():
        assert measured.raw[layer]["f"].mean == pytest.approx(square**0.5, rel=1e-5), layer


def test_a_bag_of_embeddings_is_the_mean_of_embeddings() -> None:
    class Mean(nn.Embedding):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).mean(dim=1)

    found = []
    for kind in (nn.EmbeddingBag, Mean):
        model = nn.Sequential(kind(9, 4), nn.Tanh(), nn.Linear(4, 3))
        torch.manual_seed(1)
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        audited = open_subject(
            SubjectSettings(samples=4),
            model=model,
            records=records_of((SHAPES["bag"].inputs, SHAPES["bag"].labels), "data"),
        )
        observed = DifferentiableTarget.of(audited.target, audited.layers, audited.sample(4), 0)
        found.append(
            {
                (by, layer): of_layer["f"].mean
                for by in ("point", "target")
                for layer, of_layer in observed.jacobian_sensitivity(
                    by, 0, seed=0, memory=1 << 28, progress=Silent()
                ).raw.items()
            }
        )
    assert found[0] == pytest.approx(found[1], rel=1e-10)
