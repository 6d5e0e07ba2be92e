"""What BatchNorm layers keep of training records, as a prior for the records of a batch.

A server always has the running statistics that it sends out: means and variances over all training
records, near which those of a batch lie. The statistics of the batch itself it has only where
clients send what they add to these, so that an attack with them is a diagnostic.

Source: H. Yin et al., "See through gradients: Image batch recovery via GradInversion" (2021),
equation 11; of the variances they do not say whether they are the unbiased ones, which are what
torch keeps and what is compared here.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gradaudit.models.module_kinds import BATCH_NORMS
from gradaudit.ranks.observe import watching

if TYPE_CHECKING:
    from gradaudit.attacks.reconstruction.base import AttackerView
    from gradaudit.gradients.functional import FunctionalModel

MEAN, VARIANCE = "running_mean", "running_var"


def norm_layers(model: FunctionalModel) -> dict[str, nn.Module]:
    """Find the BatchNorm layers that keep running statistics, by name."""
    modules = model.module.named_modules()
    norms = {name: part for name, part in modules if isinstance(part, BATCH_NORMS)}
    return {name: part for name, part in norms.items() if part.running_mean is not None}


def batch_statistics(
    model: FunctionalModel, records: Tensor, leading: int = 0
) -> dict[str, Tensor]:
    """Compute the mean and variance of what comes in at each BatchNorm, (…, channels).

    Args:
        model: runs in its own mode.
        records: (…, k, …) batches, of which each is for itself.
        leading: dimensions before the k records of a batch.

    Returns:
        Statistics by the name of the buffer that keeps the running ones.
    """
    found: dict[str, Tensor] = {}

    def look(name: str, inputs: Tensor, output: Tensor) -> Tensor:
        apart = inputs.reshape(*records.shape[:leading], -1, *inputs.shape[1:])
        values = apart.transpose(leading, leading + 1).flatten(leading + 1)
        prefix = f"{name}." if name else ""
        found[f"{prefix}{MEAN}"] = values.mean(dim=-1)
        unbiased = min(1, values.shape[-1] - 1)  # a single value has no variance
        found[f"{prefix}{VARIANCE}"] = values.var(dim=-1, correction=unbiased)
        return output

    with watching(norm_layers(model), look):
        model.outputs({}, records.flatten(0, leading))
    return found


def statistics_distance(view: AttackerView, records: Tensor, leading: int = 0) -> Tensor:
    """Σ_l ‖μ_l − m_l‖₂ + ‖σ²_l − v_l‖₂ over BatchNorm layers (Yin et al. 2021, equation 11).

    μ and σ² are the candidates' (…, k, …) statistics, m and v those that the attacker has. Clients
    who normalise apart have statistics of their own, whose mean distance counts.

    Returns:
        (…,) the distance of each candidate.
    """
    has = {**view.model.constants, **view.statistics}
    parts = [
        (made - has[name].to(made)).norm(dim=-1)
        for client in records.chunk(view.clients, dim=leading)
        for name, made in batch_statistics(view.model, client, leading).items()
    ]
    total: Tensor = reduce(torch.add, parts)
    return total / view.clients
