"""Piecewise linear networks are recognised by their tangents, and measured without them."""

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

from gradaudit.audits.sensitivity.jacobian import Jacobians
from gradaudit.audits.sensitivity.piecewise import PiecewiseLinear, tabulated
from gradaudit.gradients.differentiation import Batch, Mapped
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.jacobian_norms import (
    NORMS,
    Columns,
    Directions,
    Gaussian,
    Norms,
    Pass,
    exact_norms,
)
from gradaudit.gradients.sources import FactoredGradients, General
from gradaudit.gradients.trace import Trace
from gradaudit.models.losses import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquaredError
from gradaudit.models.target import Target, layers_of

RECORDS = 3


def batch_of(model: nn.Module, shape: tuple[int, ...], loss: Loss, outputs: int) -> Batch:
    torch.manual_seed(1)
    records = torch.randn(RECORDS, *shape, dtype=torch.float64)
    labels = torch.arange(RECORDS) % outputs
    view = FunctionalModel.of(Target(model, loss))
    trace = Trace.of(view, list(view.parameters), records, labels)
    return Batch(trace, records, records, labels, range(RECORDS))


def general(batch: Batch) -> General:
    return General(FactoredGradients.of(batch, Mapped()), Mapped(), "point")


def gaussian(batch: Batch) -> Tensor:
    (directions,) = Gaussian(1, 7).chunks(batch.points[0], 1)
    return directions.vectors[0]


def convolutional(*first: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*first, nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))


class Skip(nn.Module):
    """The input comes in at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu() + x
        return self.head((self.second(hidden) + self.first(hidden)).flatten(1))


LINEAR = {
    "one layer": (lambda: nn.Linear(5, 4), (5,)),
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 6), nn.LeakyReLU(), nn.Linear(6, 4)), (5,)),
    "strided": (convolutional(nn.Conv2d(2, 3, 3, stride=2, padding=1)), (2, 5, 5)),
    "grouped": (convolutional(nn.Conv2d(4, 6, 2, groups=2)), (4, 3, 3)),
    "depthwise": (convolutional(nn.Conv2d(3, 3, 2, groups=3, padding="same")), (3, 3, 3)),
    "dilated": (convolutional(nn.Conv2d(2, 3, (2, 1), dilation=2)), (2, 4, 4)),
    "reflected": (convolutional(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect")), (1, 4, 4)),
    "one position": (convolutional(nn.Conv2d(2, 3, 3)), (2, 3, 3)),
    "1d": (convolutional(nn.Conv1d(2, 3, 3, padding=2, stride=2)), (2, 7)),
    "3d": (convolutional(nn.Conv3d(1, 2, 2, padding=1)), (1, 2, 3, 2)),
    "pooled": (
        convolutional(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 2)),
        (1, 8, 8),
    ),
    "frozen norm": (convolutional(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3)), (1, 4, 4)),
    "skip": (Skip, (2, 4, 4)),
}
CURVED = {
    "tanh": nn.Tanh,
    "hardswish": nn.Hardswish,
    "gelu": nn.GELU,
    "norm": lambda: nn.LayerNorm(6),
}


def norms_by(source: General | PiecewiseLinear, directions: Directions) -> dict[str, Norms]:
    return dict(source.norms(directions, NORMS))


def together(parts: Sequence[Mapping[str, Norms]]) -> dict[str, Norms]:
    return {
        name: {norm: torch.cat([part[name][norm] for part in parts]) for norm in norms}
        for name, norms in parts[0].items()
    }


LOSSES = (CrossEntropy(), MeanSquaredError(), BinaryCrossEntropy())


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        *((name, LOSSES[place % 3]) for place, name in enumerate(LINEAR)),
        *((name, loss) for name in ("mlp", "pooled") for loss in LOSSES),
    ],
)
def test_the_same_norms_as_by_general_tangents(name: str, loss: Loss) -> None:
    torch.manual_seed(0)
    build, shape = LINEAR[name]
    model = build()
    model(torch.zeros(1, *shape))
    batch = batch_of(model.eval(), shape, loss, 4)
    point = general(batch)
    source = PiecewiseLinear.of(point, gaussian(batch))
    assert source is not None
    tables = [tabulated(source.part(slice(k, k + 1))) for k in range(RECORDS)]
    columns = batch.points[0].numel()
    for directions in Columns(range(columns)).chunks(batch.points[0], max(5, columns // 3)):
        expected = norms_by(point, directions)
        found = {
            "whole": norms_by(source, directions),
            "tabulated": together([norms_by(part, directions) for part in tables]),
        }
        for way, by_parameter in found.items():
            for parameter, norms in expected.items():
                for norm, numbers in norms.items():
                    torch.testing.assert_close(
                        by_parameter[parameter][norm],
                        numbers,
                        rtol=1e-9,
                        atol=1e-25,
                        msg=f"{way} {parameter} {norm}",
                    )


@pytest.mark.parametrize("name", CURVED)
def test_curved_networks_are_not_taken_for_linear(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), CURVED[name](), nn.Linear(6, 4))
    batch = batch_of(model, (5,), CrossEntropy(), 4)
    assert PiecewiseLinear.of(general(batch), gaussian(batch)) is None


def test_one_curved_record_is_enough() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Hardswish(), nn.Linear(6, 4))
    batch = batch_of(model, (5,), CrossEntropy(), 4)
    batch.points[:2] *= 1e4
    assert PiecewiseLinear.of(general(batch.part(slice(2))), gaussian(batch)) is not None
    assert PiecewiseLinear.of(general(batch), gaussian(batch)) is None


def test_a_curved_record_counts_however_confident_it_is() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Hardswish(), nn.Linear(6, 4))
    with torch.no_grad():
        model[2].bias[0] += 30
    batch = batch_of(model, (5,), CrossEntropy(), 4)
    batch.points[:2] *= 1e4
    with torch.no_grad():
        logits = batch.trace.view.outputs({}, batch.points)
    batch.targets[:2], batch.targets[2:] = logits[:2].argmin(dim=1), 0
    confident = batch.part(slice(3))
    deltas = general(confident).point.gradients.deltas[-1].flatten(1).abs().amax(1)
    assert deltas[2] < 1e-9 * deltas[:2].min()
    assert PiecewiseLinear.of(general(confident.part(slice(2))), gaussian(batch)) is not None
    assert PiecewiseLinear.of(general(confident), gaussian(batch)) is None


def test_the_engine_takes_the_short_way() -> None:
    torch.manual_seed(0)
    build, shape = LINEAR["pooled"]
    model = build()
    model(torch.zeros(1, *shape))
    batch = batch_of(model, shape, CrossEntropy(), 4)
    done: list[int] = []
    jacobians = Jacobians(batch, Mapped(), "point", layers_of(model, with_bias=True))
    found = jacobians.norms(exact_norms(jacobians.size), done.append)
    assert sum(done) == RECORDS * jacobians.size
    ways = {norms.methods for norms in found.values()}
    assert ways == {frozenset({"forward mode of a piecewise linear network"})}


def test_few_directions_do_not_pay_for_many_outputs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4))
    batch = batch_of(model, (5,), CrossEntropy(), 4)
    found = Jacobians(batch, Mapped(), "point", layers_of(model)).norms(
        [Pass(Gaussian(3, 0), ("f",), total=False)], lambda units: None
    )
    assert {norms.methods for norms in found.values()} == {frozenset({Mapped.title})}
