"""Pictures that are grey alone, of 16 bits, or of other channels than the model takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from gradaudit.config import SubjectSettings
from gradaudit.data import load_records
from gradaudit.data.common.user_data import records_of
from gradaudit.errors import AuditError, UsageError
from gradaudit.run.opening import open_subject
from gradaudit.run.runner import run
from gradaudit.view.facts import preparation

generator = np.random.default_rng(0)
DEEP = generator.integers(0, 1 << 12, (4, 6, 5)).astype(np.uint16)
BYTES = generator.integers(0, 256, (4, 6, 5)).astype(np.uint8)
COLOUR = generator.integers(0, 256, (4, 6, 5, 3)).astype(np.uint8)


def folder_of(path: Path, pictures: Any, suffix: str = ".png") -> str:
    for index, picture in enumerate(pictures):
        file = path / ("cat", "dog")[index % 2] / f"{index}{suffix}"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(file)
    return f"images:{path}?"


def in_order(pictures: Any) -> Any:
    """As the folders have them."""
    return np.stack([pictures[index] for index in (0, 2, 1, 3)])


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_grey_pictures_of_16_bits_are_scaled_by_their_white(tmp_path: Path, suffix: str) -> None:
    records = load_records(folder_of(tmp_path, DEEP, suffix))
    np.testing.assert_allclose(records.inputs[:, 0], in_order(DEEP) / 65535, rtol=1e-6)
    assert records.notes["sixteen_bits"] == DEEP.max()


def test_bytes_among_16_bits_keep_their_range(tmp_path: Path) -> None:
    records = load_records(folder_of(tmp_path, [DEEP[0], BYTES[1], COLOUR[2], BYTES[3]]))
    grey = np.repeat(DEEP[0][None] / 65535, 3, axis=0)
    np.testing.assert_allclose(records.inputs[0], grey, rtol=1e-6)
    np.testing.assert_allclose(records.inputs[1], COLOUR[2].transpose(2, 0, 1) / 255, rtol=1e-6)
    np.testing.assert_allclose(records.inputs[2, 0], BYTES[1] / 255, rtol=1e-6)


def test_16_bits_are_resized_without_losing_any(tmp_path: Path) -> None:
    flat = [np.full((6, 6), value, np.uint16) for value in (1000, 1001, 65535, 1)]
    records = load_records(folder_of(tmp_path, flat) + "size=3x4")
    found = (records.inputs * 65535).round().amax(dim=(1, 2, 3)).tolist()
    assert found == [1000, 65535, 1001, 1]


def test_a_data_set_may_give_them_too() -> None:
    items = [(Image.fromarray(picture), index % 2) for index, picture in enumerate(DEEP)]
    records = records_of(items, "data.py:make")
    np.testing.assert_allclose(records.inputs[:, 0], DEEP / 65535, rtol=1e-6)
    assert records.notes["sixteen_bits"] == DEEP.max()


def archive_of(path: Path, pictures: Any) -> str:
    np.savez(path.with_suffix(".npz"), x=in_order(pictures), y=np.array([0, 0, 1, 1]))
    return f"npz:{path.with_suffix('.npz')}?inputs=x&label=y&"


@pytest.mark.parametrize("write", [folder_of, archive_of])
def test_channels_are_repeated_or_made_grey(
    tmp_path: Path, write: Callable[[Path, Any], str]
) -> None:
    records = load_records(write(tmp_path / "grey", BYTES) + "channels=3")
    expected = np.repeat(in_order(BYTES)[:, None] / 255, 3, axis=1)
    np.testing.assert_allclose(records.inputs, expected, rtol=1e-6)
    grey = load_records(write(tmp_path / "colour", COLOUR) + "channels=1")
    luma = in_order(COLOUR) @ [0.299, 0.587, 0.114] / 255
    np.testing.assert_allclose(grey.inputs[:, 0], luma, rtol=1e-5)
    same = load_records(write(tmp_path / "same", COLOUR) + "channels=3")
    assert "channels" not in same.notes


def test_other_inputs_have_no_channels(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.eye(4), y=[0, 1, 0, 1])
    with pytest.raises(UsageError, match=r"channels=3 is for pictures of 1 channels; these inputs"):
        load_records(f"npz:{tmp_path / 't.npz'}?inputs=x&label=y&channels=3")


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_a_model_of_colours_is_told_the_option_and_the_scope_says_it(tmp_path: Path) -> None:
    spec = folder_of(tmp_path, DEEP)
    with pytest.raises(AuditError, match=r"expects 3 channels; it gets 1: say channels=3"):
        opened(spec)
    scope = opened(f"{spec}channels=3")
    assert f"of which the largest value is: {DEEP.max():,}" in scope
    assert "channels of pictures: grey repeated" in scope


def opened(spec: str) -> str:
    torch.manual_seed(0)
    settings = SubjectSettings(device="cpu", data=spec)
    return preparation(run(open_subject(settings, model=Net()), []))
