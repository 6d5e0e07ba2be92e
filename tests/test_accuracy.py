"""The model's accuracy on the records, against counts by hand, and what it warns of."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gradaudit.accuracy import (
    FEWEST_RECORDS,
    MOST_RECORDS,
    TaskAccuracy,
    task_accuracy,
)
from gradaudit.data.records import Records
from gradaudit.errors import AuditError
from gradaudit.models.custom_loss import CustomLoss
from gradaudit.models.losses import BinaryCrossEntropy, CrossEntropy, Loss
from gradaudit.models.losses import MeanSquaredError as SquaredError
from gradaudit.models.target import Target
from gradaudit.models.torch_losses import user_loss

WARNING = "the preprocessing is then probably not the one the model was trained with"


def measure(model: nn.Module, loss: Loss, inputs: Any, labels: Any, **options: Any) -> TaskAccuracy:
    records = Records(inputs=torch.as_tensor(inputs), labels=torch.as_tensor(labels))
    return task_accuracy(Target(model=model, loss=loss), records, **options)


def logits_for(guesses: torch.Tensor, classes: int) -> torch.Tensor:
    return nn.functional.one_hot(guesses, classes).float()


def identity(dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model with parameters that returns its inputs."""
    model = nn.Linear(1, 1, dtype=dtype)
    model.forward = lambda x: x + 0 * model.weight.sum()  # type: ignore[method-assign]
    return model


def test_the_share_of_right_guesses() -> None:
    guesses = torch.tensor([0, 1, 2, 2, 1, 0, 2, 2])
    labels = torch.tensor([0, 1, 2, 1, 1, 1, 2, 2])
    result = measure(identity(), CrossEntropy(), logits_for(guesses, 3), labels, batch=3)
    assert result.metric == "accuracy"
    assert result.value == 6 / 8
    assert result.chance == 4 / 8
    assert result.n == 8
    assert result.interval == pytest.approx((0.409275, 0.928521), abs=1e-6)


def test_a_model_that_guesses_the_largest_class_is_at_chance() -> None:
    labels = torch.tensor([0] * 70 + [1] * 30)
    always = measure(identity(), CrossEntropy(), logits_for(torch.zeros(100, dtype=int), 2), labels)
    assert always.value == always.chance == 0.7
    assert always.at_chance is True
    assert WARNING in (always.warning or "")
    right = measure(identity(), CrossEntropy(), logits_for(labels, 2), labels)
    assert (right.value, right.at_chance, right.warning) == (1.0, False, None)


@pytest.mark.parametrize(("n", "doubted"), [(20, False), (40, True), (2000, False)])
def test_chance_is_tested_and_few_records_say_nothing(n: int, doubted: bool) -> None:
    """Six of ten right: of 40, chance gives as many in 13 of 100 cases."""
    labels = torch.arange(n) % 2
    guesses = torch.where(torch.arange(n) % 5 < 3, labels, 1 - labels)
    found = measure(identity(), CrossEntropy(), logits_for(guesses, 2), labels)
    assert found.value == 0.6
    assert (found.warning is not None) is doubted
    assert found.at_chance is (n < 2000)


@pytest.mark.parametrize(("right", "doubted"), [(3, False), (0, True)])
def test_six_records_are_doubted_only_where_they_show_it(right: int, doubted: bool) -> None:
    labels = torch.arange(6) % 2
    guesses = torch.where(torch.arange(6) < right, labels, 1 - labels)
    found = measure(identity(), CrossEntropy(), logits_for(guesses, 2), labels)
    assert (found.warning is not None) is doubted


def test_more_outputs_than_classes_are_named() -> None:
    labels = torch.arange(40) % 2
    records = Records(inputs=logits_for(labels, 10), labels=labels, classes=("cat", "dog"))
    found = task_accuracy(Target(model=identity(), loss=CrossEntropy()), records)
    assert "10 outputs and the data 2 classes" in (found.warning or "")


