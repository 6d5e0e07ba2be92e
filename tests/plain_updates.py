"""Shared updates the slow and obvious way: one batch after the other, in float64."""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradaudit.models.losses import Loss
from gradaudit.models.target import Layer

Array = NDArray[np.float64]
Update = dict[str, Array]


def gradient(model: nn.Module, loss: Loss, inputs: Tensor, labels: Tensor) -> Update:
    """The gradient of the mean loss by every trainable parameter, flattened."""
    model = copy.deepcopy(model)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    value = loss.per_record(model(inputs), labels).mean()
    found = torch.autograd.grad(value, list(parameters.values()), materialize_grads=True)
    return {n: g.flatten().numpy().copy() for n, g in zip(parameters, found, strict=True)}


def norm(update: Update) -> float:
    """Of the whole update."""
    return float(np.sqrt(sum(np.sum(part**2) for part in update.values())))


def times(update: Update, factor: float) -> Update:
    return {name: part * factor for name, part in update.items()}


def mean(updates: Sequence[Update]) -> Update:
    return {name: np.mean([update[name] for update in updates], axis=0) for name in updates[0]}


def clip(update: Update, bound: float) -> Update:
    return times(update, 1 / max(1.0, norm(update) / bound))


def prune(update: Update, share: float) -> Update:
    done = {}
    for name, part in update.items():
        order = np.argsort(np.abs(part), kind="stable")
        kept = part.copy()
        kept[order[: min(round(share * len(part)), len(part) - 1)]] = 0
        done[name] = kept
    return done


def selective(update: Update, share: float) -> Update:
    sizes = np.cumsum([len(part) for part in update.values()])[:-1]
    whole = np.concatenate(list(update.values()))
    order = np.argsort(np.abs(whole), kind="stable")
    whole[order[: len(whole) - max(1, round(share * len(whole)))]] = 0
    return dict(zip(update, np.split(whole, sizes), strict=True))


def of_layer(update: Update, layer: Layer) -> Array:
    return np.concatenate([update[name] for name in layer.parameter_names])
