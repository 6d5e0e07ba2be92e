"""Sounds in a folder, described by a table or by their sub-folders."""

import wave
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.core.files import expect_file
from gradaudit.core.parts import library
from gradaudit.core.text import first_line, printable
from gradaudit.data.common.checks import expect_finite, expect_to_fit
from gradaudit.data.common.labelled_folder import LabelledFolder
from gradaudit.data.common.table_columns import Inputs
from gradaudit.errors import DataError, GradauditError, UsageError

_SMALLEST_VARIANCE = 1e-7
"""What is added to a wave's variance before its root, as transformers' feature extractors do."""


@dataclass(frozen=True)
class Sound:
    """A file of sound that is open.

    Attributes:
        rate: samples a second.
        channels: how many.
        frames: samples of each channel, as the file declares them.
        read: the first of them, (frames, channels) in [−1, 1].
    """

    rate: int
    channels: int
    frames: int
    read: Callable[[int], NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class SoundFolder(LabelledFolder):
    """Sounds in a folder, as waves in [−1, 1] of shape (records, samples).

    With a table, each of its lines names a file in the folder; without one, the sub-folders are
    the classes. The report names files that are not read. Files of PCM in WAV need nothing;
    FLAC, Ogg, MP3, AIFF and other WAV need ``gradaudit[sounds]``. Nothing is resampled.

    Attributes:
        length: samples of a record; longer sounds are cut, shorter ones end in zeros. Without it
            all have the same.
        rate: samples a second that the model takes; files of another rate are refused.
        channels: of each file, for inputs (records, channels, samples); without it the mean of its
            channels, (records, samples).
        scale: ``standard`` gives each wave mean 0 and variance 1, as Wav2Vec2's processor does.
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
    channels: int | None = None
    scale: Literal["none", "standard"] = "none"

    def inputs_in(self, files: Sequence[tuple[str, Path]], folder: str) -> Inputs:
        """The waves, of one rate and one length."""
        headers = [_header(name, path) for name, path in files]
        self._expect_alike([name for name, _ in files], headers, folder)
        length = headers[0].frames if self.length is None else self.length
        waves = np.zeros((len(files), self.channels or 1, length), np.float32)
        for place, (name, path) in enumerate(files):
            with _opened(name, path) as sound:
                made = self._wave(sound, min(sound.frames, length), name)
            waves[place, :, : made.shape[1]] = made
        expect_finite(waves, folder)
        return Inputs(waves if self.channels else waves[:, 0], notes=self._notes(headers, length))

    def _expect_alike(self, names: Sequence[str], headers: Sequence[Sound], folder: str) -> None:
        """Refuse sounds that differ in rate, channels or length where nothing settles it."""
        first = headers[0]
        if self.length is not None and self.length < 1:
            raise UsageError(f"sounds:{self.source}: length is at least 1")
        rate = self.rate or first.rate
        for name, sound in zip(names, headers, strict=True):
            if sound.rate != rate:
                whose = "rate= asks for" if self.rate else f"{names[0]} has"
                raise DataError(
                    f"{name}: has {sound.rate} samples a second, and {whose} {rate}; bring all to "
                    "the rate that the model takes (nothing is resampled here)"
                )
            if self.channels is not None and sound.channels != self.channels:
                raise DataError(
                    f"{name}: has {sound.channels} channels, and channels= asks for "
                    f"{self.channels}; without it the mean of the channels is taken"
                )
            if self.length is None and sound.frames != first.frames:
                raise DataError(
                    f"{name}: has {sound.frames} samples and {names[0]} {first.frames}; say "
                    "length=SAMPLES, to which all are cut or filled up with zeros"
                )
        width = self.length or first.frames
        if not width:
            raise DataError(f"{names[0]}: holds no samples; leave it out, or say length=SAMPLES")
        expect_to_fit((len(headers), self.channels or 1, width), folder)

    def _wave(self, sound: Sound, frames: int, name: str) -> NDArray[np.float32]:
        """Read a sound as (channels, frames); mixed to one channel by default."""
        read = sound.read(frames)
        if len(read) < frames:
            raise DataError(f"{name}: declares {sound.frames} samples and ends before; repair it")
        made = read.T if self.channels else read.mean(axis=1, keepdims=True).T
        if self.scale == "none" or not frames:
            return made
        deviation = np.sqrt(made.var(axis=1, keepdims=True) + _SMALLEST_VARIANCE)
        standard: NDArray[np.float32] = (made - made.mean(axis=1, keepdims=True)) / deviation
        return standard

    def _notes(self, headers: Sequence[Sound], length: int) -> dict[str, JsonValue]:
        counts = {
            "sounds_cut": sum(sound.frames > length for sound in headers),
            "sounds_filled_up": sum(sound.frames < length for sound in headers),
            "sounds_mixed": 0 if self.channels else sum(sound.channels > 1 for sound in headers),
        }
        notes: dict[str, JsonValue] = {"sampling_rate": headers[0].rate, "samples": length}
        if self.scale == "standard":
            notes["sounds_scaled"] = "mean 0 and variance 1"
        return notes | {key: count for key, count in counts.items() if count}


def _header(name: str, path: Path) -> Sound:
    with _opened(name, path) as sound:
        return sound


@contextmanager
def _opened(name: str, path: Path) -> Iterator[Sound]:
    """The sound in a file: plain PCM by the standard library, all else by ``soundfile``."""
    path = expect_file(path)
    try:
        if (pcm := _pcm(path)) is not None:
            with pcm:
                yield Sound(pcm.getframerate(), pcm.getnchannels(), pcm.getnframes(), _reader(pcm))
        else:
            soundfile = library("soundfile", "sounds", f"{name}: is no WAV of plain PCM")
            with soundfile.SoundFile(path) as file:
                read = partial(file.read, dtype="float32", always_2d=True)
                yield Sound(file.samplerate, file.channels, file.frames, read)
    except GradauditError:
        raise
    except Exception as error:  # damage shows in every way that a decoder can fail
        raise DataError(
            f"{name}: cannot be read as a sound ({printable(first_line(error), 100)}); repair it "
            "or leave it out"
        ) from error


def _pcm(path: Path) -> wave.Wave_read | None:
    """A file of plain PCM, open; None of another kind."""
    with suppress(wave.Error, EOFError):
        return wave.open(str(path), "rb")
    return None


def _reader(pcm: wave.Wave_read) -> Callable[[int], NDArray[np.float32]]:
    """Returns a reader of samples of 8 to 32 bits: unsigned bytes, or signed, low byte first."""
    width, channels = pcm.getsampwidth(), pcm.getnchannels()

    def read(frames: int) -> NDArray[np.float32]:
        content = pcm.readframes(frames)
        whole = len(content) // (width * channels) * channels
        raw = np.frombuffer(content, np.uint8, whole * width).reshape(whole, width)
        wide = np.zeros((whole, 4), np.uint8)
        wide[:, 4 - width :] = raw ^ np.uint8(128) if width == 1 else raw
        samples = wide.view("<i4").reshape(-1, channels) / float(1 << 31)
        return samples.astype(np.float32)

    return read
