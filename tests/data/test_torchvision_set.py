"""torchvision's data sets from the disk, with small files in their formats."""

import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gradaudit.data import load_records
from gradaudit.errors import UsageError


def idx(array: np.ndarray) -> bytes:
    """An array of bytes in MNIST's format."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, digits in {"train": [3, 1, 0], "t10k": [2, 9]}.items():
        images = np.arange(len(digits) * 28 * 28).reshape(-1, 28, 28) % 251
        (raw / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.array(digits)))
    return tmp_path


def test_a_data_set_on_the_disk(mnist: Path) -> None:
    records = load_records(f"torchvision:MNIST?root={mnist}")
    expected = (np.arange(2 * 28 * 28).reshape(2, 1, 28, 28) % 251).astype(np.float32)
    np.testing.assert_array_equal(records.inputs.numpy(), expected / np.float32(255))
    assert records.labels.tolist() == [2, 9]
    assert records.classes[:2] == ("0 - zero", "1 - one")
    assert records.adapter == "torchvision"


def test_parts_and_sizes(mnist: Path) -> None:
    records = load_records(f"torchvision:MNIST?root={mnist}&split=train&size=8x6")
    assert records.inputs.shape == (3, 1, 8, 6)
    assert records.labels.tolist() == [3, 1, 0]


def test_a_data_set_without_parts(tmp_path: Path) -> None:
    for kind in ("Forest", "River"):
        (tmp_path / "eurosat" / "2750" / kind).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "eurosat" / "2750" / kind / "1.jpg")
    records = load_records(f"torchvision:EuroSAT?root={tmp_path}")
    assert (records.inputs.shape, records.classes) == ((2, 3, 4, 4), ("Forest", "River"))
    with pytest.raises(UsageError, match="EuroSAT: has no parts; leave out split="):
        load_records(f"torchvision:EuroSAT?root={tmp_path}&split=test")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("torchvision:MNIST", "option 'root' is missing"),
        ("torchvision:MNISTT?root=.", "(did you mean 'MNIST'?)"),
        ("torchvision:FakeData?root=.", "no data set 'FakeData'"),
        ("torchvision:MNIST?root={root}&split=validation", "is not one of train, test"),
        ("torchvision:MNIST?root={root}/none", "nothing is downloaded here, fetch it with"),
        ("torchvision:CIFAR10?root={root}", "torchvision:CIFAR10: cannot be read from"),
        ("torchvision:GTSRB?root={root}&split=half", "Valid values are"),
    ],
)
def test_what_is_not_there(mnist: Path, spec: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_records(spec.format(root=mnist))
    assert message in str(caught.value)
    assert "split=" not in spec or "download" not in str(caught.value)
    assert "\n" not in str(caught.value)
