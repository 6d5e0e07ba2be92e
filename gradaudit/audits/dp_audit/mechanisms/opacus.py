"""DP-SGD as Opacus releases it: its own optimizer clips and adds the noise."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Generator, Tensor, nn

from gradaudit.audits.dp_audit.mechanisms import Mechanism
from gradaudit.audits.dp_audit.mechanisms.clipped_noise import ClippedNoise
from gradaudit.errors import UsageError


class OpacusMechanism(ClippedNoise):
    """Opacus's ``DPOptimizer``: the noisy sum of clipped gradients over the batch's size.

    ``sigma`` is absolute on the sum, so its noise multiplier is sigma/clip. The theory is that of
    ``dp:per=sum``; every release is Opacus's own.

    Source: M. Abadi et al., "Deep learning with differential privacy" (2016), algorithm 1; A.
    Yousefpour et al., "Opacus: User-friendly differential privacy library in PyTorch" (2021).
    """

    name = "opacus"
    summary = "Opacus's optimizer, as it is installed."
    example = "opacus:clip=1,sigma=1"
    foreign = True

    def __init__(self, *, clip: float, sigma: float) -> None:
        super().__init__(clip=clip, sigma=sigma, noise="gaussian", per="sum")
        self.description = f"opacus:clip={clip:g},sigma={sigma:g}"
        try:
            self._optimizer_class: Any = import_module("opacus.optimizers").DPOptimizer
        except ImportError as error:
            raise UsageError(
                "--mechanism opacus: Opacus is not installed; install gradaudit[opacus]"
            ) from error

    def resized(self, clip: float | None = None, sigma: float | None = None) -> OpacusMechanism:
        """Opacus with another clip or sigma."""
        return OpacusMechanism(
            clip=self.clip if clip is None else clip, sigma=self.sigma if sigma is None else sigma
        )

    def release(self, per_sample_gradients: Tensor, generator: Generator) -> Tensor:
        """Let Opacus clip, sum, add noise and divide: (records, elements) to (elements,)."""
        weights = nn.Parameter(torch.zeros_like(per_sample_gradients[0]))
        optimizer = self._optimizer_class(
            torch.optim.SGD([weights], lr=1.0),
            noise_multiplier=self.sigma / self.clip,
            max_grad_norm=self.clip,
            expected_batch_size=len(per_sample_gradients),
            generator=generator,
        )
        vars(weights)["grad_sample"] = per_sample_gradients.clone()
        optimizer.pre_step()
        assert weights.grad is not None  # pre_step has just set it
        return weights.grad.detach()

    def releases(self, per_sample_gradients: Tensor, count: int, generator: Generator) -> Tensor:
        """One step of the optimizer for each release, (count, elements)."""
        return Mechanism.releases(self, per_sample_gradients, count, generator)
