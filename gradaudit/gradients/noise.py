"""Clipping, and noise whose numbers do not depend on how many rows are drawn at a time."""

import torch
from torch import Generator, Tensor

from gradaudit.core.noise_laws import Noise, NoisePlace, noise_scale

_GROUP = 16
"""torch fills normal numbers in groups of this size; rows of whole groups are drawn alike in
chunks of any size."""


def clip_factors(norms: Tensor, bound: float) -> Tensor:
    """Factors that clip vectors of these L2 norms to at most ``bound`` (Abadi 2016)."""
    return 1 / (norms / bound).clamp(min=1)


def clipped(gradients: Tensor, bound: float) -> Tensor:
    """Gradients (…, elements) scaled down to an L2 norm of at most ``bound`` (Abadi 2016)."""
    norms: Tensor = torch.linalg.vector_norm(gradients, dim=-1, keepdim=True)
    return gradients / (norms / bound).clamp(min=1)


def draw_noise(noise: Noise, like: Tensor, rows: int, generator: Generator) -> Tensor:
    """Standard noise (rows, elements): normal, or Laplace of scale one.

    On the CPU the numbers do not depend on how many rows are drawn at a time. ``like`` is (…,
    elements), with the wanted type and the generator's device.
    """
    elements = like.shape[-1]
    whole = -(-elements // _GROUP) * _GROUP
    drawn = torch.empty(rows, whole, dtype=like.dtype, device=like.device)
    if noise == "gaussian":
        return drawn.normal_(generator=generator)[:, :elements]
    return _laplace(drawn.uniform_(generator=generator))[:, :elements]


def draw_each(noise: Noise, like: Tensor, rows: int, records: int, generator: Generator) -> Tensor:
    """The mean of ``records`` draws of standard noise, (rows, elements)."""
    draws = draw_noise(noise, like, rows * records, generator)
    return draws.view(rows, records, -1).mean(dim=1)


def noise_of_mean(
    noise: Noise,
    per: NoisePlace,
    sigma: float,
    records: int,
    like: Tensor,
    rows: int,
    generator: Generator,
) -> Tensor:
    """The noise in the mean over a batch of ``records``, (rows, elements); only its law counts.

    A mean of Gaussian draws is drawn at once, with 1/√records of the deviation.
    """
    if noise == "laplace" and per == "record":
        return draw_each(noise, like, rows, records, generator).mul_(sigma)
    return draw_noise(noise, like, rows, generator).mul_(noise_scale(per, sigma, records))


def _laplace(uniform: Tensor) -> Tensor:
    """Laplace numbers of scale one from uniform ones in [0, 1), in place; never infinite.

    The uniform numbers are multiples of 2⁻²⁴; half a step keeps the sign fair and the log finite.
    """
    signed = uniform.mul_(2).sub_(1).add_(2.0**-24)
    return torch.copysign(torch.log1p(-signed.abs()), signed)
