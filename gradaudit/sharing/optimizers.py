"""Optimizer steps as plain functions of gradients, which attacks differentiate.

Each begins anew in every round, as clients do that keep nothing between rounds.
"""

from typing import Literal, Protocol

import torch
from torch import Tensor

Update = dict[str, Tensor]
OptimizerName = Literal["sgd", "adam"]


class Optimizer(Protocol):
    """One client's optimizer in one round."""

    def directions(self, gradients: Update) -> Update:
        """What the weights move along, against it, by one learning rate."""


class Momentum:
    """b_t = μ b_{t−1} + g_t, with b_1 = g_1: SGD where μ is 0 (``torch.optim.SGD``)."""

    def __init__(self, momentum: float) -> None:
        self._momentum = momentum
        self._kept: Update = {}

    def directions(self, gradients: Update) -> Update:
        """b_t."""
        kept = self._kept if self._momentum else {}
        self._kept = {
            name: g + self._momentum * kept[name] if name in kept else g
            for name, g in gradients.items()
        }
        return self._kept


_FIRST, _SECOND, _LEAST = 0.9, 0.999, 1e-8


class Adam:
    """m̂_t / (√v̂_t + ε) with β₁ = 0.9, β₂ = 0.999 and ε = 1e-8 (``torch.optim.Adam``).

    Source: D. Kingma and J. Ba, "Adam: A method for stochastic optimization" (2015), algorithm 1.
    """

    def __init__(self) -> None:
        self._step = 0
        self._means: Update = {}
        self._squares: Update = {}

    def directions(self, gradients: Update) -> Update:
        """m̂_t / (√v̂_t + ε)."""
        self._step += 1
        self._means = _averaged(self._means, gradients, _FIRST)
        squared = {name: g.square() for name, g in gradients.items()}
        self._squares = _averaged(self._squares, squared, _SECOND)
        first, second = 1 - _FIRST**self._step, 1 - _SECOND**self._step
        return {
            name: mean / first / (_root(self._squares[name] / second) + _LEAST)
            for name, mean in self._means.items()
        }


def _averaged(kept: Update, new: Update, decay: float) -> Update:
    """Moving averages that begin at zero."""
    return {
        name: (1 - decay) * x + (decay * kept[name] if name in kept else 0.0)
        for name, x in new.items()
    }


def _root(squares: Tensor) -> Tensor:
    """√x, whose slope at 0 counts as 0: there a NaN would come of it, as 0 · ∞."""
    some = squares > 0
    return torch.where(some, torch.where(some, squares, 1.0).sqrt(), 0.0)


def new_optimizer(name: OptimizerName, momentum: float) -> Optimizer:
    """A client's optimizer at the beginning of its round."""
    return Adam() if name == "adam" else Momentum(momentum)
