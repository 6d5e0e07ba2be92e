"""Rounds of training by the audit itself, where only a model and data are given.

Source: Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning"
(2024), definition 3.1 and section 5.1.4: SGD with learning rate 0.01 on the private set, one epoch
a round, every step with the defended gradient. The first round sees the model as it is given.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from gradaudit.data.records import Records
from gradaudit.errors import AuditError
from gradaudit.models.target import Target
from gradaudit.progress import Advance
from gradaudit.randomness import torch_rng
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import share

RATE = 0.01
BATCH = 32


def train_rounds(
    target: Target,
    records: Records,
    rows: NDArray[np.int64],
    rounds: int,
    *,
    defended: Callable[[Target], SharingProtocol] = lambda target: SharingProtocol(),
    rate: float = RATE,
    batch: int = BATCH,
    seed: int = 0,
    advance: Advance = lambda units: None,
) -> Iterator[Target]:
    """The target as every round sees it: as given, then after each epoch but the last.

    Args:
        target: the model to begin with; it is left as it was.
        records: all of them.
        rows: indices of the private training set.
        rounds: how many to yield.
        defended: what is done to the gradient of every step of an epoch, by the model that the
            epoch begins with. Layers that are never shared are trained without, on the client.
        rate: learning rate.
        batch: records in a step.
        seed: of the order of the records and of noise.
        advance: told of every epoch.

    Raises:
        AuditError: the training diverged.
    """
    generator = torch_rng(seed, "training")
    plain = SharingProtocol()
    for number in range(rounds):
        yield target
        if number + 1 == rounds:
            return
        sharing = defended(target)
        target = replace(target, model=copy.deepcopy(target.model))
        order = torch.from_numpy(rows)[torch.randperm(len(rows), generator=generator)]
        for step in torch.split(order, batch):
            inputs, labels = records.inputs[step], records.labels[step]
            update = share(target, inputs, labels, sharing, generator)
            if sharing.hidden:
                update = {**share(target, inputs, labels, plain, generator), **update}
            _step(target, update, rate)
        advance(1)


def _step(target: Target, update: dict[str, torch.Tensor], rate: float) -> None:
    with torch.no_grad():
        for name, parameter in target.model.named_parameters():
            if name in update:
                parameter.sub_(update[name].to(parameter), alpha=rate)
                if not torch.isfinite(parameter).all():
                    raise AuditError(
                        f"training its own rounds diverged in {name}; give checkpoints with "
                        "--checkpoint, or a smaller --learning-rate"
                    )
