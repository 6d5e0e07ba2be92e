"""The two fully connected layers that a model begins with, read off the model by running it.

What comes in at the first layer must be an affine function of a record's cells (a record as it is,
standardised, or looked up in embeddings); what comes in at the second an activation of what the
first gives. Both are tried on records, so that modules and functions are alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_text.view import InputCapture
from gradaudit.errors import NotApplicable
from gradaudit.gradients.functional import FunctionalModel

if TYPE_CHECKING:
    from gradaudit.attacks.reconstruction.base import Update


_CLOSE = 1e-6
"""Models may round what comes in to single precision."""
_PROBES = 8
_BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "leaky relu": F.leaky_relu,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "elu": F.elu,
    "none": lambda z: z,
}
"""Activations with torch's default options."""


@dataclass(frozen=True)
class TwoLayers:
    """The beginning of a model, in coordinates in which numeric columns have deviation 1.

    What comes in at the first layer is D a + m with a = offset + entry u for a record's cells u;
    D and m (``scale``, ``centre``) undo the scale of raw numbers.

    Attributes:
        first, second: names of the layers' weights; None of a second that cannot be used.
        weight, bias: (width, inputs), (width,) of the first layer for a.
        activation: its name, see ``ACTIVATIONS``.
        entry, offset: (inputs, cells), (inputs,).
        absent: (cells,) categories whose row of an embedding has no gradient.
        why_alone: why the second layer cannot be used; empty where it can.
    """

    first: str
    second: str | None
    weight: Tensor
    bias: Tensor
    activation: str
    entry: Tensor
    offset: Tensor
    scale: Tensor
    centre: Tensor
    absent: Tensor
    why_alone: str = ""

    def entered(self, cells: Tensor) -> Tensor:
        """What comes in at the first layer, (points, inputs), in scaled coordinates."""
        return self.offset + cells @ self.entry.T

    def before(self, cells: Tensor) -> Tensor:
        """What the first layer gives, (points, width)."""
        return self.entered(cells) @ self.weight.T + self.bias

    def hidden(self, cells: Tensor) -> Tensor:
        """What comes in at the second layer, (points, width)."""
        return self.value(self.before(cells))

    def value(self, z: Tensor) -> Tensor:
        """The activation of each element."""
        return ACTIVATIONS[self.activation](z)

    def slope(self, z: Tensor) -> Tensor:
        """The activation's derivative at each element."""
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            return torch.autograd.grad(self.value(z).sum(), z)[0]

    def matrices(self, update: Update) -> tuple[Tensor, Tensor | None]:
        """[dW | db] of both layers, the first in scaled coordinates."""
        bias = update[bias_of(self.first)]
        weight = (update[self.first] - torch.outer(bias, self.centre)) * (1 / self.scale)
        one = torch.cat([weight, bias[:, None]], dim=1)
        if self.second is None:
            return one, None
        return one, torch.cat([update[self.second], update[bias_of(self.second)][:, None]], dim=1)


def bias_of(weight: str) -> str:
    """The name of the bias beside a weight."""
    return weight.removesuffix("weight") + "bias"


def two_layers(model: FunctionalModel, columns: TableColumns, update: Update) -> TwoLayers:
    """Read the beginning of a model in float64, whose update is shared by parameter.

    Raises:
        NotApplicable: a batch norm mixes rows, or the model does not begin with a fully connected
            layer with bias whose update is shared and whose input is affine in the cells.
    """
    _expect_rows_alone(model)
    probes = columns.known[:_PROBES]
    seen = _run(model, columns.inputs(probes)).seen
    layers = [name for name in seen if bias_of(name) in model.parameters]
    if not layers or next(iter(seen)) != layers[0]:
        raise NotApplicable("the model does not begin with a fully connected layer with a bias")
    first = layers[0]
    if not {first, bias_of(first)} <= set(update):
        raise NotApplicable(f"the update of {first} and its bias was not shared")
    corners = _run(model, columns.inputs(columns.corners))
    came, entered = corners.seen[first], seen[first]
    # Of a column of codes the first category is the base from which the others are told.
    entry, offset = (came[1:] - came[0]).T.contiguous(), came[0]
    if entered.dim() != 2 or not _alike(offset + probes @ entry.T, entered):
        raise NotApplicable(f"what comes in at {first} is no affine function of a record's columns")
    weight, bias = model.parameters[first], model.parameters[bias_of(first)]
    second, activation, why = _second(seen, layers, entered @ weight.T + bias, update)
    numbers = entry[:, columns.numeric].abs()
    reach = numbers.amax(dim=1) if numbers.shape[1] else entry.new_zeros(len(entry))
    scale = torch.where(reach > 0, reach, 1.0)
    centre = torch.where(reach > 0, offset, 0.0)
    return TwoLayers(
        first,
        second,
        weight * scale,
        bias + weight @ centre,
        activation,
        entry / scale[:, None],
        (offset - centre) / scale,
        scale,
        centre,
        _absent(corners, columns, update),
        why,
    )


def _expect_rows_alone(model: FunctionalModel) -> None:
    """Refuse a model that mixes the rows of a batch.

    Raises:
        NotApplicable: a batch norm computes with the statistics of the batch.
    """
    for name, part in model.module.named_modules():
        if isinstance(part, _BATCH_NORMS) and (model.mode == "train" or part.running_mean is None):
            raise NotApplicable(
                f"the batch norm {name} mixes the rows of a batch, so that none can be tested "
                "alone; try --method tableak"
            )


def _second(
    seen: dict[str, Tensor], layers: list[str], given: Tensor, update: Update
) -> tuple[str | None, str, str]:
    """The second layer, the activation before it, and why there is none."""
    if len(layers) < 2:
        return None, "none", "the model has no second fully connected layer with a bias"
    second = layers[1]
    if not {second, bias_of(second)} <= set(update):
        return None, "none", f"the update of {second} was not shared"
    for name, value in ACTIVATIONS.items():
        if _alike(value(given), seen[second]):
            return second, name, ""
    known = ", ".join(ACTIVATIONS)
    return None, "none", f"what stands between {layers[0]} and {second} is none of {known}"


def _absent(corners: InputCapture, columns: TableColumns, update: Update) -> Tensor:
    """Categories that are looked up in a row of an embedding that did not move, (cells,)."""
    absent = torch.zeros(columns.cells_in_all, dtype=torch.bool)
    for name, read in corners.looked_up.items():
        if name in update and len(read) == len(absent) + 1:
            rows = read.reshape(len(read), -1)
            still = (update[name] == 0).all(dim=1)
            for group in columns.groups:
                moves = (rows[1:][group] != rows[0]).any(dim=0)
                if bool(moves.any()):
                    absent[group] = still[rows[1:][group][:, moves]].all(dim=1)
    return absent


def _run(model: FunctionalModel, records: Tensor) -> InputCapture:
    """What comes in at each linear weight for records, and what is looked up."""
    capture = InputCapture(model.parameters)
    with capture, torch.no_grad():
        model.outputs({}, records.to(model.device))
    return capture


def _alike(one: Tensor, other: Tensor) -> bool:
    size = float(other.abs().max()) or 1.0
    return one.shape == other.shape and float((one - other).abs().max()) <= _CLOSE * size
