"""Sounds in a folder, described by a table or by their sub-folders."""

import warnings
import wave
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.io import wavfile

from gradaudit.core.parts import library
from gradaudit.core.text import first_line, printable
from gradaudit.data.common.checks import expect_finite, expect_to_fit
from gradaudit.data.common.labelled_folder import LabelledFolder
from gradaudit.data.common.reading import read
from gradaudit.data.common.table_columns import Inputs
from gradaudit.data.common.tables import head_of
from gradaudit.errors import DataError, UsageError


@dataclass(frozen=True, kw_only=True)
class SoundFolder(LabelledFolder):
    """Sounds in a folder, as waves in [−1, 1] of shape (records, samples): the mean of channels.

    With a table, each of its lines names a file in the folder; without one, the sub-folders are
    the classes. The report names files that are not read. Files of PCM in WAV need nothing;
    FLAC, Ogg, MP3, AIFF and other WAV need ``gradaudit[sounds]``. Nothing is resampled.

    Attributes:
        length: samples of a record; longer sounds are cut, shorter ones end in zeros. Without it
            all have the same.
        rate: samples a second that the model takes; files of another rate are refused.
    """

    name: ClassVar[str] = "sounds"
    summary: ClassVar[str] = "a folder of sounds, with a table or a sub-folder for each class"
    example: ClassVar[str] = "sounds:DIR?table=FILE.csv&label=COL&attribute=COL&length=16000"
    what: ClassVar[str] = "sounds"
    suffixes: ClassVar[frozenset[str]] = frozenset(
        {".wav", ".flac", ".ogg", ".mp3", ".aif", ".aiff"}
    )
    file_columns: ClassVar[tuple[str, ...]] = (
        *("file", "filename", "file_name", "audio", "wav", "path"),
    )

    length: int | None = None
    rate: int | None = None

    def inputs_in(self, files: Sequence[Path], folder: str) -> Inputs:
        """The waves, of one rate and one length."""
        if self.length is not None and self.length < 1:
            raise UsageError(f"sounds:{self.source}: length is at least 1")
        made = read(waves, *files, length=self.length, rate=self.rate)
        expect_finite(made["waves"], folder)
        return Inputs(made["waves"], notes=made["notes"])


def waves(*files: Path, length: int | None, rate: int | None) -> dict[str, Any]:
    """Read sounds as ``waves`` (records, samples) of one rate and one length."""
    sounds = [_sound(file) for file in files]
    names = [printable(str(file)) for file in files]
    wanted = rate or sounds[0][0]
    samples = len(sounds[0][1]) if length is None else length
    for name, (found, sound) in zip(names, sounds, strict=True):
        if found != wanted:
            whose = "rate= asks for" if rate else f"{names[0]} has"
            raise DataError(
                f"{name}: has {found} samples a second, and {whose} {wanted}; bring all to the "
                "rate that the model takes (nothing is resampled here)"
            )
        if length is None and len(sound) != samples:
            raise DataError(
                f"{name}: has {len(sound)} samples and {names[0]} {samples}; say length=SAMPLES, "
                "to which all are cut or filled up with zeros"
            )
    if not samples:
        raise DataError(f"{names[0]}: holds no samples; leave it out, or say length=SAMPLES")
    expect_to_fit((len(files), samples), names[0])
    array = np.zeros((len(files), samples), np.float32)
    for place, (_, sound) in enumerate(sounds):
        part = sound[:samples]
        array[place, : len(part)] = part.mean(axis=1)
    frames = np.array([len(sound) for _, sound in sounds])
    counts = {
        "sounds_cut": int((frames > samples).sum()),
        "sounds_filled_up": int((frames < samples).sum()),
        "sounds_mixed": sum(sound.shape[1] > 1 for _, sound in sounds),
    }
    notes = {"sampling_rate": wanted, "samples": samples, **{k: n for k, n in counts.items() if n}}
    return {"waves": array, "notes": notes}


def _declared(file: Path) -> int | None:
    """Return the number of frames that a file of PCM declares; None of another kind."""
    with suppress(wave.Error), wave.open(str(file), "rb") as pcm:
        return pcm.getnframes()
    return None


def _sound(file: Path) -> tuple[int, NDArray[np.float32]]:
    """Read the rate of a file and its samples (frames, channels) in [−1, 1]."""
    try:
        if not head_of(file).startswith((b"RIFF", b"RIFX", b"RF64")):
            soundfile = library("soundfile", "sounds", f"{printable(str(file))}: is no WAV")
            samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
            return rate, samples
        with warnings.catch_warnings(action="error"):
            declared = _declared(file)
            rate, samples = wavfile.read(file, mmap=declared is None)  # a short map is refused
        if declared is not None and declared > len(samples):
            raise ValueError(f"it declares {declared} samples and ends before")
        wide = samples if samples.ndim == 2 else samples[:, None]
        if wide.dtype.kind == "f":
            return rate, wide.astype(np.float32)
        zero, largest = (128, 128) if wide.dtype == np.uint8 else (0, -np.iinfo(wide.dtype).min)
        return rate, ((wide.astype(np.float64) - zero) / largest).astype(np.float32)
    except (UsageError, MemoryError):
        raise
    except Exception as error:  # damage shows in every way that a decoder can fail
        raise DataError(
            f"{printable(str(file))}: cannot be read as a sound "
            f"({printable(first_line(error), 100)}); repair it or leave it out"
        ) from error