def test_positions_are_right_or_wrong_but_for_those_without_a_label() -> None:
    labels = torch.tensor([[0, 1, -100], [1, 1, 0], [0, -100, -100]])
    logits = logits_for(torch.tensor([[0, 0, 1], [1, 1, 1], [0, 0, 0]]), 2).mT
    found = measure(identity(), CrossEntropy(), logits, labels)
    assert (found.value, found.n, found.chance) == (pytest.approx(4 / 6), 3, 0.5)
    loss = user_loss(nn.CrossEntropyLoss(ignore_index=7), "file.py:loss")
    assert measure(identity(), loss, logits, labels.where(labels >= 0, 7)) == found


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_records_of_a_label_that_the_loss_ignores_do_not_count(smoothing: float) -> None:
    labels, guesses = torch.tensor([0, 1, 7, 1, 0, 7]), torch.tensor([0, 1, 1, 0, 0, 0])
    module = nn.CrossEntropyLoss(ignore_index=7, label_smoothing=smoothing)
    found = measure(identity(), user_loss(module, "file.py:loss"), logits_for(guesses, 2), labels)
    assert (found.value, found.n, found.chance) == (3 / 4, 4, 0.5)


@pytest.mark.parametrize(("label", "shape"), [(7, (6,)), (-100, (6,)), (7, (6, 2))])
def test_nothing_is_said_where_the_loss_ignores_all_labels(
    label: int, shape: tuple[int, ...]
) -> None:
    labels, outputs = torch.full(shape, label), torch.randn(shape[0], 2, *shape[1:])
    loss = user_loss(nn.CrossEntropyLoss(ignore_index=label), "file.py:loss")
    found = measure(identity(), loss, outputs, labels)
    assert (found.metric, found.value, found.n) == ("none", None, 0)


@pytest.mark.parametrize("numbers", [[-100, -100, 3, 4, 5, 6], [-1, 1, 1, -1, 1, 1]])
def test_real_targets_that_are_whole_numbers_all_count(numbers: list[int]) -> None:
    labels = torch.tensor(numbers)
    found = measure(identity(), SquaredError(), labels[:, None].float() + 1, labels)
    assert (found.metric, found.n) == ("r2", 6)


def test_labels_of_a_single_class_say_nothing_of_chance() -> None:
    labels = torch.zeros(50, dtype=torch.int64)
    result = measure(identity(), CrossEntropy(), logits_for(labels, 2), labels)
    assert (result.value, result.chance, result.warning) == (1.0, 1.0, None)
    assert result.at_chance is None


@pytest.mark.parametrize(
    ("loss", "outputs"),
    [
        (BinaryCrossEntropy(), [[-1.0], [0.2], [0.7], [-3.0]]),
        (user_loss(nn.BCEWithLogitsLoss(), "file.py:loss"), [[-1.0], [0.2], [0.7], [-3.0]]),
        (SquaredError(), [[0.1], [0.6], [2.0], [0.4]]),
        (CustomLoss(lambda o, t: (o[:, 0] - t) ** 2, "mine"), [[-1.0], [1.0], [1.0], [-1.0]]),
    ],
    ids=["bce", "bce-module", "mse", "custom"],
)
def test_a_single_output_decides_between_two_classes(
    loss: Loss, outputs: list[list[float]]
) -> None:
    result = measure(identity(), loss, outputs, [0, 1, 0, 0])
    assert (result.metric, result.value, result.chance) == ("accuracy", 0.75, 0.75)


@pytest.mark.parametrize("loss", [BinaryCrossEntropy(), SquaredError()], ids=["bce", "mse"])
def test_other_losses_on_one_hot_classes_are_judged_by_the_largest_output(loss: Loss) -> None:
    outputs = [[0.1, 0.9, 0.0], [0.2, 0.3, 0.4]]
    assert measure(identity(), loss, outputs, [1, 0]).value == 0.5


