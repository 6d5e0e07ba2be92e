"""What is done to pictures before the model sees them, and the order of its classes."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from gradaudit.core.user_code import import_torchvision
from gradaudit.data import load_records
from gradaudit.errors import UsageError

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 1])


@pytest.fixture(scope="module")
def transforms() -> ModuleType:
    """Those of torchvision."""
    return import_torchvision("transforms")


@pytest.fixture
def archive(tmp_path: Path) -> str:
    np.savez(tmp_path / "p.npz", x=PIXELS, g=PIXELS[..., 0], t=PIXELS[:, 0, 0] / 1.0, y=LABELS)
    return f"npz:{tmp_path / 'p.npz'}?label=y&inputs="


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for index, kind in enumerate(("cat", "dog", "emu")):
        (tmp_path / "f" / kind).mkdir(parents=True)
        picture = Image.fromarray(PIXELS[index]).resize((5 + index, 6))
        picture.save(tmp_path / "f" / kind / "1.png")
    return f"images:{tmp_path / 'f'}"


@pytest.mark.parametrize("name", ["imagenet", "0.485,0.456,0.406,0.229,0.224,0.225"])
def test_normalising_is_that_of_torchvision(
    transforms: ModuleType, archive: str, name: str
) -> None:
    step = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    plain = torch.from_numpy(PIXELS).permute(0, 3, 1, 2).float() / 255
    records = load_records(f"{archive}x&normalize={name}")
    torch.testing.assert_close(records.inputs, step(plain))
    assert records.notes["normalized"] == name
    one = load_records(f"{archive}g&normalize=0.5,0.25")
    torch.testing.assert_close(one.inputs, (plain[:, :1] - 0.5) / 0.25)


@pytest.mark.parametrize(
    ("key", "how", "words"),
    [
        ("g", "imagenet", "is of 3 channels, and these pictures have 1"),
        ("x", "0.5", "write imagenet"),
        ("x", "0.5,0", "write imagenet"),
        ("x", "vgg", "write imagenet"),
        ("t", "imagenet", "is for pictures"),
    ],
)
def test_normalising_of_other_channels(archive: str, key: str, how: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_records(f"{archive}{key}&normalize={how}")


def test_classes_stand_in_the_order_of_the_model(folder: str, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("emu\nfox\ndog\n\ncat\n")
    for order in ("emu,fox,dog,cat", tmp_path / "names.txt"):
        records = load_records(f"{folder}?size=4x4&classes={order}")
        assert records.classes == ("emu", "fox", "dog", "cat")
        assert records.labels.tolist() == [3, 2, 0]
    with pytest.raises(UsageError, match="classes= lacks 'emu'; the data's classes are: cat, dog"):
        load_records(f"{folder}?size=4x4&classes=dog,cat")
    with pytest.raises(UsageError, match="'dog' twice"):
        load_records(f"{folder}?size=4x4&classes=dog,cat,dog,emu")
    np.savez(tmp_path / "t.npz", x=np.zeros((3, 2)), y=[0.1, 0.2, 0.3])
    with pytest.raises(UsageError, match=r"lacks '0\.1'; the data's classes are: 0\.1, 0\.2"):
        load_records(f"npz:{tmp_path}/t.npz?inputs=x&label=y&classes=a,b")
    with pytest.raises(UsageError, match="no classes to put in order"):
        load_records(f"npz:{tmp_path}/t.npz?inputs=x&label=y&classes=a,b&task=regression")
