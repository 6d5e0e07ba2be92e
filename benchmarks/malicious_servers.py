"""Manipulations of a model by a malicious server, to test the check; each works in place."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

SHARP = 300.0
"""Weight of the feature that is fished by, as in Wen et al.'s code."""
SILENT = 1000.0
"""Bias of the classes that are not fished for, as in Wen et al.'s code."""


class Imprint(nn.Module):
    """A module before a model that bins records by their mean, and hands them on almost unchanged.

    x ↦ x + s · V relu(W x + b), all rows of W the mean, −b quantiles of it, all columns of V alike.

    Source: L. Fowl et al., "Robbing the Fed: directly obtaining private data in federated learning
    with modified models" (2022), section 4.
    """

    def __init__(self, records: Tensor, bins: int, strength: float = 1e-3) -> None:
        super().__init__()
        size = records[0].numel()
        self.bins, self.back = nn.Linear(size, bins), nn.Linear(bins, size)
        self.strength = strength
        bin_rows(self.bins, records.flatten(1))
        with torch.no_grad():
            self.back.weight.copy_(self.back.weight[:, :1].expand_as(self.back.weight))

    def forward(self, x: Tensor) -> Tensor:
        """Records of the same shape."""
        seen = torch.relu(self.bins(x.flatten(1)))
        handed_on: Tensor = x + self.strength * self.back(seen).reshape(x.shape)
        return handed_on


def bin_rows(layer: nn.Linear, inputs: Tensor) -> None:
    """Set all rows to the mean input, and biases to quantiles of a normal law fitted to it.

    Args:
        layer: is changed; a ReLU should follow.
        inputs: (records, inputs) such as come in.
    """
    means = inputs.mean(dim=1)
    levels = (torch.arange(layer.out_features) + 0.5) / layer.out_features
    cuts = means.mean() + means.std() * torch.special.ndtri(levels)
    with torch.no_grad():
        layer.weight.fill_(1 / layer.in_features)
        layer.bias.copy_(-cuts)


def trap_rows(layer: nn.Linear, scale: float, generator: torch.Generator) -> None:
    """Half of each row negative, the other half those numbers times −scale, shuffled.

    Source: F. Boenisch et al., "When the curious abandon honesty: federated learning is not
    private" (2023), section 5.2. Their scale just below 1 is for inputs that are positive and many.
    """
    rows, inputs = layer.weight.shape
    half = inputs // 2
    deviation = float(layer.weight.detach().std())
    with torch.no_grad():
        for row in range(rows):
            below = -torch.randn(half, generator=generator).abs() * deviation
            above = -scale * below[torch.randperm(half, generator=generator)]
            places = torch.randperm(inputs, generator=generator)
            layer.weight[row, places[:half]] = below
            layer.weight[row, places[half : 2 * half]] = above
        layer.bias.zero_()


def fish_for_class(layer: nn.Linear, wanted: int) -> None:
    """The last layer without the weights of all other classes, whose biases drown out the one.

    Source: Y. Wen et al., "Fishing for user data in large-batch federated learning via gradient
    magnification" (2022), section 3.1.
    """
    others = [number for number in range(layer.out_features) if number != wanted]
    with torch.no_grad():
        layer.weight[others] = 0
        layer.bias[others] = SILENT


def fish_for_feature(layer: nn.Linear, wanted: int, features: Tensor, share: float = 0.3) -> None:
    """The last layer hears of one class whether one feature is above a quantile of it.

    Source: Wen et al. 2022, section 3.2.

    Args:
        layer: is changed.
        wanted: the class.
        features: (records, inputs) that come in of records of that class.
        share: of them, below the cut: those whose gradient is left.
    """
    place = int(features.std(dim=0).argmax())
    cut = float(features[:, place].quantile(share))
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
        layer.weight[wanted, place] = SHARP
        layer.bias[wanted] = -SHARP * cut


def inputs_of(model: nn.Module, layer: nn.Module, records: Tensor) -> Tensor:
    """(records, inputs) that come into a layer; a row for each position where it has several."""
    seen: list[Tensor] = []

    def keep(_: nn.Module, given: Sequence[Tensor]) -> None:
        seen.append(given[0].detach())

    handle = layer.register_forward_pre_hook(keep)
    try:
        with torch.no_grad():
            model(records)
    finally:
        handle.remove()
    return seen[0].flatten(0, -2)
