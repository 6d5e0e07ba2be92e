"""What Flower's secure aggregation makes of clients' arrays, by its own arithmetic without masks.

Masks cancel in the sum, so they change nothing of what the server gets; whole numbers modulo a
range do. Source: flwr 1.41, ``client/mod/secure_aggregation/secaggplus_mod.py`` and
``server/workflow/secure_aggregation/secaggplus_workflow.py``.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from flwr.common.secure_aggregation.ndarrays_arithmetic import parameters_mod, parameters_multiply
from flwr.common.secure_aggregation.quantization import dequantize, quantize

from gradaudit.audits.job.loading.chains import Fault

_LARGE = 0.9875
"""Share of the clipping range that a large weight has: 7.9 of Flower's default of 8."""
_SAME = 0.01


def secure_mean(
    workflow: Any, arrays: Sequence[Sequence[np.ndarray]], counts: Sequence[int]
) -> list[np.ndarray]:
    """The mean weighted by counts that the server reads off the secure sum of clients' arrays."""
    levels, clip, weight = workflow.quantization_range, workflow.clipping_range, 0
    total = [np.zeros(each.shape, np.int64) for each in arrays[0]]
    for own, count in zip(arrays, counts, strict=True):
        ratio = round(count / workflow.max_weight * levels)
        scaled = quantize(parameters_multiply(list(own), ratio / levels), clip, levels)
        total = [sum_ + each for sum_, each in zip(total, scaled, strict=True)]
        weight += ratio
    share, *total = parameters_mod([np.array(weight), *total], workflow.modulus_range)
    real = dequantize(total, clip, levels)
    return [(each - (len(arrays) - 1) * clip) * (levels / share) for each in real]


def secure_sum_faults(workflow: Any, clients: int, file: str) -> Iterator[Fault]:
    """The faults of a sum of so many clients: it is of one alone, or wraps around."""
    name = type(workflow).__name__
    if clients < 2:
        yield Fault(
            "secure-sum-of-one",
            f"the secure sum is of {clients} client, which is its update; {name} halts the round",
            "let at least two clients, better dozens, take part in every round",
            file,
            "fraction_fit, min_fit_clients",
            "server",
        )
        return
    large = _LARGE * workflow.clipping_range
    heaviest = [int(workflow.max_weight)] * clients
    (mean,) = secure_mean(workflow, [[np.array([large])]] * clients, heaviest)
    if abs(mean.item() - large) > _SAME * large:
        most = 2 ** ((workflow.modulus_range // clients).bit_length() - 1)
        yield Fault(
            "secure-sum-wraps",
            f"the sum of {clients} clients exceeds modulus_range: weights of {large:.3g} of all "
            f"clients come out as {mean.item():.3g}",
            f"give {name} quantization_range={most}",
            file,
            f"{name}(quantization_range=)",
            "server",
            level="warning",
        )
