"""Losses against their textbook form, and their derivatives against fifty digits."""

import math
import pickle
from typing import Any

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradaudit.errors import AuditError
from gradaudit.models.custom_loss import CustomLoss
from gradaudit.models.losses import (
    BUILT_IN,
    BinaryCrossEntropy,
    CrossEntropy,
    Loss,
    MeanSquaredError,
)

OF_OUTPUTS = {name: kind for name, kind in BUILT_IN.items() if name != "model"}
FLOAT64 = {"dtype": torch.float64}
OUTPUTS = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
CLASSES = torch.tensor([0, 2, 1, 1])
REAL = torch.rand(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    ("loss", "targets", "expected"),
    [
        (CrossEntropy(), CLASSES, F.cross_entropy(OUTPUTS, CLASSES, reduction="none")),
        (CrossEntropy(), REAL, -(REAL * OUTPUTS.log_softmax(1)).sum(1)),
        (MeanSquaredError(), REAL, (OUTPUTS - REAL).square().mean(1)),
        (MeanSquaredError(), CLASSES, (OUTPUTS - torch.eye(3)[CLASSES]).square().mean(1)),
        (
            BinaryCrossEntropy(),
            REAL,
            F.binary_cross_entropy_with_logits(OUTPUTS, REAL, reduction="none").mean(1),
        ),
    ],
)
def test_values(loss: Loss, targets: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(loss.per_record(OUTPUTS, targets), expected, rtol=1e-12, atol=0)


def test_one_logit_takes_labels_of_one_dimension() -> None:
    outputs, labels = OUTPUTS[:, :1], CLASSES.clamp(max=1)
    expected = F.binary_cross_entropy_with_logits(outputs[:, 0], labels.double(), reduction="none")
    torch.testing.assert_close(BinaryCrossEntropy().per_record(outputs, labels), expected)


@pytest.mark.parametrize("name", OF_OUTPUTS)
def test_soft_labels_give_the_same_loss(name: str) -> None:
    loss = BUILT_IN[name]()
    torch.testing.assert_close(
        loss.per_record(OUTPUTS, loss.soft(OUTPUTS, CLASSES)), loss.per_record(OUTPUTS, CLASSES)
    )


def _exact_derivatives(z: list[float], label: int) -> tuple[Tensor, Tensor]:
    """The derivatives p − e_y and diag(p) − p pᵀ with two hundred digits."""
    with mpmath.workdps(200):
        powers = [mpmath.exp(x) for x in z]
        p = [power / mpmath.fsum(powers) for power in powers]
        one = [int(c == label) for c in range(len(z))]
        gradient = [float(a - b) for a, b in zip(p, one, strict=True)]
        hessian = [
            [float(a * int(i == j) - a * b) for j, b in enumerate(p)] for i, a in enumerate(p)
        ]
    return torch.tensor(gradient, **FLOAT64), torch.tensor(hessian, **FLOAT64)


@pytest.mark.parametrize("margin", [0.0, 18.0, 40.0, 200.0])
@pytest.mark.parametrize("label", [0, 1, 2], ids=["confident", "wrong", "far off"])
def test_cross_entropy_keeps_its_accuracy_however_confident(margin: float, label: int) -> None:
    at = [margin, 0.0, -0.5 * margin]
    gradient, hessian = _exact_derivatives(at, label)

    def loss(z: Tensor) -> Tensor:
        return CrossEntropy().per_record(z[None], torch.tensor([label]))[0]

    def column(z: Tensor) -> Tensor:
        return CrossEntropy().negative_log_probabilities(z[None])[0, label]

    z = torch.tensor(at, dtype=torch.float64)
    for function in (loss, column):
        close = {"rtol": 1e-12, "atol": 0.0}
        torch.testing.assert_close(torch.func.grad(function)(z), gradient, **close)
        torch.testing.assert_close(torch.func.hessian(function)(z), hessian, **close)


@pytest.mark.parametrize("logit", [0.0, 18.0, -18.0, 40.0, -40.0, 200.0, -200.0])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_binary_cross_entropy_keeps_its_accuracy(logit: float, label: float) -> None:
    target = torch.tensor([[label]], dtype=torch.float64)

    def loss(z: Tensor) -> Tensor:
        return BinaryCrossEntropy().per_record(z[None, None], target)[0]

    def probability(z: float) -> float:
        return math.exp(z) / (1 + math.exp(z)) if z < 0 else 1 / (1 + math.exp(-z))

    z = torch.tensor(logit, dtype=torch.float64)
    first = probability(logit) if label == 0 else -probability(-logit)
    second = probability(logit) * probability(-logit)
    assert torch.func.grad(loss)(z).item() == pytest.approx(first, rel=1e-13)
    assert torch.func.hessian(loss)(z).item() == pytest.approx(second, rel=1e-13)


def test_losses_can_be_mapped_over_records() -> None:
    for loss in (CrossEntropy(), MeanSquaredError(), BinaryCrossEntropy()):
        mapped = torch.vmap(lambda o, t, loss=loss: loss.per_record(o[None], t[None])[0])
        torch.testing.assert_close(mapped(OUTPUTS, CLASSES), loss.per_record(OUTPUTS, CLASSES))


def test_a_custom_loss_may_reduce_or_not() -> None:
    each = CustomLoss(lambda o, t: (o - t).abs().sum(1), "each")
    mean = CustomLoss(lambda o, t: (o - t).abs().sum(1).mean(), "mean")
    expected = (OUTPUTS - REAL).abs().sum(1)
    torch.testing.assert_close(each.per_record(OUTPUTS, REAL), expected)
    torch.testing.assert_close(mean.per_record(OUTPUTS, REAL), expected)


WEIGHT = torch.tensor([0.2, 0.3, 0.5])


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(WEIGHT, reduction="none"),
        lambda o, t: F.cross_entropy(o, t, torch.tensor([0.2, 0.3, 0.5]), reduction="none"),
    ],
    ids=["module", "made in the function"],
)
def test_what_a_custom_loss_has_beside_the_outputs_takes_their_precision(loss: Any) -> None:
    custom, outputs = CustomLoss(loss, "file.py:loss"), OUTPUTS.double()
    custom.check(outputs, CLASSES)
    found = custom.per_record(outputs, CLASSES)
    expected = WEIGHT.double()[CLASSES] * CrossEntropy().per_record(outputs, CLASSES)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=0)
    assert torch.get_default_dtype() == torch.float32


