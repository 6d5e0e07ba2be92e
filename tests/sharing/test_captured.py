from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gradaudit.errors import CheckpointError, UsageError
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.sharing.captured import captured_update
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import share
from tests.attacks.reconstruction.scenes import mlp, records

BATCH = records(6, labels=[1, 2])


@pytest.fixture
def target() -> Target:
    return Target(mlp(), CrossEntropy())


def gradient(target: Target, sharing: SharingProtocol | None = None) -> dict[str, torch.Tensor]:
    return share(
        target,
        BATCH.inputs,
        BATCH.labels,
        sharing or SharingProtocol(),
        torch.Generator().manual_seed(0),
        dtype=torch.float64,
    )


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_file_of_gradients_is_the_update(target: Target, tmp_path: Path, suffix: str) -> None:
    update, path = gradient(target), tmp_path / f"update.{suffix}"
    if suffix == "pt":
        torch.save(update, path)
    else:
        save_file(update, path)
    found = captured_update(str(path), target)
    assert found.update.keys() == update.keys()
    for name, part in update.items():
        assert torch.equal(found.update[name], part)
    assert found.target is target
    assert found.details["captured"] == "gradient"


def test_parameters_that_are_not_in_the_file_are_hidden(target: Target, tmp_path: Path) -> None:
    update, path = gradient(target), tmp_path / "update.safetensors"
    save_file({"0.weight": update["0.weight"]}, path)
    found = captured_update(str(path), target)
    assert list(found.update) == ["0.weight"]
    assert "0.bias, 2.weight, 2.bias" in str(found.details["notes"])


def test_two_checkpoints_a_step_apart_are_the_gradient(target: Target, tmp_path: Path) -> None:
    update, rate = gradient(target), 0.05
    old = target.model.state_dict()
    files = tmp_path / "old.safetensors", tmp_path / "new.safetensors"
    save_file(old, files[0])
    save_file({name: weight - rate * update[name] for name, weight in old.items()}, files[1])
    text = ",".join(map(str, files))
    found = captured_update(text, target, rate)
    direction = captured_update(text, target)
    for name, part in update.items():
        torch.testing.assert_close(found.update[name], part, rtol=0, atol=1e-12)
        torch.testing.assert_close(direction.update[name], rate * part, rtol=0, atol=1e-12)
    assert "learning rate unknown" in str(direction.details["notes"])


def test_local_training_between_two_checkpoints_is_fedavgs_update(
    target: Target, tmp_path: Path
) -> None:
    sharing = SharingProtocol(algorithm="fedavg", epochs=3, rate=0.2)
    update, old = gradient(target, sharing), target.model.state_dict()
    files = tmp_path / "old.safetensors", tmp_path / "new.safetensors"
    save_file(old, files[0])
    save_file({name: weight - 0.2 * update[name] for name, weight in old.items()}, files[1])
    found = captured_update(",".join(map(str, files)), target, 0.2)
    for name, part in update.items():
        torch.testing.assert_close(found.update[name], part, rtol=0, atol=1e-12)


def test_the_attacked_model_has_the_older_weights(target: Target, tmp_path: Path) -> None:
    files = tmp_path / "old.safetensors", tmp_path / "new.safetensors"
    state = target.model.state_dict()
    save_file({name: weight + 1 for name, weight in state.items()}, files[0])
    save_file(state, files[1])
    before = {name: weight.clone() for name, weight in state.items()}
    found = captured_update(",".join(map(str, files)), target)
    for name, weight in found.target.model.state_dict().items():
        assert torch.equal(weight, before[name] + 1)
        assert torch.equal(target.model.state_dict()[name], before[name])


def test_a_checkpoint_against_itself_is_no_update(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "same.safetensors"
    save_file(target.model.state_dict(), path)
    with pytest.raises(CheckpointError, match="holds the same weights"):
        captured_update(f"{path},{path}", target)


def test_wrong_files_are_refused(target: Target, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such checkpoint file"):
        captured_update(str(tmp_path / "absent.pt"), target)
    with pytest.raises(UsageError, match="write FILE, or OLD,NEW"):
        captured_update("one.pt,", target)
    text = tmp_path / "text.pt"
    text.write_text("hello")
    with pytest.raises(CheckpointError, match="is plain text"):
        captured_update(str(text), target)


def test_updates_that_do_not_fit_are_refused(target: Target, tmp_path: Path) -> None:
    update, path = gradient(target), tmp_path / "update.safetensors"
    save_file({**update, "0.weight": torch.zeros(2, 2)}, path)
    with pytest.raises(CheckpointError, match=r"misshapen 0\.weight"):
        captured_update(str(path), target)
    save_file({**update, "3.weight": torch.zeros(2, 2)}, path)
    with pytest.raises(CheckpointError, match=r"unexpected 3\.weight"):
        captured_update(str(path), target)
    save_file({**update, "0.bias": torch.full_like(update["0.bias"], torch.nan)}, path)
    with pytest.raises(CheckpointError, match="not finite"):
        captured_update(str(path), target)
