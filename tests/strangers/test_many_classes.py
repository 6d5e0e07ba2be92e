"""Labels of more than 1,000 classes, as faces and products have them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gradaudit.attacks.layerwise.setting import LayerwiseSetting
from gradaudit.attacks.reconstruction.base import AttackerView
from gradaudit.audits.sensitivity import jacobian_sensitivity as sensitivity
from gradaudit.audits.sensitivity.jacobian_sensitivity import DifferentiableTarget
from gradaudit.data import load_records
from gradaudit.data.common.user_data import records_of
from gradaudit.errors import DataError
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of
from gradaudit.progress import Silent

CLASSES = 21_843


def archive(path: Path, labels: np.ndarray) -> str:
    np.savez(path, inputs=np.random.default_rng(0).random((len(labels), 4)), labels=labels)
    return f"npz:{path}?inputs=inputs&label=labels"


def test_class_indices_of_a_factory_may_be_beyond_a_thousand() -> None:
    labels = torch.tensor([0, 7, CLASSES - 1])
    records = records_of({"inputs": torch.rand(3, 4), "labels": labels}, "data")
    assert len(records.classes) == CLASSES
    assert records.labels.tolist() == labels.tolist()
    positions = records_of({"inputs": torch.rand(1, 4), "labels": labels[None]}, "data")
    assert len(positions.classes) == CLASSES


def test_whole_numbers_from_0_that_all_occur_twice_are_classes(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(1500), 2)
    assert len(load_records(archive(tmp_path / "twice.npz", labels)).classes) == 1500
    once = load_records(archive(tmp_path / "once.npz", np.arange(3000)))
    assert once.classes == ()


def test_a_task_that_is_named_lets_classes_be_as_many_as_the_records(tmp_path: Path) -> None:
    table, order = tmp_path / "faces.csv", tmp_path / "names.txt"
    table.write_text("size,who\n" + "".join(f"{i},person {i:04}\n" for i in range(1200)))
    with pytest.raises(DataError, match=r"1,200 different values.*task=classification"):
        load_records(f"csv:{table}?label=who")
    assert len(load_records(f"csv:{table}?label=who&task=classification").classes) == 1200
    order.write_text("".join(f"person {i:04}\n" for i in reversed(range(1300))))
    records = load_records(f"csv:{table}?label=who&classes={order}")
    assert (len(records.classes), records.labels[0].item()) == (1300, 1299)


def observed(classes: int) -> DifferentiableTarget:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, classes))
    labels = torch.tensor([0, classes - 1])
    records = records_of({"inputs": torch.rand(2, 4), "labels": labels}, "data")
    return DifferentiableTarget.of(Target(model, CrossEntropy()), layers_of(model), records, 0)


@pytest.mark.slow
def test_the_label_of_many_classes_is_estimated_and_says_from_how_many() -> None:
    few, many = observed(sensitivity.MOST_LABELS), observed(sensitivity.MOST_LABELS + 1)
    exact = few.jacobian_sensitivity("target", None, seed=0, memory=1 << 28, progress=Silent())
    estimated = many.jacobian_sensitivity("target", None, seed=0, memory=1 << 28, progress=Silent())
    asked = many.jacobian_sensitivity("target", 0, seed=0, memory=1 << 28, progress=Silent())
    assert (exact.probes, estimated.probes, asked.probes) == (0, sensitivity.PROBES, 0)
    for layer in ("0", "2"):
        assert estimated.raw[layer]["1"].columns == sensitivity.MOST_LABELS + 1
        low, high = estimated.raw[layer]["f"].interval()
        assert low < asked.raw[layer]["f"].mean < high


def test_attacks_that_try_every_label_take_the_one_that_signs_tell() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.LeakyReLU(), nn.Linear(5, 1200)).double()
    functional = FunctionalModel.of(Target(model, CrossEntropy()))
    record, label = torch.rand(1, 6).double(), torch.tensor([1107])
    shared = torch.func.grad(functional.batch_loss)(functional.parameters, record, label)
    view = AttackerView(functional, shared, batch=1, shape=(6,), classes=1200)
    assert [target.tolist() for target in LayerwiseSetting.of(view, "r-gap").targets()] == [[1107]]
    few = replace(view, classes=1000)
    assert len(LayerwiseSetting.of(few, "r-gap").targets()) == 1000
