"""Folders of sounds, with a table or with a sub-folder for each class."""

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gradaudit.data import load_records
from gradaudit.errors import DataError, UsageError

LARGEST = {1: 127, 2: 32767, 3: (1 << 23) - 1, 4: (1 << 31) - 1}


def pcm(path: Path, samples: NDArray[Any], width: int = 2, rate: int = 8000) -> Path:
    """A WAV file of whole numbers (frames, channels), in bytes of that width."""
    path.parent.mkdir(parents=True, exist_ok=True)
    signed = np.asarray(samples, np.int64).reshape(len(samples), -1)
    raw = (signed + 128 if width == 1 else signed).astype("<i8").view(np.uint8)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(signed.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(raw.reshape(-1, 8)[:, :width].tobytes())
    return path


def two(folder: Path, *sounds: NDArray[Any], **how: Any) -> str:
    """Sounds in sub-folders of two classes, one after the other."""
    for index, sound in enumerate(sounds):
        pcm(folder / ("no", "yes")[index % 2] / f"{index}.wav", sound, **how)
    return f"sounds:{folder}"


@pytest.mark.parametrize("width", LARGEST)
def test_samples_of_every_width_lie_between_minus_1_and_1(tmp_path: Path, width: int) -> None:
    top = LARGEST[width]
    values = np.array([-top - 1, -top, -1, 0, 1, top])
    records = load_records(two(tmp_path, values, values[::-1], width=width))
    expected = values / (top + 1)
    np.testing.assert_allclose(records.inputs, [expected, expected[::-1]], rtol=1e-6, atol=1e-9)
    assert (records.classes, records.labels.tolist()) == (("no", "yes"), [0, 1])
    assert records.notes == {"sampling_rate": 8000, "samples": 6}


def test_a_table_describes_its_sounds_and_the_rest_is_named(tmp_path: Path) -> None:
    for name in ("b.wav", "deep/a.wav", "c.wav"):
        pcm(tmp_path / name, np.arange(4) * len(name))
    rows = "audio,word,who,note\ndeep/a.wav,yes,u,x\nb.wav,no,v,y\n"
    (tmp_path / "t.csv").write_text(rows)
    (tmp_path / "README").write_text("x")
    asked = "table=t.csv&label=word&attribute=who&user=who"
    records = load_records(f"sounds:{tmp_path}?{asked}")
    assert (records.inputs * 32768).tolist() == [[0, 10, 20, 30], [0, 5, 10, 15]]
    assert records.labels.tolist() == [1, 0]
    assert records.attributes["who"].codes.tolist() == [0, 1]
    assert records.notes["unread"] == ["README", "c.wav"]
    assert records.notes["left"] == ["note"]


def test_sounds_are_cut_and_filled_up_to_a_length(tmp_path: Path) -> None:
    spec = two(tmp_path, np.arange(1, 5), np.arange(1, 3), np.arange(1, 4))
    with pytest.raises(DataError, match=r"2\.wav: has 3 samples and .*0\.wav 4; say length="):
        load_records(spec)
    records = load_records(f"{spec}?length=3")
    assert (records.inputs * 32768).tolist() == [[1, 2, 3], [1, 2, 3], [1, 2, 0]]
    assert (records.notes["sounds_cut"], records.notes["sounds_filled_up"]) == (1, 1)


def test_channels_are_mixed(tmp_path: Path) -> None:
    stereo = np.array([[2, 4], [6, 10], [0, 2]])
    spec = two(tmp_path, stereo, stereo * 3)
    mixed = load_records(spec)
    assert (mixed.inputs * 32768).tolist() == [[3, 8, 1], [9, 24, 3]]
    assert mixed.notes["sounds_mixed"] == 2


def test_one_rate_is_asked_for(tmp_path: Path) -> None:
    spec = two(tmp_path, np.arange(4), np.arange(4))
    with pytest.raises(DataError, match=r"0\.wav: has 8000 samples a second, and rate= asks for"):
        load_records(f"{spec}?rate=16000")
    pcm(tmp_path / "yes" / "1.wav", np.arange(4), rate=16000)
    with pytest.raises(DataError, match=r"1\.wav: has 16000 samples a second, and .*0\.wav has"):
        load_records(spec)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("length=0", "length is at least 1"),
        ("label=y", r"sounds:.*: label= names a column of a table"),
        ("table=none.csv&label=y", "no such file|cannot be read"),
    ],
)
def test_bad_requests(tmp_path: Path, options: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load_records(f"{two(tmp_path, np.arange(4), np.arange(4))}?{options}")


def test_damaged_sounds_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = two(tmp_path, np.arange(40), np.arange(40))
    file = tmp_path / "yes" / "1.wav"
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    with pytest.raises(DataError, match=r"1\.wav: cannot be read as a sound"):
        load_records(spec)
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    file.write_bytes(b"fLaC" + bytes(60))
    with pytest.raises(UsageError, match=r"1\.wav: is no WAV: .*gradaudit\[sounds\]"):
        load_records(spec)


def test_other_formats_are_read_by_soundfile(tmp_path: Path) -> None:
    library = pytest.importorskip("soundfile")
    samples = np.array([0, 1000, -32768, 32767], np.int16)
    for kind, suffix, form in (("a", "flac", "PCM_16"), ("b", "wav", "FLOAT")):
        (tmp_path / kind).mkdir()
        floats = samples / np.float32(32768)
        library.write(
            tmp_path / kind / f"x.{suffix}", floats.astype(np.float32), 8000, subtype=form
        )
    records = load_records(f"sounds:{tmp_path}")
    np.testing.assert_allclose(records.inputs, [samples / 32768] * 2, atol=1e-7)
    (tmp_path / "a" / "x.flac").write_bytes(b"fLaC" + bytes(60))
    with pytest.raises(DataError, match=r"x\.flac: cannot be read as a sound"):
        load_records(f"sounds:{tmp_path}")