@pytest.mark.parametrize(
    "loss",
    [
        BinaryCrossEntropy(),
        user_loss(nn.BCEWithLogitsLoss(torch.ones(2), pos_weight=torch.ones(1)), "file.py:loss"),
    ],
    ids=["named", "module"],
)
def test_several_binary_labels_are_judged_one_by_one(loss: Loss) -> None:
    outputs = [[1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]]
    targets = [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    result = measure(identity(), loss, outputs, targets)
    assert (result.value, result.n, result.chance) == (5 / 6, 6, 4 / 6)


@pytest.mark.parametrize("outputs", [1, 3])
def test_r2_against_its_definition(outputs: int) -> None:
    generator = np.random.default_rng(0)
    targets = generator.normal(size=(200, outputs)) * 3 + 5
    predicted = targets + generator.normal(size=targets.shape)
    result = measure(identity(torch.float64), SquaredError(), predicted, targets)
    residual = ((predicted - targets) ** 2).sum()
    expected = 1 - residual / ((targets - targets.mean(axis=0)) ** 2).sum()
    assert result.metric == "r2"
    assert result.value == pytest.approx(expected, rel=1e-12)
    assert result.chance == 0
    assert result.interval is not None
    assert result.interval[0] < expected < result.interval[1]
    assert result.warning is None


def test_targets_of_shape_records_meet_outputs_of_shape_records_by_one() -> None:
    result = measure(identity(), SquaredError(), [[1.0], [2.0], [4.0]], [1.0, 2.0, 4.0])
    assert (result.value, result.interval) == (1.0, (1.0, 1.0))


def test_whole_numbers_beyond_one_meet_a_single_output_as_quantities() -> None:
    result = measure(identity(), SquaredError(), [[1.0], [5.0], [9.0]], [1, 5, 9])
    assert (result.metric, result.value) == ("r2", 1.0)


def test_predicting_the_mean_is_chance() -> None:
    targets = np.random.default_rng(0).normal(size=(100, 1)).astype(np.float32)
    result = measure(identity(), SquaredError(), np.full_like(targets, targets.mean()), targets)
    assert result.value == pytest.approx(0, abs=1e-6)
    assert WARNING in (result.warning or "")


def test_the_bootstrap_covers_like_an_independent_one() -> None:
    """The percentiles agree with those of records drawn one by one by another generator."""
    generator = np.random.default_rng(1)
    targets = generator.normal(size=(150, 1))
    predicted = targets + 0.7 * generator.normal(size=targets.shape)
    redrawn = []
    for _ in range(4000):
        rows = generator.integers(0, 150, 150)
        t, p = targets[rows], predicted[rows]
        redrawn.append(1 - ((p - t) ** 2).sum() / ((t - t.mean()) ** 2).sum())
    result = measure(identity(torch.float64), SquaredError(), predicted, targets)
    assert result.interval is not None
    np.testing.assert_allclose(result.interval, np.percentile(redrawn, [2.5, 97.5]), atol=0.02)


@pytest.mark.parametrize("targets", [[[2.0], [2.0]], [2.0, 2.0]])
def test_constant_targets_have_no_r2(targets: Any) -> None:
    result = measure(identity(), SquaredError(), [[1.0], [3.0]], targets)
    assert (result.metric, result.value, result.warning) == ("none", None, None)


def test_a_loss_of_the_users_own_on_other_shapes_has_no_accuracy() -> None:
    loss = CustomLoss(lambda outputs, targets: outputs.square().sum(dim=1), "contrast")
    result = measure(identity(), loss, torch.randn(4, 3), torch.zeros(4, 2))
    assert (result.metric, result.value, result.n) == ("none", None, 4)


def test_it_is_json() -> None:
    result = measure(identity(), CrossEntropy(), [[0.0, 1.0], [0.0, 1.0]], [1, 0])
    assert json.loads(json.dumps(result.to_json()))["interval"] == list(result.interval or ())
    assert TaskAccuracy("none", None, None, None, 3).to_json()["interval"] is None


def test_evaluation_mode_is_used_and_the_model_left_as_it_was() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.9), nn.Linear(4, 2))
    model[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random_state = torch.get_rng_state()
    inputs, labels = torch.randn(40, 4) * 3, torch.arange(40) % 2
    torch.set_rng_state(random_state)
    target = Target(model=model, loss=CrossEntropy(), mode="train")
    records = Records(inputs=inputs, labels=labels)
    results = {task_accuracy(target, records, batch=batch).value for batch in (1, 7, 40)}
    assert [module.training for module in model] == [True, False, True]
    assert all(before[name].equal(tensor) for name, tensor in model.state_dict().items())
    assert torch.get_rng_state().equal(random_state)
    guesses = model.eval()(inputs).argmax(dim=1)
    assert results == {(guesses == labels).double().mean().item()}


def test_tokens_are_passed_on_as_whole_numbers() -> None:
    model = nn.Sequential(nn.EmbeddingBag(5, 2), nn.Linear(2, 2))
    result = measure(model, CrossEntropy(), torch.randint(0, 5, (6, 3)), torch.arange(6) % 2)
    assert result.n == 6


def test_beyond_the_limit_the_same_records_are_drawn_every_time() -> None:
    size = MOST_RECORDS + 500
    labels = torch.arange(size) % 2
    outputs = logits_for(torch.randint(0, 2, (size,), generator=torch.manual_seed(0)), 2)
    first = measure(identity(), CrossEntropy(), outputs, labels)
    assert first.n == MOST_RECORDS
    assert first == measure(identity(), CrossEntropy(), outputs, labels)
    everything = (outputs.argmax(dim=1) == labels).double().mean().item()
    assert first.value == pytest.approx(everything, abs=0.01)


@pytest.mark.parametrize(
    ("model", "loss", "inputs", "labels", "message"),
    [
        (nn.Linear(3, 2), CrossEntropy(), torch.zeros(4, 5), [0, 1, 0, 1], "(4, 5)"),
        (
            nn.Linear(3, 2),
            CrossEntropy(),
            torch.zeros(4, 5),
            [0, 1, 0, 1],
            "multiplied (4x5 and 3x2)",
        ),
        (nn.Linear(3, 2), CrossEntropy(), torch.zeros(3, 3), [0, 1, 2], "the model has 2 classes"),
        (nn.Linear(3, 2), CrossEntropy(), torch.zeros(2, 3), [0.5, 1.5], "integer class label"),
        (nn.Linear(3, 2), SquaredError(), torch.zeros(2, 3), [0.5, 1.5], "do not fit outputs"),
        (nn.Linear(3, 2), CrossEntropy(), torch.zeros(2, 3, dtype=int), [0, 1], "(2, 3)"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(
    model: nn.Module, loss: Loss, inputs: torch.Tensor, labels: Any, message: str
) -> None:
    with pytest.raises(AuditError) as caught:
        measure(model, loss, inputs, labels)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_outputs_that_are_no_numbers_are_counted() -> None:
    outputs = torch.tensor([[0.0, 1.0], [torch.nan, 1.0], [torch.inf, torch.nan]])
    with pytest.raises(AuditError, match="NaN or infinite for 2 of 3 records"):
        measure(identity(), CrossEntropy(), outputs, [0, 1, 0])


@pytest.mark.parametrize(("budget", "n"), [(300, 300), (1, FEWEST_RECORDS), (1e9, 400)])
def test_a_costly_model_is_run_on_fewer_records(budget: float, n: int) -> None:
    """A product of a (2 × 3) matrix with a vector takes 12 operations."""
    inputs, labels = torch.randn(400, 3, generator=torch.manual_seed(0)), torch.arange(400) % 2
    model, operations = nn.Linear(3, 2), 12 * budget
    assert measure(model, CrossEntropy(), inputs, labels, operations=operations).n == n


def test_what_cannot_be_counted_is_run_on_all() -> None:
    class Uncountable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.utils._python_dispatch._len_torch_dispatch_stack():
                raise RuntimeError("no modes")
            return x * self.weight

    outputs = torch.randn(600, 2, generator=torch.manual_seed(0))
    assert measure(Uncountable(), CrossEntropy(), outputs, torch.arange(600) % 2).n == 600
