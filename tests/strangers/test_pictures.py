"""Pictures of 16 bits, or of other channels than the model takes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import nn

from gradaudit.config import SubjectSettings
from gradaudit.data import load_records
from gradaudit.errors import AuditError, DataError
from gradaudit.run.opening import open_subject
from gradaudit.run.runner import run

generator = np.random.default_rng(0)
DEEP = generator.integers(0, 1 << 12, (4, 6, 5)).astype(np.uint16)
BYTES = generator.integers(0, 256, (4, 6, 5)).astype(np.uint8)


def folder_of(path: Path, pictures: Any, suffix: str = ".png") -> str:
    for index, picture in enumerate(pictures):
        file = path / ("cat", "dog")[index % 2] / f"{index}{suffix}"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(file)
    return f"images:{path}?"


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_grey_pictures_of_16_bits_are_refused(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(DataError, match="save it with 8 bits a channel"):
        load_records(folder_of(tmp_path, DEEP, suffix))


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_a_model_of_colours_is_told_what_it_gets(tmp_path: Path) -> None:
    subject = open_subject(
        SubjectSettings(device="cpu"),
        model=Net(),
        records=load_records(folder_of(tmp_path, BYTES)),
    )
    with pytest.raises(AuditError, match=r"expected input\[4, 1, 6, 5\] to have 3 channels"):
        run(subject, [])
