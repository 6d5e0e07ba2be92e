"""A small model with BatchNorm, and clients that train it."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

CLASSES = 4


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 16), nn.BatchNorm1d(16), nn.Linear(16, CLASSES)
    )


def records(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return (
        torch.randn(count, 12, generator=draws),
        torch.randint(CLASSES, (count,), generator=draws),
    )


def state_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def train(module: nn.Module, count: int = 3, steps: int = 1, seed: int = 0) -> nn.Module:
    """Steps of SGD on all records at once, in training mode."""
    inputs, labels = records(count, seed)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(inputs), labels).backward()
        optimiser.step()
    return module


def trained(state: Mapping[str, Tensor], count: int = 3, seed: int = 0) -> dict[str, Tensor]:
    """A client's state after training from another."""
    client = model()
    client.load_state_dict(dict(state))
    return state_of(train(client, count, seed=seed))
