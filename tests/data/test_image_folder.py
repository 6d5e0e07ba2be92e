"""Folders of pictures, with a table or with a sub-folder for each class."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gradaudit.data import load_records
from gradaudit.data.common.picture_files import stack_pictures
from gradaudit.errors import DataError, UsageError

Write = Callable[..., Path]


def save(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def colour(value: int, size: tuple[int, int] = (4, 5)) -> np.ndarray:
    """A picture whose pixels differ by place and channel."""
    height, width = size
    places = np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3)
    return places + np.uint8(value)


@pytest.fixture
def described(tmp_path: Path) -> Path:
    """Three pictures and their table."""
    folder = tmp_path / "faces"
    for index, name in enumerate(("b.png", "a.png", "deep/c.bmp")):
        save(folder / name, colour(50 * index))
    lines = ["image,sex,age,who", "b.png,m,1,x", "deep/c.bmp,f,2,y", "a.png,f,2,x"]
    (folder / "table.csv").write_text("\n".join(lines))
    return folder


def test_a_table_describes_its_pictures_in_its_order(described: Path) -> None:
    records = load_records(f"images:{described}?table=table.csv&label=age&attribute=sex&user=who")
    assert records.inputs.shape == (3, 3, 4, 5)
    for row, value in enumerate((0, 100, 50)):
        expected = colour(value).transpose(2, 0, 1).astype(np.float32) / np.float32(255)
        np.testing.assert_array_equal(records.inputs[row].numpy(), expected)
    assert records.labels.tolist() == [0, 1, 1]
    assert records.classes == ("1", "2")
    assert records.attributes["sex"].codes.tolist() == [1, 0, 0]
    assert records.users is not None
    assert records.users.tolist() == ["x", "y", "x"]
    assert records.adapter == "images"


def test_the_table_may_lie_elsewhere_and_name_its_column(described: Path, csv_file: Write) -> None:
    path = csv_file("what,y", "a.png,0", "b.png,1")
    records = load_records(f"images:{described}?table={path}&file=what&label=y")
    assert records.labels.tolist() == [0, 1]


def test_sub_folders_are_classes(tmp_path: Path) -> None:
    for kind, count in {"zebra": 2, "ape": 1, "NA": 1}.items():
        for index in range(count):
            save(tmp_path / kind / f"{index}.png", colour(index))
    (tmp_path / "ape" / "notes.txt").write_text("no picture")
    (tmp_path / "empty").mkdir()
    records = load_records(f"images:{tmp_path}")
    assert records.classes == ("NA", "ape", "zebra")
    assert records.labels.tolist() == [0, 1, 2, 2]


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "p" / "a" / "0.png", colour(0))
    save(tmp_path / "p" / "b" / "0.png", colour(1))
    (tmp_path / "p" / "b" / "in.png").symlink_to(tmp_path / "p" / "a" / "0.png")
    assert len(load_records(f"images:{tmp_path / 'p'}")) == 3
    (tmp_path / "p" / "b" / "evil.png").symlink_to(save(tmp_path / "secret.png", colour(2)))
    with pytest.raises(DataError, match=r"p: 'b/evil\.png' is not inside .*copy the file into"):
        load_records(f"images:{tmp_path / 'p'}")


def test_attributes_of_files_by_macos_are_not_read(tmp_path: Path) -> None:
    save(tmp_path / "a" / "0.png", colour(0))
    save(tmp_path / "b" / "0.png", colour(1))
    (tmp_path / "b" / "._0.png").write_bytes(b"\0\5\x16\7")
    records = load_records(f"images:{tmp_path}")
    assert (len(records), records.notes["unread"]) == (2, ["b/._0.png"])


def test_grey_pictures_have_one_channel_and_mixed_ones_three(tmp_path: Path) -> None:
    grey = np.array([[0, 255], [51, 102]], dtype=np.uint8)
    save(tmp_path / "a" / "0.png", grey)
    save(tmp_path / "b" / "0.png", grey)
    records = load_records(f"images:{tmp_path}")
    assert records.inputs.shape == (2, 1, 2, 2)
    np.testing.assert_allclose(records.inputs[0, 0].numpy(), [[0, 1], [0.2, 0.4]], rtol=1e-6)
    save(tmp_path / "b" / "1.png", colour(0, (2, 2)))
    assert load_records(f"images:{tmp_path}").inputs.shape == (3, 3, 2, 2)


def test_unequal_sizes_are_refused_with_the_remedy_and_resized_on_request(tmp_path: Path) -> None:
    save(tmp_path / "a" / "0.png", np.full((8, 6), 100, np.uint8))
    save(tmp_path / "b" / "0.png", np.full((4, 4), 200, np.uint8))
    with pytest.raises(DataError, match=r"is of 4x4 pixels .* of 8x6; say size=HEIGHTxWIDTH"):
        load_records(f"images:{tmp_path}")
    records = load_records(f"images:{tmp_path}?size=3x2")
    assert records.inputs.shape == (2, 1, 3, 2)
    assert records.inputs[0].unique().tolist() == pytest.approx([100 / 255])
    assert records.notes["resized"] == [3, 2]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ("table=none.csv&label=age", UsageError, "No such file"),
        ("table=table.csv", UsageError, "option 'label' is missing; add label=COL"),
        ("table=table.csv&label=agee", UsageError, "(did you mean 'age'?)"),
        ("table=table.csv&label=age&attribute=sx", UsageError, "no column 'sx'"),
        ("table=table.csv&label=age&file=picture", UsageError, "no column 'picture'"),
        ("table=table.csv&label=age&file=who", DataError, "x: cannot be read: No such file"),
        ("table=table.csv&label=age&size=0x3", UsageError, "size=0x3: is empty"),
        ("table=table.csv&label=age&size=big", UsageError, "option size='big' is not"),
        ("label=age", UsageError, "label= names a column of a table; name the table"),
        ("", DataError, "1 sub-folders hold pictures; make one for each class"),
    ],
)
def test_bad_requests(described: Path, options: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        load_records(f"images:{described}?{options}")
    assert message in str(caught.value)


def test_attributes_asked_for_from_outside_need_a_table(described: Path) -> None:
    with pytest.raises(UsageError, match="attribute= names a column of a table"):
        load_records(f"images:{described}", attributes=["sex"])


def test_a_missing_folder_and_a_table_without_file_names(described: Path, csv_file: Write) -> None:
    with pytest.raises(UsageError, match="there is no such folder"):
        load_records(f"images:{described / 'none'}")
    path = csv_file("what,y", "a.png,0", "b.png,1")
    with pytest.raises(UsageError, match="name the column of the file names with file=COL"):
        load_records(f"images:{described}?table={path}&label=y")


@pytest.mark.slow
@given(place=st.integers(0, 200), byte=st.integers(0, 255))
def test_no_single_wrong_byte_ends_in_another_error(
    tmp_path_factory: pytest.TempPathFactory, place: int, byte: int
) -> None:
    path = save(tmp_path_factory.mktemp("fuzz") / "a.png", colour(0))
    content = bytearray(path.read_bytes())
    content[place % len(content)] = byte
    path.write_bytes(content)
    try:
        pixels, _ = stack_pictures([(str(path), path)], "fuzz", (4, 5))
    except DataError as error:
        assert "a.png" in str(error)  # noqa: PT017 - either outcome is right
    else:
        assert pixels.shape[:3] == (1, 4, 5)
