"""Canaries in DP-SGD: records of known gradients that fair coins include, and their scores.

A canary's gradient is a direction of its own, far longer than the clip. Canaries that their coin
let in take part in a step as any record does, with the sampling rate; the others never do. The
optimizer clips, sums, adds noise and divides as it always does. An adversary who knows the other
records takes their clipped gradients out of what is released; with y = <rest, canary>/clip of each
step the score of a canary is the logarithm of its likelihood ratio,

    sum_t log(1 - q + q exp((y_t - 1/2)/v_t)),

with the sampling rate q and the variance v_t of all canaries' y_t less that of who takes part. It
is fixed before any coin is looked at. Without the others' sum the bound halves.

Canaries share out the numbers of the gradient at random, with random signs: as many as there are
parameters are orthogonal, and need no more memory than one gradient. More canaries than that share
the numbers out anew, and are a little noise to each other.

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
from scipy.linalg import hadamard
from scipy.special import chdtr
from torch import Tensor

from gradaudit.core.randomness import rng
from gradaudit.errors import UsageError
from gradaudit.federation.canaries import CanaryScores, Facts

_LONG = 100.0
"""Norm of a canary's gradient in clips, so that a step that does not clip it stands out."""
_MOST, _FEWEST, _NUMBERS = 20_000, 100, 5e7
"""Most and fewest canaries, and numbers in all canaries' gradients of a step, on average."""
_SETS, _CROSS_TALK, _ORDER = 8, 0.2, 32
"""Most canaries for each parameter, the variance that other canaries may add to a canary's products
over that of the noise, and the order of the matrices that more canaries than parameters are of."""
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
        sets = _SETS if elements >= _ORDER**2 else 1
        if not 0 < sampling_rate <= 1 or not 0 < (count or 1) <= sets * elements:
            raise UsageError(
                f"canaries: give a sampling rate in (0, 1] and 1 to {sets * elements} canaries, at "
                f"most {sets} for each of the model's trainable parameters"
            )
        if count is None:
            hidden = 2 * _CROSS_TALK * float(optimizer.noise_multiplier) ** 2 / sampling_rate
            useful = elements * int(min(1 + hidden, sets))
            affordable = int(_NUMBERS / (sampling_rate * elements))
            count = min(useful, _MOST, max(_FEWEST, affordable))
        self.optimizer, self.count, self.sampling_rate = optimizer, count, sampling_rate
        self._draws = rng(seed, "record canaries")
        self.included: NDArray[np.bool_] = self._draws.random(count) < 0.5
        self._elements = elements
        self._point()
        self.increments: list[NDArray[np.float64]] = []
        self.batches: list[int] = []
        self._noise: list[tuple[float, float, int]] = []
        self._before: Tensor = self._values.new_zeros(elements)
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
        sizes, suspicions = np.array(self.batches), []
        if abs(ratio - 1) > max(_TOLERANCE, _DEVIATIONS / math.sqrt(2 * max(1.0, looks))):
            suspicions.append(
                f"what is released differs from the clipped sum by {ratio:.3g} times the declared "
                "noise: look at the noise, the clip, the divisor and what is accumulated"
            )
        if abs(again) > _REPEATS:
            suspicions.append("two steps in a row have the same noise")
        spread = sizes.var(ddof=1) if len(sizes) > 1 else 0.0
        usual = max(sizes.mean() * (1 - self.sampling_rate), 1e-12)
        free = len(sizes) - 1
        if self.sampling_rate < 1 and free and chdtr(free, free * spread / usual) < _RARE:
            suspicions.append(
                f"batches of {sizes.min()} to {sizes.max()} records differ less than those of "
                "Poisson sampling, which the accountant takes for granted"
            )
        if not self._moved:
            suspicions.append("no parameter moved: the privacy was spent for nothing")
        return suspicions

    def _with_canaries(self, closure: Any = None) -> Any:
        """Runs Opacus's own ``pre_step`` with the canaries among the records of the step."""
        first = self._known is None
        if first and self.count > self._elements:
            self._point()
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

    def _point(self) -> None:
        """Draw the canaries' directions, which have to be new in each step unless orthogonal.

        What two canaries agree in would add up over the steps otherwise.
        """
        places, values = _directions(self._draws, self.count, self._elements)
        like = self.params[0]
        self._places = torch.from_numpy(places).to(like.device)
        self._values = torch.from_numpy(values).to(like)

    def _take_in(self, takes: NDArray[np.bool_]) -> None:
        """Record the clipped sum of the records' gradients, and add canaries to the records."""
        given = [_flat(p) for p in self.params]
        whole = torch.cat([g.flatten(1) for g in given], dim=1)
        factors = (self.clip / (whole.norm(dim=1) + _GUARD)).clamp(max=1.0)
        known = factors @ whole
        self._known = known if self._known is None else self._known + known
        self._size += len(whole)
        rows = self._rows(takes) * (_LONG * self.clip)
        ends = np.cumsum([p.numel() for p in self.params])[:-1].tolist()
        for p, part in zip(self.params, torch.tensor_split(rows, ends, dim=1), strict=True):
            _append(p, part.reshape(-1, *p.shape))

    def _rows(self, chosen: NDArray[np.bool_]) -> Tensor:
        """Returns the directions of the chosen canaries, (chosen, elements)."""
        index = torch.from_numpy(np.flatnonzero(chosen)).to(self._places.device)
        rows = self._values.new_zeros(len(index), self._elements + 1)
        rows.scatter_(1, self._places[index], self._values[index])
        return rows[:, :-1]

    def _score(self, rest: Tensor) -> None:
        """Add the step's likelihood ratios to the scores, and compare the rest with noise alone."""
        padded = torch.cat([rest, rest.new_zeros(1)])
        y = ((padded[self._places] * self._values).sum(dim=1) / self.clip).double().cpu().numpy()
        q, part = self.sampling_rate, self.sampling_rate / 2
        spread = max(y.var() - part * (1 - part), _FLOOR * y.var(), 1e-12)
        stays = math.log1p(-q) if q < 1 else -math.inf
        self.increments.append(np.logaddexp(stays, math.log(q) + (y - 0.5) / spread))
        noise = rest / self.clip - self._rows(self._takes).sum(dim=0)
        products = float(noise @ noise), float(noise @ self._before)
        self._noise.append((*products, self._elements))
        self._before = noise


