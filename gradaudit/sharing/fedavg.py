"""FedAvg's local training: epochs of SGD on minibatches of a client's records."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.per_sample import mean_gradient
from gradaudit.sharing.protocol import Sharing


def local_training(
    view: FunctionalModel,
    names: Sequence[str],
    records: Tensor,
    targets: Tensor,
    sharing: Sharing,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """(w_0 − w_E)/rate by parameter: the sum of the gradients that E epochs of SGD step along.

    All trainable parameters are trained, shared or not. Every epoch goes through the records in a
    new random order (in the given order where one minibatch holds them all), the last minibatch
    with what is left (McMahan et al. 2017, algorithm 1).

    Args:
        view: the model where training starts.
        names: whose updates are wanted.
        records: (records, …) as ``view.cast`` gives them.
        targets: (records, …) of the loss.
        sharing: epochs, rate and size of a minibatch.
        generator: for the order of the records.
    """
    start = view.parameters
    sums = {name: torch.zeros_like(parameter) for name, parameter in start.items()}
    for step, batch in enumerate(_minibatches(len(records), sharing, generator)):
        here = {name: start[name] - sharing.rate * sums[name] for name in start}
        local = replace(view, parameters=here if step else start, seed=view.seed + step)
        found = mean_gradient(local, list(start), records[batch], targets[batch])
        sums = {name: sums[name] + found[name] for name in start}
    return {name: sums[name] for name in names}


def _minibatches(count: int, sharing: Sharing, generator: torch.Generator) -> list[Tensor]:
    """The records of every step, epoch after epoch."""
    size = sharing.local_batch or count
    steps: list[Tensor] = []
    for _ in range(sharing.epochs):
        if size >= count:
            order = torch.arange(count, device=generator.device)
        else:
            order = torch.randperm(count, generator=generator, device=generator.device)
        steps.extend(torch.split(order, size))
    return steps
