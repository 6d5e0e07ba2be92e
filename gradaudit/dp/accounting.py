"""The epsilon of a whole training run, to compare a claimed budget with that of one step.

One step is audited; a run takes many, each on a random batch. Steps on the whole data compose
exactly: T Gaussian mechanisms of μ are one of μ√T (Dong, Roth and Su 2019, corollary 3.3). Poisson
sampled batches need a privacy loss distribution, or Rényi divergences, of Google's dp-accounting,
an optional dependency.
"""

import math
from typing import Any, Literal

from gradaudit.dp.theory import Relation, epsilon_gaussian
from gradaudit.errors import UsageError

Accountant = Literal["pld", "rdp"]


def epsilon_composed(
    noise_multiplier: float,
    steps: int,
    delta: float,
    *,
    sampling_rate: float = 1.0,
    relation: Relation = "replace",
    accountant: Accountant = "pld",
) -> float:
    """ε at δ after ``steps`` steps of DP-SGD with noise on the sum of clipped gradients.

    Args:
        noise_multiplier: σ/Δ, 0 for none.
        steps: number of steps.
        delta: 0 < δ < 1.
        sampling_rate: probability with which a record is in a batch; 1 is the whole data.
        relation: neighbouring data sets replace one record, or remove one.
        accountant: for sampled batches, ``pld`` (tight, to its discretisation) or ``rdp`` (an upper
            bound, for ``remove`` only).

    Raises:
        UsageError: dp-accounting is missing, or the accountant does not know the relation.
    """
    if noise_multiplier < 0 or steps < 1 or not 0 < sampling_rate <= 1 or not 0 < delta < 1:
        raise UsageError(
            "composition needs a noise multiplier >= 0, at least one step, a sampling rate in "
            "(0, 1] and delta in (0, 1)"
        )
    if noise_multiplier == 0:
        return math.inf
    if sampling_rate == 1:
        sensitivity = 2 if relation == "replace" else 1
        return epsilon_gaussian(sensitivity * math.sqrt(steps) / noise_multiplier, delta)
    return _sampled(noise_multiplier, steps, delta, sampling_rate, relation, accountant)


def _sampled(
    noise_multiplier: float,
    steps: int,
    delta: float,
    sampling_rate: float,
    relation: Relation,
    accountant: Accountant,
) -> float:
    if accountant == "rdp" and relation == "replace":
        raise UsageError(
            "the rdp accountant knows sampled batches only when a record is removed; "
            "use the pld accountant or relation=remove"
        )
    library = _dp_accounting()
    neighbours = library.NeighboringRelation
    kind = library.pld.PLDAccountant if accountant == "pld" else library.rdp.RdpAccountant
    ledger = kind(
        neighboring_relation=neighbours.REPLACE_ONE
        if relation == "replace"
        else neighbours.ADD_OR_REMOVE_ONE
    )
    step = library.PoissonSampledDpEvent(sampling_rate, library.GaussianDpEvent(noise_multiplier))
    return float(ledger.compose(step, steps).get_epsilon(delta))


def _dp_accounting() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise UsageError(
            "composition over sampled batches needs dp-accounting: "
            "pip install 'gradaudit[accounting]'"
        ) from error
    return dp_accounting