def test_a_custom_loss_keeps_its_digits_when_it_was_called_in_single_precision() -> None:
    module = nn.CrossEntropyLoss(torch.tensor([0.1, 0.2, 0.7]).double() / 3, reduction="none")
    custom, outputs = CustomLoss(module, "file.py:loss"), OUTPUTS.double()
    before = custom.per_record(outputs, CLASSES)
    assert custom.per_record(outputs.float(), CLASSES).dtype == torch.float32
    torch.testing.assert_close(custom.per_record(outputs, CLASSES), before, rtol=0, atol=0)
    assert module.weight is not None
    assert module.weight.dtype == torch.float64


def test_a_custom_loss_is_the_same_after_a_transform() -> None:
    def total(outputs: Tensor) -> Tensor:
        return custom.per_record(outputs, CLASSES).sum()

    custom = CustomLoss(nn.CrossEntropyLoss(WEIGHT, reduction="none"), "file.py:loss")
    expected = WEIGHT[CLASSES].double() * CrossEntropy().per_record(OUTPUTS.double(), CLASSES)
    torch.func.vmap(torch.func.grad(total))(OUTPUTS[None].double())
    shipped = pickle.loads(pickle.dumps(custom))
    torch.testing.assert_close(shipped.per_record(OUTPUTS.double(), CLASSES), expected)


def test_a_custom_loss_of_single_precision_says_so() -> None:
    custom = CustomLoss(lambda o, t: F.cross_entropy(o, t, WEIGHT), "file.py:loss")
    with pytest.raises(AuditError, match=r"Float.*, as in weight.to\(outputs\)$"):
        custom.check(OUTPUTS.double(), CLASSES)


def test_labels_that_do_not_fit_are_named() -> None:
    with pytest.raises(AuditError, match="run from 0 to 2, but the model has 2 classes"):
        CrossEntropy().check(OUTPUTS[:, :2], CLASSES)
    with pytest.raises(AuditError, match=r"needs outputs \(records, classes ≥ 2\)"):
        CrossEntropy().check(OUTPUTS[:, :1], CLASSES)
    with pytest.raises(AuditError, match=r"integer class label .*real numbers of shape .*; name"):
        CrossEntropy().check(OUTPUTS, 2 * REAL)
    with pytest.raises(AuditError, match=r"integer class label .*real numbers of shape .*; name"):
        CrossEntropy().check(OUTPUTS, REAL)
    one_hot = F.one_hot(CLASSES, OUTPUTS.shape[1])
    with pytest.raises(AuditError, match=r"give one-hot labels as floats"):
        CrossEntropy().check(OUTPUTS, one_hot)
    CrossEntropy().check(OUTPUTS, one_hot.float())
    with pytest.raises(AuditError, match=r"from 0 to 255, .* nothing has the label -100\)"):
        CrossEntropy().check(OUTPUTS[..., None], torch.tensor([0, 1, 2, 255])[:, None])
    with pytest.raises(AuditError, match="--loss mse: labels of shape"):
        MeanSquaredError().check(OUTPUTS, REAL[:, :2])
    with pytest.raises(AuditError, match=r"returned shape \(4, 3\)"):
        CustomLoss(lambda o, t: o - t, "file.py:wrong").check(OUTPUTS, REAL)
    with pytest.raises(AuditError, match=r"--loss file.py:broken: .* fails on outputs"):
        CustomLoss(lambda o, t: o @ t, "file.py:broken").check(OUTPUTS, REAL)

    def fails(outputs: Tensor, targets: Tensor) -> Tensor:
        raise ValueError("first line\nsecond line")

    with pytest.raises(
        AuditError, match=r"ValueError: first line second line \(test_losses.py, line \d+\)$"
    ):
        CustomLoss(fails, "file.py:fails").check(OUTPUTS, REAL)
    with pytest.raises(AuditError, match=r"integer labels cannot be differentiated by"):
        CustomLoss(lambda o, t: o[:, 0], "file.py:classes").soft(OUTPUTS, CLASSES)


@pytest.mark.parametrize("kind", OF_OUTPUTS.values())
def test_a_loss_is_said_to_be_linear_in_real_targets_where_it_is(kind: type[Loss]) -> None:
    loss, other = kind(), REAL.flip(0) - 0.5
    together = loss.per_record(OUTPUTS, 2 * REAL - 3 * other)
    apart = 2 * loss.per_record(OUTPUTS, REAL) - 3 * loss.per_record(OUTPUTS, other)
    assert torch.allclose(together, apart, rtol=1e-12, atol=1e-12) is loss.linear
