"""Initial weights other than PyTorch's."""

from typing import TypeVar

import torch
from torch import nn

from gradaudit.errors import UsageError

M = TypeVar("M", bound=nn.Module)


def initialise(model: M, init: str) -> M:
    """Redraw every parameter in place as ``init`` says, from torch's global generator.

    Args:
        model: any model.
        init: ``default`` leaves it; ``uniform:B`` draws weights and biases from uniform(−B, B).

    Raises:
        UsageError: ``init`` is neither.
    """
    if init == "default":
        return model
    bound = _uniform_bound(init)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-bound, bound)
    return model


def _uniform_bound(init: str) -> float:
    law, _, number = init.partition(":")
    try:
        bound = float(number)
    except ValueError:
        bound = 0.0
    if law != "uniform" or not 0 < bound < float("inf"):
        raise UsageError(f"init={init!r}: write default, or uniform:B with a positive bound B")
    return bound
