"""Small files that would hang, crash or eat memory: refused before anything is built."""

import re
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
import torch
from hostile.pickles import (
    DOUBTFUL,
    HOOKS,
    PICKLES,
    STORAGE,
    archived,
    entry,
    rebuilt,
    zip64,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradaudit.errors import CheckpointError
from gradaudit.models.checkpoint import load_checkpoint

SOUND = archived(entry(rebuilt()))


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(("content", "words"), PICKLES.values(), ids=PICKLES)
def test_what_weights_never_need_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(written(tmp_path / "hostile.pt", archived(content)))
    assert words in str(caught.value)
    assert str(caught.value).isprintable()
    assert str(caught.value).startswith(str(tmp_path / "hostile.pt"))


def test_the_parts_of_which_hostile_files_are_made_are_sound(tmp_path: Path) -> None:
    state = load_checkpoint(written(tmp_path / "sound.pt", SOUND)).state
    assert torch.equal(state["w"], torch.arange(6.0).reshape(2, 3))


@pytest.mark.filterwarnings("ignore")
def test_what_training_scripts_save_passes(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(2, 1, 5, 5)).sum().backward()
    optimizer.step()
    content = {
        "state_dict": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "best": 0.5,
        "loops": [{"done": True, 0: None}, (1, "a", 2.5, -(1 << 40))],
        "milestones": Counter([3, 5]),
        "shape": torch.Size([2, 3]),
        "device": torch.device("cuda", 1),
        "dtype": torch.bfloat16,
        "parameter": nn.Parameter(torch.ones(2)),
        "generator": torch.get_rng_state(),
        "view": torch.arange(12.0).reshape(3, 4)[:, ::2],
        "kinds": [
            torch.ones(3, dtype=dtype)
            for dtype in (torch.half, torch.bfloat16, torch.uint16, torch.complex64, torch.bool)
        ],
        "empty": torch.empty(0, 3),
    }
    path = tmp_path / "full.pt"
    torch.save(content, path)
    state = load_checkpoint(path).state
    assert list(state) == list(model.state_dict())
    assert isinstance(model.state_dict(), OrderedDict)


OPCODES = (
    b"(.)]}abeghijklnoqrstuNKJMGX0123456\x80\x81\x82\x85\x86\x87\x88\x89\x8a\x8b\x8f\x90\x93cR"
)
PIECES = st.one_of(
    st.sampled_from([bytes([code]) for code in OPCODES]),
    st.sampled_from([STORAGE, HOOKS, rebuilt(), b"K\x01", b"X\x01\0\0\0w", b"q\x00", b"h\x00"]),
    st.binary(max_size=3),
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(pieces=st.lists(PIECES, max_size=30))
def test_any_steps_are_read_or_refused(pieces: list[bytes]) -> None:
    with NamedTemporaryFile(suffix=".pt") as file:
        file.write(archived(b"\x80\x02" + b"".join(pieces) + b"."))
        file.flush()
        with suppress(CheckpointError):
            load_checkpoint(file.name)


@pytest.mark.parametrize("craft", DOUBTFUL.values(), ids=DOUBTFUL)
def test_archives_have_one_meaning_or_are_refused(
    craft: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = written(tmp_path / "crafted.pt", zip64(SOUND))
    assert list(load_checkpoint(path).state) == ["w"]
    path.write_bytes(craft(SOUND))
    refused = r"differently|damaged zip|cannot read it"
    words, state = "", {}
    try:
        state = load_checkpoint(path).state
    except CheckpointError as error:
        words = str(error)
    if words:
        assert words.startswith(f"{path}: ")
        assert re.search(refused, words)
    else:  # both libraries find the same bytes
        assert torch.equal(state["w"], torch.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("name", ["a/DATA.PKL", "b/data.pkl", "data.pkl"])
def test_there_is_one_pickle(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / "two.pt", SOUND)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, entry(b"N"))
    with pytest.raises(CheckpointError, match=r"names repeat|torch\.save did not write"):
        load_checkpoint(path)
