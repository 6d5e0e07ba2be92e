"""The convolutions of a model that U is defined for, and ∂J/∂Z at their outputs for one record."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from gradaudit.gradients.functional import FunctionalModel
from gradaudit.ranks.geometry import Convolution

Look: TypeAlias = Callable[[str, Tensor, Tensor], Tensor]

_PLAIN = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Use:
    """One application of a convolution while a record goes through the model.

    Attributes:
        layer: name of the convolution.
        weight: (output channels, input channels of a group, *kernel) float64.
        shape: of its input, (batch, channels, *spatial).
        deltas: ∂J/∂Z at its output, (batch, output channels, *spatial) float64.
    """

    layer: str
    weight: Tensor
    shape: tuple[int, ...]
    deltas: Tensor


def convolutions(model: nn.Module) -> dict[str, nn.Module]:
    """Every convolution of a model by layer name, transposed ones included."""
    return {
        name or "(model)": module
        for name, module in model.named_modules()
        if isinstance(module, _ConvNd)
    }


def plain_convolutions(model: nn.Module) -> dict[str, Convolution]:
    """The convolutions of a model that U is defined for, by layer name."""
    refused = unsuitable(model)
    return {
        name: module
        for name, module in convolutions(model).items()
        if isinstance(module, _PLAIN) and name not in refused
    }


def unsuitable(model: nn.Module) -> dict[str, str]:
    """Why U is not defined for some of the convolutions of a model, by name."""
    modules = convolutions(model)
    owners = Counter(id(module._parameters.get("weight")) for module in modules.values())
    reasons = {}
    for name, module in modules.items():
        weight = module._parameters.get("weight")
        if isinstance(module, _ConvTransposeNd):
            reasons[name] = "a transposed convolution: COPA's U is defined for convolutions"
        elif weight is None:
            reasons[name] = "its weight is computed from other parameters, whose gradients differ"
        elif not weight.is_floating_point():
            reasons[name] = f"its weights are {weight.dtype}; real numbers are needed"
        elif owners[id(weight)] > 1:
            reasons[name] = "shares its weight with another convolution, so their gradients add up"
        elif not _computes_plainly(module):
            reasons[name] = "computes its own forward pass, not that of a plain convolution"
    return reasons


def fully_connected(model: FunctionalModel, record: Tensor) -> dict[str, str]:
    """What COPA says of fully connected layers, by name, instead of a rank.

    Its metric leaves them out, as their input is solved for in closed form; that takes a bias, and
    a layer that is applied once a record.

    Args:
        model: a functional copy.
        record: (1, …), as ``model.cast`` gives it.
    """
    layers = {
        name or "(model)": module
        for name, module in model.module.named_modules()
        if isinstance(module, nn.Linear)
    }
    rows: Counter[str] = Counter()

    def look(name: str, inputs: Tensor, output: Tensor) -> Tensor:
        rows[name] += inputs.numel() // inputs.shape[-1]
        return output

    with watching(layers, look), torch.no_grad():
        model.outputs({}, record)
    return {name: _in_closed_form(module, rows[name]) for name, module in layers.items()}


def _in_closed_form(layer: nn.Linear, rows: int) -> str:
    if rows == 0:
        return "fully connected, and not called in the forward pass"
    if rows > 1:
        return (
            f"fully connected, applied at {rows} positions of a record: their gradients add up, "
            "and COPA's closed form (lemma A.1) does not hold"
        )
    if layer._parameters.get("bias") is None:
        return (
            "fully connected without a bias: its gradient gives its input in closed form up to a "
            "factor (COPA, lemma A.1 needs the bias)"
        )
    return "fully connected: its gradient gives its input in closed form (COPA, lemma A.1)"


def _computes_plainly(module: nn.Module) -> bool:
    return any(
        isinstance(module, plain)
        and type(module).forward is plain.forward
        and type(module)._conv_forward is plain._conv_forward
        for plain in _PLAIN
    )


def uses(
    model: FunctionalModel, layers: Mapping[str, Convolution], record: Tensor, label: Tensor
) -> list[Use]:
    """Every application of the convolutions, in order, with ∂J/∂Z at its output.

    Args:
        model: a functional copy in float64.
        layers: the convolutions to look at, by name.
        record: (1, …), as ``model.cast`` gives it.
        label: (1, …).
    """
    seen: list[tuple[str, Tensor, torch.Size]] = []
    offsets: list[Tensor] = []

    def look(name: str, inputs: Tensor, output: Tensor) -> Tensor:
        seen.append((name, layers[name].weight, inputs.shape))
        offsets.append(torch.zeros_like(output, requires_grad=True))
        return output + offsets[-1]

    with watching(layers, look):
        loss = model.losses({}, record, label).sum()
    deltas: Sequence[Tensor] = offsets
    if loss.requires_grad:
        deltas = torch.autograd.grad(loss, offsets, allow_unused=True, materialize_grads=True)
    return [
        Use(name, _float64(weight), tuple(shape), _float64(delta))
        for (name, weight, shape), delta in zip(seen, deltas, strict=True)
    ]


def _float64(tensor: Tensor) -> Tensor:
    """On its device, or on the CPU where that has no float64."""
    tensor = tensor.detach()
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


@contextmanager
def watching(modules: Mapping[str, nn.Module], look: Look) -> Iterator[None]:
    """Pass every output of the modules through ``look(name, input, output)`` for a while."""

    def hook(name: str, module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
        return look(name, args[0], output)

    handles = [
        module.register_forward_hook(partial(hook, name)) for name, module in modules.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
