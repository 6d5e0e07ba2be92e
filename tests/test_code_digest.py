"""A digest for each state of a user's file."""

import hashlib
from pathlib import Path

import pytest

from gradaudit.core.user_code import code_digest
from gradaudit.models.building import load_loss


def test_it_is_that_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def loss(outputs, targets):\n    return (outputs - targets).square()\n")
    expected = hashlib.sha256(file.read_bytes()).hexdigest()
    assert code_digest(f"{file}:loss") == code_digest(f"{file}:loss?width=3") == expected
    assert code_digest(str(file)) == expected
    file.write_text(file.read_text() + "\n")
    assert code_digest(f"{file}:loss") not in (None, expected)


def test_a_module_s_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "a_loss_of_mine.py"
    file.write_text("def loss(outputs, targets):\n    return (outputs - targets).square()\n")
    load_loss("a_loss_of_mine:loss")
    assert code_digest("a_loss_of_mine:loss") == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "text", ["cross-entropy", "zoo:mlp?inputs=3&classes=2", "torchvision:resnet18", "no.such:loss"]
)
def test_what_names_no_file_has_none(text: str) -> None:
    assert code_digest(text) is None
