"""Parts of a client's model that it never shares."""

from abc import ABC, abstractmethod

import torch
from torch import nn


class PrivatePart(nn.Module, ABC):
    """A part of a model that stays with its client: never in an update, never seen.

    Its parameters are frozen (``requires_grad=False``), so that no audit takes them for a layer;
    a client thaws them while it trains.
    """

    @abstractmethod
    def draw(self, generator: torch.Generator) -> None:
        """Draw all weights and secrets anew, as a client does before the first round."""


def private_parts(model: nn.Module) -> list[PrivatePart]:
    """The private parts of a model, in order of ``named_modules``."""
    return [module for module in model.modules() if isinstance(module, PrivatePart)]


def private_names(model: nn.Module) -> tuple[str, ...]:
    """Names in the model's ``state_dict`` of what a client never shares."""
    return tuple(
        f"{module_name}.{name}" if module_name else name
        for module_name, module in model.named_modules()
        if isinstance(module, PrivatePart)
        for name in module.state_dict()
    )
