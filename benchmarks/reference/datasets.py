"""The records of the reference models: real ones where the folder of real data is, and made ones.

Slant of pictures is told as gradaudit's ``digits`` tell it.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from benchmarks.harness import data_file, mnist, scaled, stored
from gradaudit.data import load_records
from gradaudit.data.digits import above_its_class, slant
from gradaudit.data.records import Attribute, Records

RATE, SAMPLES = 4000, 512
"""Samples a second and of a record of ``vowels``."""
FORMANTS = {"a": (730, 1090), "e": (530, 1840), "i": (270, 1990), "u": (300, 870)}
"""Hertz of the first two formants of vowels (Peterson and Barney 1952), below half the rate."""


def digits() -> Records:
    """The digits of scikit-learn."""
    return load_records("digits")


def adult() -> Records:
    """The first 3,000 people of Adult, with numbers of mean 0 and deviation 1."""
    spec = f"csv:{data_file('adult.csv')}?label=income&scale=standard"
    return _first(load_records(spec, attributes=("sex",)), 3000)


def pictures_of_digits() -> Records:
    """2,000 test pictures of MNIST, in single precision, with their slant."""
    records = mnist(2000)
    slants = above_its_class(
        slant(records.inputs[:, 0].numpy()), records.labels.numpy(), ("left", "right")
    )
    classes = tuple("0123456789")
    inputs = records.inputs.float()
    return replace(records, inputs=inputs, classes=classes, attributes={"slant": slants})


def faces(size: int = 32) -> Records:
    """2,000 faces of UTKFace; the label is the gender, the attribute whether the race is white."""
    file = stored("utkface_32.npz")
    inputs = scaled(file["images"][:2000]).float()
    if size < 32:
        inputs = nn.functional.adaptive_avg_pool2d(inputs, size)
    labels = torch.from_numpy(file["gender"][:2000].astype(np.int64))
    race = Attribute((file["race"][:2000] > 0).astype(np.int64), ("white", "another"))
    return Records(inputs, labels, ("male", "female"), {"race": race})


def reviews(task: str, begin: int = 0, count: int = 2000) -> Records:
    """Reviews of IMDB, 32 of 499 hashed words each; the attribute is whether a review is long."""
    spec = f"text:{data_file('imdb_16k.csv.gz')}?text=text&length=32&vocabulary=500"
    told = "&label=sentiment" if task == "classification" else ""
    records = load_records(f"{spec}{told}&task={task}", attributes=("n_words",))
    return records.take(np.arange(begin, begin + count))


def ink() -> Records:
    """Digits under noise; the label of each pixel is whether it is ink without the noise."""
    records = digits()
    noise = 0.3 * torch.randn(records.inputs.shape, generator=torch.Generator().manual_seed(0))
    labels = (records.inputs[:, 0] > 0.5).long()
    inputs = (records.inputs + noise).clip(0, 1)
    return replace(records, inputs=inputs, labels=labels, classes=("paper", "ink"))


def vowels(count: int = 1500) -> Records:
    """Made-up voices that say a vowel: harmonics of a pitch, loudest near the vowel's formants.

    The attribute is the voice: low (85 to 155 Hz) or high (165 to 255 Hz).
    """
    draws = np.random.default_rng(0)
    labels, voices = draws.integers(4, size=count), draws.integers(2, size=count)
    pitch = np.where(voices, draws.uniform(165, 255, count), draws.uniform(85, 155, count))
    hertz = pitch[:, None] * np.arange(1, 24)
    formants = np.array(list(FORMANTS.values()))[labels] * draws.normal(1, 0.05, (count, 2))
    loud = np.exp(-((hertz[:, :, None] - formants[:, None]) ** 2) / (2 * 120**2)).sum(2)
    loud *= hertz < RATE / 2
    phases = draws.uniform(0, 2 * np.pi, hertz.shape)[:, :, None]
    turns = 2 * np.pi * hertz[:, :, None] * np.arange(SAMPLES) / RATE
    waves = (loud[:, :, None] * np.sin(turns + phases)).sum(1)
    waves += 0.1 * draws.normal(size=waves.shape)
    waves /= np.abs(waves).max(1, keepdims=True)
    return Records(
        torch.from_numpy(waves.astype(np.float32)),
        torch.from_numpy(labels),
        tuple(FORMANTS),
        {"voice": Attribute(voices, ("low", "high"))},
    )


def _first(records: Records, count: int) -> Records:
    return records.take(np.arange(count))
