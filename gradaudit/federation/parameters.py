"""The server's model, and the weighted mean of what clients send."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from gradaudit.defenses.attachment import private_names
from gradaudit.errors import AuditError
from gradaudit.federation.clients import Contribution, make_optimizer
from gradaudit.federation.settings import TrainingOptions
from gradaudit.models.target import Target


class Server:
    """The shared model and the server's optimizer.

    Args:
        target: whose model it starts from; it is copied.
        options: rate, optimizer.
    """

    def __init__(self, target: Target, options: TrainingOptions) -> None:
        self.model = copy.deepcopy(target.model)
        self.rate = options.rate
        self.parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.optimizer = make_optimizer(self.parameters.values(), options)
        self._private = set(private_names(self.model))

    def state(self) -> dict[str, Tensor]:
        """A copy of the shared weights and buffers, without any client's private part."""
        state = self.model.state_dict().items()
        return {n: t.detach().clone() for n, t in state if n not in self._private}

    def step(self, gradient: Mapping[str, Tensor]) -> None:
        """One step of the server's optimizer along the mean gradient."""
        for name, parameter in self.parameters.items():
            parameter.grad = gradient[name]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def move(self, update: Mapping[str, Tensor]) -> None:
        """Undo the division by the rate in an update: w ← w − rate · update."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.sub_(self.rate * update[name])

    def set_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Take over running statistics."""
        self.model.load_state_dict({**self.model.state_dict(), **buffers})

    @property
    def finite(self) -> bool:
        """Whether all weights are."""
        return all(bool(p.isfinite().all()) for p in self.parameters.values())

    def memory(self) -> dict[str, Tensor]:
        """Weights, buffers and the optimizer's memory by name: all that a later round needs."""
        kept = {f"model.{name}": tensor for name, tensor in self.state().items()}
        for index, entries in self.optimizer.state_dict()["state"].items():
            for key, value in entries.items():
                if value is not None:
                    kept[f"optimizer.{index}.{key}"] = torch.as_tensor(value).detach().clone()
        return kept

    def restore(self, memory: Mapping[str, Tensor]) -> None:
        """Go back to a ``memory``.

        Raises:
            AuditError: it does not fit the model.
        """
        weights = {n.removeprefix("model."): t for n, t in memory.items() if n.startswith("model.")}
        try:
            self.model.load_state_dict({**self.model.state_dict(), **weights})
        except RuntimeError as error:
            raise AuditError(f"the kept state does not fit the model: {error}") from error
        entries: dict[int, dict[str, Any]] = {}
        for name, tensor in memory.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".", 2)
                entries.setdefault(int(index), {})[key] = tensor
        state = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**state, "state": entries})


def weighted_mean(contributions: Iterable[Contribution]) -> Contribution:
    """The mean of the clients' contributions, each weighted by its number of records.

    Counts among the buffers (``num_batches_tracked``) are not averaged: the largest is kept.
    """
    mean: Contribution | None = None
    for sent in contributions:
        if mean is None:
            mean = sent
            continue
        records = mean.records + sent.records
        share = sent.records / records
        update = {n: _between(t, sent.update[n], share) for n, t in mean.update.items()}
        buffers = {n: _between(t, sent.buffers[n], share) for n, t in mean.buffers.items()}
        mean = Contribution(update, buffers, records, mean.loss + share * (sent.loss - mean.loss))
    if mean is None:
        raise ValueError("no client")
    return mean


def _between(before: Tensor, new: Tensor, share: float) -> Tensor:
    """A running mean, exact where nothing changes; of counts the larger."""
    if not before.is_floating_point():
        return torch.maximum(before, new)
    return before + share * (new - before)
