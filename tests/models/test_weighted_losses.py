"""Losses that weigh or couple records, against what torch makes of a batch."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradaudit.defenses.attachment import SummedColumns
from gradaudit.errors import AuditError
from gradaudit.models.custom_loss import CustomLoss
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.torch_losses import user_loss

generator = torch.Generator().manual_seed(0)
OUTPUTS = torch.randn(6, 3, generator=generator, dtype=torch.float64)
LABELS = torch.tensor([0, 1, 2, 1, 1, 0])
WEIGHT = torch.tensor([0.2, 1.0, 3.0])
MODULES: list[tuple[nn.Module, Tensor]] = [
    (nn.CrossEntropyLoss(), LABELS),
    (nn.CrossEntropyLoss(weight=WEIGHT), LABELS),
    (nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=1), LABELS),
    (nn.CrossEntropyLoss(ignore_index=-100), torch.tensor([0, -100, 2, 1, -100, 0])),
    (nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1, 2])), LABELS),
    (nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1), LABELS),
    (nn.NLLLoss(weight=WEIGHT), LABELS),
]
BINARY = [
    {},
    {"weight": WEIGHT},
    {"pos_weight": torch.tensor(3.0)},
    {"weight": WEIGHT[None], "pos_weight": 2 * WEIGHT},
]
POSITIONS = torch.tensor([[0, 1], [2, -100], [1, 1], [-100, 0], [2, 2], [0, 1]])


@pytest.mark.parametrize(("module", "labels"), MODULES, ids=lambda value: str(type(value).__name__))
def test_a_module_of_torch_weighs_as_torch_does(module: nn.Module, labels: Tensor) -> None:
    loss = user_loss(module, "file.py:loss")
    loss.check(OUTPUTS, labels)
    assert loss.coupling(OUTPUTS, labels) is None
    found = loss.of_batch(OUTPUTS, labels)
    expected = type(module)(**_options(module, torch.float64))(OUTPUTS, labels)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=0)
    weights = loss.weights(labels)
    assert weights is not None
    each = loss.per_record(OUTPUTS, labels)
    torch.testing.assert_close((weights * each).sum() / weights.sum(), expected)


@pytest.mark.parametrize("options", BINARY, ids=" ".join)
def test_a_binary_module_weighs_as_torch_does(options: dict[str, Tensor]) -> None:
    loss = user_loss(nn.BCEWithLogitsLoss(**options), "file.py:loss")
    targets = F.one_hot(LABELS, 3).double()
    exact = nn.BCEWithLogitsLoss(**{name: weight.double() for name, weight in options.items()})
    loss.check(OUTPUTS, targets)
    assert (loss.weights(targets), loss.coupling(OUTPUTS, targets)) == (None, None)
    torch.testing.assert_close(loss.of_batch(OUTPUTS, targets), exact(OUTPUTS, targets))
    each = torch.stack([exact(OUTPUTS[k : k + 1], targets[k : k + 1]) for k in range(6)])
    torch.testing.assert_close(loss.per_record(OUTPUTS, targets), each)


@pytest.mark.parametrize("shape", [(2,), (6, 1), (4, 1, 3)])
def test_weights_of_other_than_outputs_are_refused(shape: tuple[int, ...]) -> None:
    loss = user_loss(nn.BCEWithLogitsLoss(pos_weight=torch.ones(shape)), "file.py:loss")
    with pytest.raises(AuditError, match=r"pos_weight of shape .* one for each output"):
        loss.check(OUTPUTS, F.one_hot(LABELS, 3).double())


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_positions_weigh_as_torch_has_it(weight: Tensor | None, smoothing: float) -> None:
    outputs = torch.randn(6, 3, 2, generator=generator, dtype=torch.float64)
    module = nn.CrossEntropyLoss(weight, label_smoothing=smoothing)
    losses = [
        user_loss(module, "x"),
        *([CrossEntropy()] if weight is None and not smoothing else []),
    ]
    options = _options(module, torch.float64)
    for loss in losses:
        found = loss.of_batch(outputs, POSITIONS)
        torch.testing.assert_close(found, nn.CrossEntropyLoss(**options)(outputs, POSITIONS))
        each = loss.per_record(outputs, POSITIONS)
        torch.testing.assert_close(
            each[2], nn.CrossEntropyLoss(**options)(outputs[2:3], POSITIONS[2:3])
        )
        if isinstance(loss, CrossEntropy):
            torch.testing.assert_close(
                loss.per_record(outputs, loss.soft(outputs, POSITIONS)), each
            )


def _options(module: nn.Module, dtype: torch.dtype) -> dict[str, object]:
    found: dict[str, object] = {"ignore_index": module.ignore_index}
    if module.weight is not None:
        found["weight"] = module.weight.to(dtype)
    if smoothing := getattr(module, "label_smoothing", 0):
        found["label_smoothing"] = smoothing
    return found


def test_a_record_s_own_loss_has_no_weight_and_keeps_its_accuracy() -> None:
    loss = user_loss(nn.CrossEntropyLoss(weight=WEIGHT), "file.py:loss")
    outputs = torch.tensor([[40.0, 0.0, 0.0]], dtype=torch.float64)
    slope = torch.func.grad(lambda o: loss.per_record(o, torch.tensor([0]))[0])(outputs)
    torch.testing.assert_close(
        slope[0, 0].item(), -2 * torch.tensor(-40.0).double().exp().item(), rtol=1e-12, atol=0
    )
    torch.testing.assert_close(
        loss.per_record(OUTPUTS, LABELS), CrossEntropy().per_record(OUTPUTS, LABELS)
    )


def test_probabilities_have_torch_s_plain_mean() -> None:
    module = nn.CrossEntropyLoss(weight=WEIGHT.double(), label_smoothing=0.1)
    soft = OUTPUTS.softmax(dim=1)
    assert user_loss(module, "x").weights(soft) is None
    torch.testing.assert_close(
        user_loss(module, "x").of_batch(OUTPUTS, soft), module(OUTPUTS, soft)
    )


def _weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, WEIGHT.to(outputs))


class Declared:
    """A function with weights."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _weighted(outputs, targets)

    def weights(self, targets: Tensor) -> Tensor:
        return WEIGHT[targets]


