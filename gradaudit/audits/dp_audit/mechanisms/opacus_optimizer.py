"""DP-SGD as Opacus releases it: its own optimizer clips and adds the noise."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from gradaudit.audits.dp_audit.mechanisms import Mechanism
from gradaudit.audits.dp_audit.mechanisms.clipped_noise import ClippedNoise
from gradaudit.core.parts import library
from gradaudit.core.text import first_line
from gradaudit.errors import UsageError

Divisor = Literal["expected", "records"]


class OpacusMechanism(ClippedNoise):
    """Opacus's ``DPOptimizer``: the noisy sum of clipped gradients over the expected batch size.

    ``sigma`` is absolute on the sum, so its noise multiplier is sigma/clip. The theory is that of
    ``dp:per=sum``; every release is Opacus's own. ``DPOptimizer`` divides by a constant,
    ``divisor=expected``. ``PrivacyEngine.make_private`` computes that constant from the number of
    records, so that the noise's scale reveals it (opacus#571): ``divisor=records`` plays this.

    Source: M. Abadi et al., "Deep learning with differential privacy" (2016), algorithm 1; A.
    Yousefpour et al., "Opacus: User-friendly differential privacy library in PyTorch" (2021).
    """

    name = "opacus"
    summary = "Opacus's optimizer, as it is installed."
    example = "opacus:clip=1,sigma=1"
    foreign = True

    def __init__(self, *, clip: float, sigma: float, divisor: Divisor = "expected") -> None:
        super().__init__(clip=clip, sigma=sigma, noise="gaussian", per="sum")
        self.divisor, self.expected_batch_size = divisor, 1
        self.description = f"opacus:clip={clip:g},sigma={sigma:g},divisor={divisor}"
        asked = ("opacus", "--mechanism opacus")
        self._optimizer_class: Any = library("opacus.optimizers", *asked).DPOptimizer
        self._wrapper: Any = library("opacus.grad_sample", *asked).GradSampleModule

    def expecting(self, records: int) -> OpacusMechanism:
        """Expect batches of so many records, whatever number a batch holds."""
        other = copy(self)
        other.expected_batch_size = records
        return other

    def optimizer(
        self,
        weights: Sequence[nn.Parameter],
        *,
        lr: float,
        expected_batch_size: float,
        generator: Generator,
    ) -> Any:
        """Opacus's optimizer around SGD.

        ``expected_batch_size`` is q·N of N records and the sampling rate q, whatever a batch really
        has: a divisor that follows the batch would give its size away.
        """
        return self._optimizer_class(
            torch.optim.SGD([p for p in weights if p.requires_grad], lr=lr),
            noise_multiplier=self.sigma / self.clip,
            max_grad_norm=self.clip,
            expected_batch_size=expected_batch_size,
            generator=generator,
        )

    def wrapped(self, model: nn.Module) -> nn.Module:
        """The model with Opacus's hooks for the gradients of single records.

        Raises:
            UsageError: Opacus has none for one of its layers.
        """
        try:
            made: nn.Module = self._wrapper(model)
        except (NotImplementedError, ValueError) as error:
            raise UsageError(f"--mechanism opacus: {first_line(error)}") from error
        return made

    def release(self, per_sample_gradients: Tensor, generator: Generator) -> Tensor:
        """Let Opacus clip, sum, add noise and divide: (records, elements) to (elements,)."""
        weights = nn.Parameter(torch.zeros_like(per_sample_gradients[0]))
        follows = self.divisor == "records"
        divisor = len(per_sample_gradients) if follows else self.expected_batch_size
        optimizer = self.optimizer(
            [weights],
            lr=1.0,
            expected_batch_size=float(divisor),
            generator=generator,
        )
        vars(weights)["grad_sample"] = per_sample_gradients.clone()
        optimizer.pre_step()
        assert weights.grad is not None  # pre_step has just set it
        return weights.grad.detach()

    def releases(self, per_sample_gradients: Tensor, count: int, generator: Generator) -> Tensor:
        """One step of the optimizer for each release, (count, elements)."""
        return Mechanism.releases(self, per_sample_gradients, count, generator)