def _directions(
    draws: np.random.Generator, count: int, elements: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Unit vectors with random signs, by the places and values of their numbers.

    As many as there are elements, at most, share no element. More are rows of Hadamard matrices,
    each on so many elements, of sets that deal the elements out anew: two of different sets hardly
    agree, and what all others add to a product is nearly normal.

    Returns:
        Two arrays (count, numbers of a canary); those that are left over have the place
        ``elements`` and the value 0.
    """
    if count <= elements:
        padded = np.full(math.ceil(elements / count) * count, elements)
        padded[:elements] = draws.permutation(elements)
        places = padded.reshape(-1, count).T
        own = places < elements
        signs = draws.integers(2, size=places.shape) * 2.0 - 1.0
        return places, np.where(own, signs / np.sqrt(own.sum(axis=1, keepdims=True)), 0.0)
    blocks = elements // _ORDER
    sets = math.ceil(count / (blocks * _ORDER))
    dealt = np.stack([draws.permutation(elements)[: blocks * _ORDER] for _ in range(sets)])
    signs = draws.integers(2, size=(sets * blocks, 1, _ORDER)) * 2.0 - 1.0
    values = signs * hadamard(_ORDER) / math.sqrt(_ORDER)
    places = np.repeat(dealt.reshape(-1, _ORDER), _ORDER, axis=0)
    return places[:count], values.reshape(-1, _ORDER)[:count].astype(np.float64)


def _flat(parameter: Any) -> Tensor:
    """Returns the records' gradients by a parameter, (records, …), over all backward passes."""
    given = parameter.grad_sample
    if given is None:
        given = parameter.new_zeros(0, *parameter.shape)
    whole: Tensor = torch.cat(given) if isinstance(given, list) else given
    return whole.to(parameter.dtype)


def _append(parameter: Any, rows: Tensor) -> None:
    given = parameter.grad_sample
    if isinstance(given, list):
        given[-1] = torch.cat([given[-1], rows.to(given[-1])])
    else:
        parameter.grad_sample = rows if given is None else torch.cat([given, rows.to(given)])
