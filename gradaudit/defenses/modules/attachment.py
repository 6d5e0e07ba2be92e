"""Building something into a model before its last fully connected layer, which may be private.

The parts hang on that layer and run in its hooks, so every layer keeps its name and kind, whatever
the model's ``forward`` looks like.
"""

import copy
from abc import ABC, abstractmethod
from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch import Tensor, nn

from gradaudit.errors import AuditError, NotApplicable
from gradaudit.gradients.functional import unwrap


class Attachment(nn.Module):
    """Something that sees the input of a fully connected layer and may replace it.

    What it adds to the model's outputs, ``extra`` columns a record, is a term of the loss that
    ``PenalisedLoss`` takes off again.
    """

    extra: int = 0

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        """(records, features) to what the layer gets instead, and (records, extra) or None."""
        raise NotImplementedError


def last_linear(model: nn.Module, defense: str, layers: str = "*") -> tuple[str, nn.Linear]:
    """The last fully connected layer in order of ``named_modules``, and its name.

    Args:
        model: the model.
        defense: what error messages call the defense.
        layers: only of those whose name matches this glob.

    Raises:
        NotApplicable: there is none.
    """
    found = [
        (name, part)
        for name, part in model.named_modules()
        if type(part) is nn.Linear and fnmatchcase(name or "(model)", layers)
    ]
    if not found:
        which = "" if layers == "*" else f" that matches layers={layers}"
        raise NotApplicable(
            f"{defense}: works before the last fully connected layer (nn.Linear), and the model "
            f"has none{which}"
        )
    return found[-1]


def attached(model: nn.Module, layer: str, name: str, part: Attachment) -> nn.Module:
    """A copy of the model with the part hung on a layer, as ``LAYER.NAME``."""
    model = copy.deepcopy(model)
    place = model.get_submodule(layer)
    like = next(place.parameters())
    place.add_module(name, part.to(like.device, like.dtype).train(place.training))
    place.register_forward_pre_hook(_Before(name))
    if part.extra:
        model.register_forward_hook(_Append(layer, name))
    return model


def attachments(model: nn.Module) -> list[Attachment]:
    """What was built into a model, in order of ``named_modules``."""
    return [part for part in model.modules() if isinstance(part, Attachment)]


class _Before:
    """Runs the part on the layer's input."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, layer: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        part = cast("Attachment", layer.get_submodule(self.name))
        features = arguments[0]
        if part.extra and features.dim() != 2:
            raise AuditError(
                f"--defense {self.name}: the last fully connected layer gets an input of shape "
                f"{tuple(features.shape)}; one vector a record is needed"
            )
        replaced, extra = part(features)
        vars(part)["found"] = extra
        return (replaced, *arguments[1:])


class _Append:
    """Puts what the part found behind the model's outputs."""

    def __init__(self, layer: str, name: str) -> None:
        self.path = f"{layer}.{name}" if layer else name

    def __call__(self, model: nn.Module, arguments: tuple[Any, ...], output: Any) -> Tensor:
        found = vars(model.get_submodule(self.path)).pop("found", None)
        outputs = unwrap(output)
        if found is None:
            raise AuditError(
                f"the model did not run {self.path.rpartition('.')[0]}, its last fully connected "
                "layer, on these records"
            )
        return torch.cat([outputs.flatten(1) if outputs.dim() > 1 else outputs[:, None], found], 1)


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


def uniform(bound: float, *shape: int, generator: torch.Generator) -> Tensor:
    """Even draws from ±bound, in float64 so that every dtype gets the same numbers."""
    return (2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1) * bound
