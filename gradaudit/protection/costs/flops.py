"""The cost by floating-point operations of the layers that are protected."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gradaudit.data.records import Records
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.memory import Counter
from gradaudit.models.target import Target
from gradaudit.protection.costs.base import Cost
from gradaudit.protection.guards import UndefendedUpdates


class Flops(Cost):
    """Floating-point operations of the layer's forward pass on a record: an enclave's work.

    Those of the backward pass are twice as many in every layer. Counted are matrix products,
    convolutions and attention.
    """

    name = "flops"
    summary = "share of the operations that an enclave does, or whose result drowns in noise"

    def sizes(
        self, target: Target, records: Records, updates: UndefendedUpdates
    ) -> Mapping[str, float]:
        """Returns operations by layer, without those of layers inside it."""
        model = FunctionalModel.of(target, dtype=next(target.model.parameters()).dtype)
        inputs, labels = model.cast(records.inputs[:1]), model.cast(records.labels[:1])
        modules = {n: target.model.get_submodule(n) for n in updates.layers if n != "(model)"}
        counter = Counter()
        flops = dict.fromkeys(updates.layers, 0.0)
        with _watched(modules, counter, flops), counter, torch.no_grad():
            model.check(inputs, labels)
        return flops


@contextmanager
def _watched(
    modules: Mapping[str, nn.Module], counter: Counter, own: dict[str, float]
) -> Iterator[None]:
    """Add to ``own`` the operations of each module, without those of the modules inside it."""
    begun: list[float] = []

    def enter(*_: Any) -> None:
        begun.append(counter.total)

    def leave(name: str) -> Any:
        def left(*_: Any) -> None:
            within = counter.total - begun.pop()
            own[name] += within
            begun[:] = [start + within for start in begun]

        return left

    handles = [module.register_forward_pre_hook(enter) for module in modules.values()]
    handles += [module.register_forward_hook(leave(name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
