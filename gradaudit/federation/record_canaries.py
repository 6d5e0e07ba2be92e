"""Canaries in DP-SGD: records of known gradients that fair coins include, and their scores.

A canary's gradient is a direction of its own, far longer than the clip. Canaries that their coin
let in take part in a step as any record does, with the sampling rate; the others never do. The
optimizer clips, sums, adds noise and divides as it always does. An adversary who knows the other
records takes their clipped gradients out of what is released; with y = <rest, canary>/clip of each
step the score of a canary is the logarithm of its likelihood ratio,

    sum_t log(1 - q + q exp((y_t - 1/2)/v_t)),

with the sampling rate q and the variance v_t of all canaries' y_t less that of who takes part. It
is fixed before any coin is looked at. Without the others' sum the bound halves.

Canary j has the numbers j, j + m, j + 2m, ... of the gradient, with random signs: canaries are
orthogonal, reach every layer, and need no more memory than one gradient.

Source: T. Steinke, M. Nasr and M. Jagielski, "Privacy auditing with one (1) training run" (2023);
A. Yousefpour et al., "Opacus" (2021); M. Abadi et al., "Deep learning with differential privacy"
(2016), algorithm 1.
"""

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import chi2
from torch import Tensor

from gradaudit.errors import UsageError
from gradaudit.federation.canary_scores import CanaryScores, Facts
from gradaudit.randomness import rng

_LONG = 100.0
"""Norm of a canary's gradient in clips, so that a step that does not clip it stands out."""
_MOST, _FEWEST, _NUMBERS = 5_000, 100, 2e8
"""Most and fewest canaries, and numbers in all canaries' gradients of a step, on average."""
_FLOOR = 0.05
_TOLERANCE, _DEVIATIONS = 0.02, 5.0
"""Deviations from the declared noise, relative and in standard deviations of the estimate, that
together show that a step is not a step of DP-SGD."""
_REPEATS = 0.1
"""Correlation of two steps' noise from which on the noise counts as repeated."""
_RARE = 1e-6
_GUARD = 1e-6
"""Constant that Opacus adds to norms before it divides the clip by them."""


