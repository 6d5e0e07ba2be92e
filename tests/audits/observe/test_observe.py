"""What a captured update gives away, from files."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from subjects import subject_of
from torch import Tensor, nn

from gradaudit.audits.observe import Observe, ObserveOptions
from gradaudit.data.records import Records
from gradaudit.models.losses import CrossEntropy, Loss
from gradaudit.models.torch_losses import user_loss
from gradaudit.observer.saved_updates import captured, save_update
from gradaudit.progress import Silent
from gradaudit.report import Measurement
from gradaudit.run.runner import run
from gradaudit.subject import Subject


def network() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(30, 200), nn.ReLU(), nn.Linear(200, 5))


def subject(loss: Loss | None = None) -> Subject:
    return subject_of(network(), Records(torch.randn(6, 30), torch.arange(6) % 5), loss=loss)


def rows(update: str, rate: float | None = None) -> dict[tuple[str, str | None], Measurement]:
    options = ObserveOptions(update=update, rate=rate)
    return {(row.metric, row.layer): row for row in Observe(options).run(subject(), Silent())}


def stepped(rate: float) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights before and after a step on one record."""
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    nn.functional.cross_entropy(model(torch.randn(1, 30)), torch.tensor([3])).backward()
    torch.optim.SGD(model.parameters(), lr=rate).step()
    return before, model.state_dict()


@pytest.mark.parametrize("rate", [1.0, 0.01])
def test_one_record_is_found_however_it_was_captured(rate: float, tmp_path: Path) -> None:
    """Differences are rounded as the weights are, which is much coarser than the differences."""
    old, new, file = (tmp_path / f"{name}.safetensors" for name in ("old", "new", "update"))
    for path, state in zip((old, new), stepped(rate), strict=True):
        save_file(state, path)
    save_update(file, captured(old, new), rate)
    ways = (rows(str(file)), rows(f"{old},{new}", rate), rows(f"{old},{new}"))
    for found in ways:
        assert found["record_share", "0"].value == pytest.approx(1.0, abs=0.05)
        assert found["labels_named", None].details["classes"] == [3]
        assert found["span_share", "0"].value == pytest.approx(1 / 30)


def test_no_label_is_named_where_the_loss_smooths_them(tmp_path: Path) -> None:
    bias = torch.tensor([0.4, 0.1, -0.5, -0.01, 0.01])
    save_file({"2.weight": torch.ones(5, 200), "2.bias": bias}, tmp_path / "u.safetensors")
    options = ObserveOptions(update=str(tmp_path / "u.safetensors"))
    smoothed = user_loss(nn.CrossEntropyLoss(label_smoothing=0.2), "smoothed")
    for loss, status in ((CrossEntropy(), "measured"), (smoothed, "skipped")):
        told = [r for r in Observe(options).run(subject(loss), Silent()) if "labels" in r.metric]
        assert [row.status for row in told] == [status]


def test_a_layer_that_is_not_in_the_update_says_so(tmp_path: Path) -> None:
    path = tmp_path / "update.safetensors"
    save_file({"2.weight": torch.randn(5, 200), "2.bias": torch.randn(5)}, path)
    found = rows(str(path))
    assert found["norm", "0"].reason == "not in the update"
    assert found["norm", "2"].status == "measured"


def test_without_an_update_there_is_nothing_to_look_at() -> None:
    report = run(subject(), [Observe(ObserveOptions())])
    assert {row.status for row in report.measurements} == {"skipped"}
    assert "gradaudit capture" in str(report.measurements[0].reason)