def test_a_function_may_say_what_records_count() -> None:
    loss = CustomLoss(Declared(), "file.py:loss")
    assert loss.coupling(OUTPUTS[:2], LABELS[:2]) is None
    torch.testing.assert_close(loss.of_batch(OUTPUTS, LABELS), _weighted(OUTPUTS, LABELS))
    penalised = SummedColumns(loss, 1, 0.5)
    columns = torch.cat([OUTPUTS, OUTPUTS[:, :1].square()], dim=1)
    each, weights = penalised.per_record(columns, LABELS), WEIGHT[LABELS].double()
    torch.testing.assert_close(
        penalised.of_batch(columns, LABELS), (weights * each).sum() / weights.sum()
    )


def test_one_loss_a_record_is_weighed_too() -> None:
    each = Declared()
    each.__class__ = type(
        "Each", (Declared,), {"__call__": lambda _, o, t: F.cross_entropy(o, t, reduction="none")}
    )
    loss = CustomLoss(each, "x")
    torch.testing.assert_close(loss.of_batch(OUTPUTS, LABELS), _weighted(OUTPUTS, LABELS))


@pytest.mark.parametrize(
    ("function", "labels", "reason"),
    [
        (_weighted, LABELS, "is no mean over its records"),
        (lambda o, t: F.cross_entropy(o, t, reduction="sum"), LABELS, "is no mean over"),
        (lambda o, t: (o @ o.T).logsumexp(1).mean(), LABELS, "is no mean over"),
        (
            lambda o, t: ((1 + 4 * t) * (o[:, 0] - t).square()).sum() / (1 + 4 * t).sum(),
            torch.zeros(6, dtype=torch.float64),
            "is no mean over",
        ),
    ],
)
def test_a_batch_s_loss_that_is_no_mean_is_found_out(
    function: Callable[[Tensor, Tensor], Tensor], labels: Tensor, reason: str
) -> None:
    """Also where both records that it is tried on have one label."""
    loss = CustomLoss(function, "file.py:loss")
    alike = torch.tensor([1, 1]) if labels is LABELS else labels[:2]
    found = loss.coupling(OUTPUTS[:2], alike)
    assert found is not None
    assert reason in found
    assert "weights(targets)" in found
    torch.testing.assert_close(loss.of_batch(OUTPUTS, labels), function(OUTPUTS, labels))


def test_a_loss_that_needs_two_records_says_so() -> None:
    def of_pairs(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[0] - outputs[1]).square().sum()

    found = CustomLoss(of_pairs, "file.py:pairs").coupling(OUTPUTS[:2], LABELS[:2])
    assert found is not None
    assert "cannot be had of one record alone" in found


@pytest.mark.parametrize("weights", [lambda t: t[:1].double(), lambda t: -torch.ones(len(t))])
def test_wrong_weights_are_refused(weights: Callable[[Tensor], Tensor]) -> None:
    def plain(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)

    plain.weights = weights  # type: ignore[attr-defined]
    with pytest.raises(AuditError, match=r"--loss x: weights\(targets\) must give one weight"):
        CustomLoss(plain, "x").coupling(OUTPUTS, LABELS)


@pytest.mark.parametrize(
    "function",
    [F.cross_entropy, nn.MultiMarginLoss(), lambda o, t: F.cross_entropy(o, t, reduction="none")],
)
def test_a_plain_mean_couples_nothing(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    loss = CustomLoss(function, "x")
    assert loss.coupling(OUTPUTS[:2], LABELS[:2]) is None
    assert loss.weights(LABELS) is None


def test_as_many_weights_as_classes() -> None:
    loss = user_loss(nn.CrossEntropyLoss(weight=WEIGHT[:2]), "file.py:loss")
    with pytest.raises(AuditError, match="has 2 class weights, but the model has 3 classes"):
        loss.check(OUTPUTS, LABELS)
    with pytest.raises(AuditError, match="run from 0 to 5, but the model has 3 classes"):
        user_loss(nn.CrossEntropyLoss(weight=WEIGHT), "x").check(OUTPUTS, torch.arange(6))
