"""The model under audit and its layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal

import torch
from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from gradaudit.data.common.packing import InputPart
from gradaudit.errors import AuditError
from gradaudit.models.losses import Loss
from gradaudit.models.module_kinds import own_parameters
from gradaudit.report import CheckpointRecord

Mode = Literal["eval", "train"]


@dataclass(frozen=True)
class Layer:
    """A layer: a module with trainable parameters of its own, named as in ``named_modules``.

    ``parameter_names`` are the (qualified) parameters that make up its gradient G_l: the weight
    alone, or where there is no ``.weight`` all parameters but biases; with ``--with-bias`` biases
    too. ``parameters`` is the number of elements in them.
    """

    name: str
    kind: str
    position: int
    parameter_names: tuple[str, ...]
    parameters: int


@dataclass(frozen=True)
class Target:
    """A model with one checkpoint's weights, ready to be audited.

    The model is never changed by an audit: engines work on functional copies of its parameters
    and buffers. It is called with the ``parts`` of the records' inputs, by name, or with the inputs
    as they are where there are none. Gradients are taken in its ``precision`` where a measure asks
    for no other. ``notes`` say what was taken off the model before it was audited, and ``coupled``
    why its outputs or loss are functions of several records: empty where they are not, None where
    that was not tried.
    """

    model: nn.Module
    loss: Loss
    mode: Mode = "eval"
    description: str = ""
    parts: tuple[InputPart, ...] = ()
    checkpoint: CheckpointRecord | None = None
    precision: torch.dtype = torch.float64
    notes: tuple[str, ...] = ()
    coupled: str | None = None

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers in order of ``named_modules``, gradients of weights only."""
        return layers_of(self.model)

    @property
    def device(self) -> torch.device:
        """Returns the device of the model's parameters."""
        return next(self.model.parameters()).device


def layers_of(model: nn.Module, *, with_bias: bool = False) -> tuple[Layer, ...]:
    """Returns the layers of a model.

    A layer's gradient is that of its ``weight``; where there is none (attention's projections,
    recurrent cells, a weight that is computed of others), of all its own parameters but the
    biases. ``with_bias`` adds the biases. A parameter that several modules share belongs to the
    first of them, and one that another is computed of (``torch.nn.utils.parametrizations``) to the
    module whose parameter that is.

    Returns:
        Layers in order of ``named_modules``. The model itself, where it owns parameters directly,
        is called ``(model)``.
    """
    layers: list[Layer] = []
    seen: set[int] = set()
    for module_name, module in model.named_modules():
        parameters = {
            name: parameter
            for name, parameter in own_parameters(module)
            if parameter.requires_grad and id(parameter) not in seen
        }
        seen.update(map(id, parameters.values()))
        biases = [name for name in parameters if "bias" in name]
        others = [name for name in parameters if name not in biases]
        chosen = ["weight"] if "weight" in parameters else others
        chosen += biases if with_bias else []
        if not chosen:
            continue
        prefix = f"{module_name}." if module_name else ""
        layers.append(
            Layer(
                name=module_name or "(model)",
                kind=type_before_parametrizations(module).__name__,
                position=len(layers),
                parameter_names=tuple(prefix + name for name in chosen),
                parameters=sum(parameters[name].numel() for name in chosen),
            )
        )
    return tuple(layers)


def choose_layers(
    layers: Sequence[Layer], show: Sequence[str] = (), hide: Sequence[str] = ()
) -> tuple[Layer, ...]:
    """Returns the layers that match a glob of ``show`` (all without one) and none of ``hide``.

    Raises:
        AuditError: nothing is left.
    """
    shown, hidden = hidden_layers(layers, show or ("*",)), hidden_layers(layers, hide)
    kept = tuple(layer for layer in layers if layer.name in shown and layer.name not in hidden)
    if not kept:
        names = ", ".join(layer.name for layer in layers) or "none at all"
        asked = [*(f"--layer {glob}" for glob in show), *(f"--hide {glob}" for glob in hide)]
        raise AuditError(
            f"no layer is left by {' '.join(asked) or 'the model'}; "
            f"its trainable layers are: {names}"
        )
    return kept


def hidden_layers(layers: Sequence[Layer], hide: Sequence[str]) -> tuple[str, ...]:
    """Names the layers that match a glob of ``hide``."""
    return tuple(
        layer.name for layer in layers if any(fnmatchcase(layer.name, glob) for glob in hide)
    )


def shared_parameters(model: nn.Module, hidden: Sequence[str] = ()) -> tuple[str, ...]:
    """Names all trainable parameters, biases included, of all layers but the hidden ones."""
    return tuple(
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and (name.rpartition(".")[0] or "(model)") not in hidden
    )
