"""Conventions of noise that defenses and mechanisms share: its law, and its place."""

from typing import Literal

Noise = Literal["gaussian", "laplace"]
"""Law of the noise on an element."""

NoisePlace = Literal["record", "sum", "mean", "release"]
"""Place of the noise: ``record``: on each clipped record; ``sum``: on the sum of clipped records,
before it is divided by their number; ``mean``: on their mean; ``release``: on the batch gradient,
clipped as a whole."""


def noise_scale(per: NoisePlace, sigma: float, records: int) -> float:
    """Scale of an element's noise in the mean over a batch of ``records``.

    Exact for Gaussian noise; Laplace noise of ``per="record"`` has this deviation (times √2), but
    as a mean of several it is no longer Laplace.
    """
    shrink = {"record": records**0.5, "sum": records, "mean": 1, "release": 1}
    return float(sigma / shrink[per])
