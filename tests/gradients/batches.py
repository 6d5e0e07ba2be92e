"""The gradient of a whole batch by one backward pass, to compare per-sample gradients with."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.per_sample import mean_gradient, names_of
from gradaudit.models.target import Layer, Target


def batch_gradient(
    target: Target,
    inputs: Tensor,
    labels: Tensor,
    layers: Sequence[Layer],
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Each layer's gradient (elements,) of a batch's mean loss, also where records are coupled."""
    view = FunctionalModel.of(target, dtype=dtype, seed=seed)
    records, targets = view.cast(inputs), view.cast(labels)
    view.check(records, targets)
    gradients = mean_gradient(view, names_of(layers), records, targets)
    return {
        layer.name: torch.cat([gradients[name].flatten() for name in layer.parameter_names])
        for layer in layers
    }
