"""One client's whole update, as it is shared."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.per_sample import per_sample_gradients
from gradaudit.gradients.ways import mean_gradient
from gradaudit.target import Layer, Target
from gradaudit.updates.fedavg import local_training
from gradaudit.updates.sharing import Sharing


def share(
    target: Target,
    inputs: Tensor,
    labels: Tensor,
    sharing: Sharing,
    generator: torch.Generator,
    *,
    dtype: torch.dtype = torch.float32,
    memory: int = 1 << 30,
) -> dict[str, Tensor]:
    """One client's update for one batch, through all defenses of updates.

    With FedSGD it is the gradient of the batch's mean loss (Σ w ℓ / Σ w for a weighted loss); with
    FedAvg (w_0 − w_E)/rate, the sum of the gradients along local training, so that one step is
    FedSGD exactly. ``others``, ``fraction`` and ``elements`` are no client's affair and play no
    part.

    Args:
        target: the audited model; it is left as it was. A defense that changes the model must be
            in it.
        inputs: (records, …), the batch.
        labels: (records, …).
        sharing: how the update is made.
        generator: for dropout, local shuffling and noise; on the target's device.
        dtype: of the computation.
        memory: bytes that the gradients of single records may take.

    Returns:
        The update by name of every shared parameter, in the parameter's shape.

    Raises:
        AuditError: the model cannot be run on the batch.
        NotApplicable: a defense clips single records, which the model couples.
        UsageError: the defenses cannot be applied to this model.
    """
    names = sharing.parameters(target.model)
    shapes = {name: p.shape for name, p in target.model.named_parameters()}
    update = raw_update(target, inputs, labels, names, sharing, generator, dtype, memory)
    rows = {name: update[name].reshape(1, -1) for name in names}
    defended = sharing.chain.apply(
        rows, records=len(inputs), generators=lambda _index, _name: generator
    )
    return {name: defended[name].reshape(shapes[name]) for name in names}


def raw_update(
    target: Target,
    inputs: Tensor,
    labels: Tensor,
    names: Sequence[str],
    sharing: Sharing,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
    memory: int = 1 << 30,
) -> Mapping[str, Tensor]:
    """The update before anything is done to it as a whole: records clipped and averaged."""
    seed = int(torch.randint(1 << 62, (), generator=generator, device=generator.device))
    if any(defense.of_records for defense in sharing.chain.acting):
        return _of_clipped_records(target, inputs, labels, names, sharing, dtype, memory, seed)
    view = FunctionalModel.of(target, dtype=dtype, seed=seed)
    records, targets = view.cast(inputs), view.cast(labels)
    view.check(records, targets)
    if sharing.algorithm == "fedavg":
        return local_training(view, names, records, targets, sharing, generator)
    return mean_gradient(view, names, records, targets)


def _of_clipped_records(
    target: Target,
    inputs: Tensor,
    labels: Tensor,
    names: Sequence[str],
    sharing: Sharing,
    dtype: torch.dtype,
    memory: int,
    seed: int,
) -> dict[str, Tensor]:
    """The mean of the records' gradients, each multiplied by its factors."""
    layers = parameters_as_layers(target, names)
    total = {name: torch.zeros(()) for name in names}
    gradients = per_sample_gradients(
        target, inputs, labels, layers, dtype=dtype, memory=memory, seed=seed
    )
    for chunk in gradients:
        squares = {
            name: torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square()
            for name, rows in chunk.items()
        }
        factors = sharing.chain.record_factors(squares)
        for name, rows in chunk.items():
            weights = factors[name].to(rows) if name in factors else rows.new_ones(len(rows))
            total[name] = total[name].to(rows) + weights @ rows / len(inputs)
    return total


def parameters_as_layers(target: Target, names: Sequence[str]) -> list[Layer]:
    """A layer of its own for every parameter, for the engines that go by layers."""
    sizes = {name: p.numel() for name, p in target.model.named_parameters()}
    return [Layer(name, "", index, (name,), sizes[name]) for index, name in enumerate(names)]
