"""Whatever bytes a file holds, it is read or refused with a ``CheckpointError``."""

import io
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import nn

from gradaudit.errors import CheckpointError
from gradaudit.models.checkpoint import apply_checkpoint, load_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:Detected pickle protocol")

FUZZ = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def archive() -> bytes:
    stream = io.BytesIO()
    torch.save({"state_dict": model().state_dict(), "epoch": 3}, stream)
    return stream.getvalue()


VALID = {"torch": archive(), "safetensors": save(model().state_dict())}


def read(content: bytes) -> None:
    """Read and apply a file of this content, letting only refusals pass."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(content)
        try:
            apply_checkpoint(model(), load_checkpoint(path))
        except CheckpointError as error:
            message = str(error)
        else:
            return
    assert message.isprintable()


@pytest.mark.slow
@FUZZ
@given(st.binary(max_size=400))
def test_random_bytes(content):
    read(content)


@pytest.mark.slow
@FUZZ
@given(st.sampled_from([b"PK\x03\x04", b"PK\x05\x06", b"\x20\0\0\0\0\0\0\0{"]), st.binary())
def test_random_bytes_after_a_magic(magic, content):
    read(magic + content)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(VALID))
@FUZZ
@given(data=st.data())
def test_valid_files_with_bytes_changed(kind, data):
    content = bytearray(VALID[kind])
    spots = st.integers(0, len(content) - 1)
    for position in data.draw(st.lists(spots, min_size=1, max_size=8)):
        content[position] = data.draw(st.integers(0, 255))
    read(bytes(content))


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(VALID))
@FUZZ
@given(data=st.data())
def test_valid_files_with_a_piece_cut_out_or_doubled(kind, data):
    content = VALID[kind]
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, len(content)))
    read(content[:start] + content[start:end] * data.draw(st.sampled_from([0, 2])) + content[end:])


@pytest.mark.slow
@FUZZ
@given(data=st.data())
def test_a_changed_pickle_in_a_sound_archive(data):
    start = VALID["torch"].index(b"\x80\x02}")
    end = VALID["torch"].index(b"PK", start)
    content = bytearray(VALID["torch"])
    for position in data.draw(st.lists(st.integers(start, end - 1), min_size=1, max_size=4)):
        content[position] = data.draw(st.integers(0, 255))
    read(bytes(content))


@pytest.mark.parametrize("kind", list(VALID))
def test_the_unchanged_files_are_accepted(tmp_path, kind):
    path = tmp_path / "file"
    path.write_bytes(VALID[kind])
    apply_checkpoint(model(), load_checkpoint(path))