class RecordCanaries:
    """Adds canaries to the steps of an Opacus ``DPOptimizer`` while the ``with`` block lasts.

    Gradients of ``p.grad_sample`` are needed before ``optimizer.step()``: hooks and functorch of
    Opacus, not its ghost clipping.

    Attributes:
        included: (canaries,) whether each coin let its canary in.
        increments: of each step, (canaries,) what it adds to the scores.
        batches: records in each step's batch, without canaries.
    """

    def __init__(
        self,
        optimizer: Any,
        *,
        sampling_rate: float,
        count: int | None = None,
        seed: int = 0,
    ) -> None:
        self.params: list[Tensor] = list(optimizer.params)
        elements = sum(p.numel() for p in self.params)
        if count is None:
            affordable = int(_NUMBERS / max(1.0, sampling_rate * elements))
            count = min(elements, _MOST, max(_FEWEST, affordable))
        self.optimizer, self.count, self.sampling_rate = optimizer, count, sampling_rate
        if not 0 < sampling_rate <= 1 or not 0 < count <= elements:
            raise UsageError(
                f"canaries: give a sampling rate in (0, 1] and 1 to {elements} canaries, as many "
                "as the model has trainable parameters"
            )
        self._draws = rng(seed, "record canaries")
        self.included: NDArray[np.bool_] = self._draws.random(count) < 0.5
        signs = self._draws.integers(2, size=elements) * 2.0 - 1.0
        own = np.bincount(np.arange(elements) % count, minlength=count)
        padded = np.zeros(math.ceil(elements / count) * count)
        padded[:elements] = signs / np.sqrt(own[np.arange(elements) % count])
        like = self.params[0]
        self._rows = torch.from_numpy(padded).to(like).view(-1, count)
        self._elements = elements
        self.increments: list[NDArray[np.float64]] = []
        self.batches: list[int] = []
        self._noise: list[tuple[float, float, int]] = []
        self._before: NDArray[np.float64] = np.zeros(count)
        self._moved = 0.0
        self._known: Tensor | None = None
        self._size, self._takes = 0, np.zeros(count, bool)

    @property
    def clip(self) -> float:
        """Returns the norm that the whole gradient of a record is clipped to."""
        norms = self.optimizer.max_grad_norm
        return math.hypot(*norms) if isinstance(norms, Sequence) else float(norms)

    def __enter__(self) -> Self:
        """Start adding canaries to the optimizer's steps."""
        self._step = self.optimizer.pre_step
        self._start = [p.detach().clone() for p in self.params]
        self.optimizer.pre_step = self._with_canaries
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the optimizer."""
        del self.optimizer.pre_step
        pairs = zip(self.params, self._start, strict=True)
        self._moved = max(float((new.detach() - old).abs().max()) for new, old in pairs)

    def scores(self) -> CanaryScores:
        """Returns the canaries' scores so far, with facts about the optimizer's settings."""
        steps = np.array(self.increments).reshape(len(self.increments), self.count, 1)
        return CanaryScores(self.included, steps, (), "record", self.facts())

    def facts(self) -> Facts:
        """Returns the optimizer's declared settings, and how its releases deviate from them."""
        squares, products, looks = (float(sum(x)) for x in zip(*self._noise, strict=True))
        declared = float(self.optimizer.noise_multiplier)
        ratio = math.sqrt(squares / max(1.0, looks)) / declared if declared else math.inf
        again = products / squares if squares else 0.0
        return {
            "noise_multiplier": declared,
            "sampling_rate": self.sampling_rate,
            "steps": len(self.increments),
            "noise_over_declared": ratio,
            "noise_correlation": again,
            "moved": self._moved,
            "suspicions": [*self._suspicions(ratio, again, looks)],
        }

    def _suspicions(self, ratio: float, again: float, looks: float) -> list[str]:
        """Returns assumptions of an accountant that the steps contradict, a clause for each."""
        sizes, said = np.array(self.batches), []
        if abs(ratio - 1) > max(_TOLERANCE, _DEVIATIONS / math.sqrt(2 * max(1.0, looks))):
            said.append(
                f"what is released differs from the clipped sum by {ratio:.3g} times the declared "
                "noise: look at the noise, the clip, the divisor and what is accumulated"
            )
        if abs(again) > _REPEATS:
            said.append("two steps in a row have the same noise")
        spread = sizes.var(ddof=1) if len(sizes) > 1 else 0.0
        usual = max(sizes.mean() * (1 - self.sampling_rate), 1e-12)
        free = len(sizes) - 1
        if self.sampling_rate < 1 and free and chi2.cdf(free * spread / usual, free) < _RARE:
            said.append(
                f"batches of {sizes.min()} to {sizes.max()} records differ less than those of "
                "Poisson sampling, which the accountant takes for granted"
            )
        if not self._moved:
            said.append("no parameter moved: the privacy was spent for nothing")
        return said

    def _with_canaries(self, closure: Any = None) -> Any:
        """Runs Opacus's own ``pre_step`` with the canaries among the records of the step."""
        first = self._known is None
        if first:
            self._takes = self.included & (self._draws.random(self.count) < self.sampling_rate)
        self._take_in(self._takes & first)
        scale = 1.0
        if self.optimizer.loss_reduction == "mean":
            scale = self.optimizer.expected_batch_size * self.optimizer.accumulated_iterations
        done = self._step(closure)
        if done:
            grads = [p.grad.reshape(-1) for p in self.params if p.grad is not None]
            if self._known is not None:
                self._score(torch.cat(grads) * scale - self._known)
            self.batches.append(self._size)
            self._known, self._size = None, 0
        return done

    def _take_in(self, takes: NDArray[np.bool_]) -> None:
        """Record the clipped sum of the records' gradients, and add canaries to the records."""
        given = [_flat(p) for p in self.params]
        whole = torch.cat([g.flatten(1) for g in given], dim=1)
        factors = (self.clip / (whole.norm(dim=1) + _GUARD)).clamp(max=1.0)
        known = factors @ whole
        self._known = known if self._known is None else self._known + known
        self._size += len(whole)
        (chosen,) = np.nonzero(takes)
        rows = whole.new_zeros(len(chosen), *self._rows.shape)
        index = torch.from_numpy(chosen)
        rows[torch.arange(len(chosen)), :, index] = self._rows[:, index].T * (_LONG * self.clip)
        ends = np.cumsum([p.numel() for p in self.params])[:-1].tolist()
        parts = torch.tensor_split(rows.flatten(1)[:, : self._elements], ends, dim=1)
        for p, part in zip(self.params, parts, strict=True):
            _append(p, part.reshape(-1, *p.shape))

    def _score(self, rest: Tensor) -> None:
        padded = torch.zeros_like(self._rows).view(-1)
        padded[: self._elements] = rest
        y = ((padded.view_as(self._rows) * self._rows).sum(dim=0) / self.clip).double().numpy()
        q, part = self.sampling_rate, self.sampling_rate / 2
        spread = max(y.var() - part * (1 - part), _FLOOR * y.var(), 1e-12)
        stays = math.log1p(-q) if q < 1 else -math.inf
        self.increments.append(np.logaddexp(stays, math.log(q) + (y - 0.5) / spread))
        noise = y - self._takes
        self._noise.append((float(noise @ noise), float(noise @ self._before), self.count))
        self._before = noise


def _flat(parameter: Any) -> Tensor:
    """Returns the records' gradients by a parameter, (records, …), over all backward passes."""
    given = parameter.grad_sample
    if given is None:
        given = parameter.new_zeros(0, *parameter.shape)
    whole: Tensor = torch.cat(given) if isinstance(given, list) else given
    return whole.to(parameter.dtype)


def _append(parameter: Any, rows: Tensor) -> None:
    """Append gradients to those of the last backward pass."""
    given = parameter.grad_sample
    if isinstance(given, list):
        given[-1] = torch.cat([given[-1], rows.to(given[-1])])
    else:
        parameter.grad_sample = rows if given is None else torch.cat([given, rows.to(given)])
