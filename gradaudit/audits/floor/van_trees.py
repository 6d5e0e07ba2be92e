"""The van Trees inequality for a noisy update: how far from a record any attacker stays.

An attacker sees g(x) + σn and knows all else: weights, label, other records, noise, and the prior
N(m, C) of x. With Ã = C^½ E[JᵀJ] C^½ / σ², the expectation over x of the prior, in the prior's
own directions (``GaussianPrior``):

- E‖x̂ − x‖² ≥ tr C^½ (I + Ã)⁻¹ C^½ (H. van Trees 1968; R. Gill and B. Levit 1995, eq. 10);
- I(x; update) ≤ ½ ln det(I + Ã): of any law the entropy is at least −½ ln det of Fisher's
  information matrix + const (Stam 1959), the posterior's matrix is I + Ã on average, and ln det is
  concave (S. Efroimovich 1979).

Both hold given the label, and averaged over labels by convexity; information of layers with
independent noise adds up. They hold just so for an attacker with the side information of a
``Genie``, of units of records, and are averaged over units then, each with an expectation and a
label of its own.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.audits.floor.functionals import Functional
from gradaudit.audits.floor.information import Information
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.core.statistics.intervals import skewed

_FOLDS = 8
_OWN, _SCALED, _OTHERS = 0.45, 0.45, 0.05
"""What a unit's information is guessed from: its other half, and that of other units, scaled to the
trace of that half and as it is, which keeps what a small half missed from weighing too much."""


@dataclass(frozen=True)
class Estimate:
    """A number of the expected information, from a sample of records.

    Attributes:
        value: on average on the safe side of the true one: below a floor, above an information.
        safe: the same for 97.5 % of samples.
    """

    value: float
    safe: float


def van_trees_bound(
    functional: Functional, information: Information, prior: GaussianPrior
) -> Estimate:
    """Bound by the van Trees inequality, without a genie or with one.

    F(Â) itself errs on the wrong side on average: F is convex (Jensen), and Â misses directions.
    But a convex F lies above its tangents, F(A) ≥ F(B) + ⟨F′(B), A − B⟩ whatever B is, and the
    right side is linear in A. So B is made of other records than those that stand in for A: without
    a genie of other units', with one of the unit's other half's too. Which of the bounds a unit
    counts for is said by other units. So each has a number that is on average on the safe side, and
    the safe number is the end of Hall's interval for their mean. Concave F the other way round.

    Hall's interval is for skewed numbers, as those of units are: few records tell much. Of 16 units
    of one direction with lognormal information (deviation 1) its end is beyond the truth in 1.8 to
    4.6 % of 2,000 audits, Student's in 2.6 to 6.8 % (2.5 % nominal); of 4 units in 2.9 to 7.8 and
    3.2 to 9.1 % (``benchmarks/coverage/floors.py``, its part ``lognormal``).

    Args:
        functional: what is bounded.
        information: of the update.
        prior: of the records.
    """
    numbers = unit_numbers(functional, information, prior)
    value = float(numbers.mean())
    safe = skewed(numbers)[0 if functional.sign > 0 else 1]
    value, safe = (min(max(0.0, x), functional.most) for x in (value, safe))
    return Estimate(value, safe)


def unit_numbers(
    functional: Functional, information: Information, prior: GaussianPrior
) -> NDArray[np.float64]:
    """Every unit's number, (units,); each fold uses the bound that others find best.

    Best is the one with the best mean less its standard error: few units tell little.
    """
    count = len(information.halves)
    folds = torch.arange(count) % min(_FOLDS, count)
    each = _by_information(functional, information, prior, folds)
    bounds, found = functional.sign * torch.stack(each), torch.empty(count, dtype=torch.float64)
    for fold in range(min(_FOLDS, count)):
        others = bounds[:, folds != fold]
        error = others.std(dim=1, correction=0) / others.shape[1] ** 0.5
        best = int((others.mean(dim=1) - error).argmax())
        found[folds == fold] = functional.sign * bounds[best, folds == fold]
    numbers: NDArray[np.float64] = found.numpy()
    return numbers


def _by_information(
    functional: Functional, information: Information, prior: GaussianPrior, folds: Tensor
) -> list[Tensor]:
    """Compute each unit's bounds: without a genie, and with one."""
    units = information.units
    plain, told = torch.empty(2, len(folds), dtype=units.dtype)
    for fold in range(int(folds.max()) + 1):
        held, others = folds == fold, units[folds != fold].mean(dim=0)
        plain[held] = functional.tangent(others, units[held], prior)
        told[held] = _bounds(functional, information.halves[held], others, information, prior)
    return [plain, told]


def _bounds(
    functional: Functional,
    halves: Tensor,
    others: Tensor,
    information: Information,
    prior: GaussianPrior,
) -> Tensor:
    """Each unit's number with the genie, (units,): both halves held against one another."""
    numbers = [
        functional.tangent(_guess(own, others), held, prior, information.precision)
        for unit in halves
        for own, held in (unit, unit.flip(0))
    ]
    return torch.stack(numbers).reshape(-1, 2).mean(dim=1)


def _guess(own: Tensor, others: Tensor) -> Tensor:
    scale = float(own.trace()) / max(float(others.trace()), torch.finfo(own.dtype).tiny)
    return _OWN * own + (_SCALED * scale + _OTHERS) * others
