"""Files that must be refused, and how early: beside those that the command is tried on.

``tests/hostile/checkpoints.py`` has the others, and ``tests/hostile/pickles.py`` those of bytes.
"""

import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from hostile.checkpoints import saved
from torch import nn

from gradaudit.errors import CheckpointError, UsageError
from gradaudit.models.checkpoint import kinds as kinds_module
from gradaudit.models.checkpoint import load_checkpoint


class Creates:
    """Pickles into a call that creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def refusal(path: Path, content: bytes | None = None) -> str:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    message = str(caught.value)
    assert message.isprintable(), "one line, without control characters"
    assert message.startswith(str(path))
    assert len(message) < 600
    return message


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.pt"
    path.write_bytes(saved({"w": torch.arange(6.0).reshape(2, 3)}))
    return path


@pytest.mark.parametrize("protocol", range(6))
def test_code_of_any_protocol_is_never_run(
    tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where the environment asks torch for unsafe loading."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    content = {"w": torch.ones(2), "x": Creates(tmp_path / "ran")}
    bare = refusal(tmp_path / "evil.safetensors", pickle.dumps(content, protocol=protocol))
    assert "pickle" in bare or protocol < 2
    if protocol > 1:
        refusal(tmp_path / "evil.pt", saved(content, pickle_protocol=protocol))
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_torchscript_archive_is_called_one(tmp_path: Path, weights: Path) -> None:
    torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)).save(tmp_path / "script.pt")
    assert "TorchScript" in refusal(tmp_path / "script.pt")
    with zipfile.ZipFile(weights, "a") as archive:
        archive.writestr("archive/constants.pkl", b"x")
    assert "TorchScript" in refusal(weights)


@pytest.mark.slow
def test_a_torch_export_archive_is_called_one(tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)), path)
    assert "torch.export archive, a program and not weights (--model" in refusal(path)


def test_a_huge_file_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "huge.pt"
    with path.open("wb") as stream:
        stream.truncate((64 << 30) + 1)  # sparse
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("opened it"))
    assert "over the limit" in refusal(path)


def test_a_dict_that_holds_itself_ends(tmp_path: Path) -> None:
    content: dict[str, object] = {}
    content["model"] = content
    assert "holds no named tensors" in refusal(tmp_path / "loop.pt", saved(content))


@pytest.mark.parametrize("name", ["absent.pt", "a\0b", "absent/\x1b[31m.pt"])
def test_a_missing_file_is_a_usage_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no such checkpoint file") as caught:
        load_checkpoint(tmp_path / name)
    assert str(caught.value).isprintable()


def test_the_limit_is_that_documented() -> None:
    assert kinds_module.MAX_FILE_BYTES == 64 * 2**30
