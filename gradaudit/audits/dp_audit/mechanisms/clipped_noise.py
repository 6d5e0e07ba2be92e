"""DP-SGD's release, and the other conventions of where to clip and where to add the noise."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Generator, Tensor

from gradaudit.audits.dp_audit.law.theory import (
    Relation,
    epsilon_gaussian,
    epsilon_laplace,
    mu_of_mechanism,
)
from gradaudit.audits.dp_audit.mechanisms import Mechanism, Promise, ReleaseLaw, Sampler
from gradaudit.core.noise_laws import Noise, NoisePlace, noise_scale
from gradaudit.errors import UsageError
from gradaudit.gradients.noise import clipped, draw_each, draw_noise


class ClippedNoise(Mechanism):
    """Clip to Δ and add noise of scale σ; the release is a mean over the batch's k records.

    ``per`` says where (σ and Δ are absolute, never multiples of each other):

    - ``sum``: (Σ clip(g_i) + σn) / k, the DP-SGD of Abadi et al. 2016, algorithm 1;
    - ``record``: Σ (clip(g_i) + σn_i) / k, each client for itself;
    - ``mean``: Σ clip(g_i) / k + σn;
    - ``release``: clip(Σ g_i / k) + σn, the batch gradient as a whole (Mo et al. 2022, V-E).

    ``theory.mu_of_mechanism`` says how far one record can move each of them.

    Attributes:
        clip: L2 norm Δ that a gradient is clipped to.
        sigma: deviation of Gaussian noise, or scale b of Laplace noise, per element, at the place
            where the mechanism adds it.
        per: where the noise is added.
    """

    name = "dp"
    summary = "Clip, and add Gaussian or Laplace noise."
    example = "dp:clip=1,sigma=1"
    foreign: ClassVar[bool] = False
    noise: Noise

    def __init__(
        self, *, clip: float, sigma: float, noise: Noise = "gaussian", per: NoisePlace = "sum"
    ) -> None:
        if not clip > 0:
            raise UsageError(f"--mechanism: clip={clip} is not positive")
        if not 0 <= sigma < math.inf:
            raise UsageError(f"--mechanism: sigma={sigma} is negative or infinite")
        self.clip, self.sigma, self.noise, self.per = clip, sigma, noise, per
        self.noise_multiplier = sigma / clip if (noise, per) == ("gaussian", "sum") else None
        self.description = f"dp:clip={clip:g},sigma={sigma:g},noise={noise},per={per}"

    def mean(self, per_sample_gradients: Tensor) -> Tensor:
        """The release without noise, (records, elements) to (elements,)."""
        return self.noiseless(per_sample_gradients[0], per_sample_gradients[1:])

    def noiseless(self, record: Tensor, companions: Tensor) -> Tensor:
        """The clipped mean, (…, elements)."""
        records = 1 + len(companions)
        if self.per == "release":
            return clipped((record + companions.sum(dim=0)) / records, self.clip)
        others = clipped(companions, self.clip).sum(dim=0)
        return (clipped(record, self.clip) + others) / records

    def law(self, records: int) -> ReleaseLaw:
        """The clipped mean, and the noise's scale in the release of a batch of ``records``.

        Raises:
            UsageError: the mean of several records' Laplace noise is asked for.
        """
        if (self.noise, self.per) == ("laplace", "record") and records > 1:
            raise UsageError(
                f"--mechanism {self.description}: the mean of several records' Laplace noise has "
                "no simple law; use per=sum, or --companions 0"
            )
        scale = noise_scale(self.per, self.sigma, records)
        return ReleaseLaw(self.noise, scale, self.noiseless)

    def promise(self, relation: Relation, records: int, elements: int, delta: float) -> Promise:
        """The worst case: at δ for Gaussian noise, at 0 for Laplace noise.

        For that an L2 sensitivity of S allows an L1 sensitivity of S√elements.
        """
        mu = mu_of_mechanism(
            self.clip, self.sigma, noise=self.per, records=records, relation=relation
        )
        if self.noise == "laplace":
            return Promise(mu, epsilon_laplace(mu * math.sqrt(elements), 1.0), 0.0)
        return Promise(mu, epsilon_gaussian(mu, delta), delta)

    def release(self, per_sample_gradients: Tensor, generator: Generator) -> Tensor:
        """Release once: (records, elements) to (elements,)."""
        return self.releases(per_sample_gradients, 1, generator)[0]

    def releases(self, per_sample_gradients: Tensor, count: int, generator: Generator) -> Tensor:
        """Clip once, add fresh noise ``count`` times: (count, elements)."""
        return self.sampler(per_sample_gradients)(count, generator)

    def sampler(self, per_sample_gradients: Tensor) -> Sampler:
        """Draw releases, with the clipped mean of the gradients computed once."""
        mean, records = self.mean(per_sample_gradients), len(per_sample_gradients)

        def released(count: int, generator: Generator) -> Tensor:
            if self.per == "record":
                noise = draw_each(self.noise, mean, count, records, generator)
                return noise.mul_(self.sigma).add_(mean)
            noise = draw_noise(self.noise, mean, count, generator)
            return noise.mul_(noise_scale(self.per, self.sigma, records)).add_(mean)

        return released

    def elements_drawn(self, records: int, elements: int) -> int:
        """Elements that are drawn: of one row of noise, or of one for each record."""
        return elements * (records + 1 if self.per == "record" else 1)
