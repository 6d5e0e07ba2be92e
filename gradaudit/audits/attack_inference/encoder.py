"""The encoder of gradients that separates users, and its training.

Source: J. Snell et al., "Prototypical networks for few-shot learning" (2017), as Li et al. 2024,
section 4.1, use it: a fully connected encoder with one hidden layer, 50 dimensions.

A game trains one for each layer, round and repetition, thousands of small steps each. So gradients
are written out, and all weights lie in one vector that Adam moves: ``benchmarks/encoder_speed.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradaudit.families.base import Scale
from gradaudit.randomness import torch_rng

DIMENSIONS = 50
HIDDEN = 128
EPOCHS = 60
BATCH = 64
RATE = 1e-3
DECAY = 1e-4
_MOMENTS = 0.9, 0.999
_EPSILON = 1e-8


@dataclass(frozen=True)
class Encoder:
    """A trained encoder of gradients.

    Attributes:
        scale: of the features, of which it keeps those that vary.
        layers: weights (out, in) and biases (out,) of two, from the kept features to
            ``DIMENSIONS``.
    """

    scale: Scale
    layers: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]

    @classmethod
    def trained(
        cls, features: NDArray[np.floating], users: NDArray[np.int64], seed: int
    ) -> Encoder:
        """Train on shadow users' gradients, by cross-entropy of who they are of.

        Args:
            features: (batches, features).
            users: (batches,) in 0..users-1.
            seed: of the weights and of the order.
        """
        generator = torch_rng(seed, "encoder")
        scale = Scale.of(features)
        inputs = torch.from_numpy(scale(features)).to(torch.float32)
        labels = torch.from_numpy(users)
        sizes = (inputs.shape[1], HIDDEN, DIMENSIONS, int(users.max()) + 1)
        weights = _drawn(sizes, generator)
        _train(weights, sizes, inputs, labels, generator)
        hidden, last, _ = _layers(weights, sizes)
        return cls(scale, (hidden, last))

    def __call__(self, features: NDArray[np.floating]) -> Tensor:
        """Embeddings (batches, ``DIMENSIONS``)."""
        inputs = torch.from_numpy(self.scale(features)).float()
        (first, first_bias), (second, second_bias) = self.layers
        hidden = torch.addmm(first_bias, inputs, first.T).relu_()
        return torch.addmm(second_bias, hidden, second.T).double()

    @staticmethod
    def seconds(batches: int, features: int) -> float:
        """About how long training on so many batches of so many features takes."""
        return EPOCHS * math.ceil(batches / BATCH) * (5e-4 + 1e-6 * features)


Layers = list[tuple[Tensor, Tensor]]


def _layers(vector: Tensor, sizes: Sequence[int]) -> Layers:
    """Weights (out, in) and biases (out,) of layers from each size to the next, as views."""
    shapes = list(pairwise(sizes))
    lengths = [length for before, after in shapes for length in (before * after, after)]
    parts = torch.split(vector, lengths)
    return [
        (weight.view(after, before), bias)
        for (before, after), weight, bias in zip(shapes, parts[::2], parts[1::2], strict=True)
    ]


def _drawn(sizes: Sequence[int], generator: torch.Generator) -> Tensor:
    """The weights of an untrained network in one vector."""
    weights = torch.zeros(sum((before + 1) * after for before, after in pairwise(sizes)))
    for weight, _ in _layers(weights, sizes):
        nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=generator)
    return weights


@torch.no_grad()
def _train(
    weights: Tensor,
    sizes: Sequence[int],
    inputs: Tensor,
    labels: Tensor,
    generator: torch.Generator,
) -> None:
    """Move the weights by AdamW."""
    gradient = torch.empty_like(weights)
    network, slopes, adam = _layers(weights, sizes), _layers(gradient, sizes), _AdamW(weights)
    for rows in _batches(len(inputs), generator):
        _differentiate(network, inputs[rows], labels[rows], slopes)
        adam.step(gradient)


def _batches(rows: int, generator: torch.Generator) -> Iterator[Tensor]:
    for _ in range(EPOCHS):
        yield from torch.split(torch.randperm(rows, generator=generator), BATCH)


def _differentiate(network: Layers, inputs: Tensor, labels: Tensor, slopes: Layers) -> None:
    """Write the mean cross-entropy's gradient into ``slopes``."""
    (first, first_bias), (second, second_bias), (third, third_bias) = network
    hidden = torch.addmm(first_bias, inputs, first.T).relu_()
    embedded = torch.addmm(second_bias, hidden, second.T)
    logits = torch.addmm(third_bias, embedded, third.T)
    by_logits = logits.softmax(dim=1)
    by_logits[torch.arange(len(labels)), labels] -= 1
    by_logits /= len(labels)
    by_embedded = by_logits @ third
    by_hidden = (by_embedded @ second).masked_fill_(hidden == 0, 0)
    inside, outside = (inputs, hidden, embedded), (by_hidden, by_embedded, by_logits)
    for before, after, (weight, bias) in zip(inside, outside, slopes, strict=True):
        torch.mm(after.T, before, out=weight)
        torch.sum(after, dim=0, out=bias)


class _AdamW:
    """AdamW with decoupled decay (Loshchilov and Hutter 2019) of one vector of weights."""

    def __init__(self, weights: Tensor) -> None:
        self.weights, self.steps = weights, 0
        self.mean, self.square, self.scale = torch.zeros(3, len(weights))

    def step(self, gradient: Tensor) -> None:
        """Move the weights once."""
        self.steps += 1
        slow, slower = _MOMENTS
        unbiased = math.sqrt(1 - slower**self.steps)
        rate = RATE * unbiased / (1 - slow**self.steps)
        self.mean.lerp_(gradient, 1 - slow)
        self.square.mul_(slower).addcmul_(gradient, gradient, value=1 - slower)
        torch.sqrt(self.square, out=self.scale).add_(_EPSILON * unbiased)
        self.weights.mul_(1 - RATE * DECAY).addcdiv_(self.mean, self.scale, value=-rate)
