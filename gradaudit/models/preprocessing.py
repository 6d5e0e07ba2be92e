"""Checks whether the records look like those that the model was trained on.

A model that is given bytes where it was trained on [0, 1], or whose columns are in another order,
runs all the same, and every number of its audit is about another model than the user's. What gives
it away: an accuracy below the one it is known to have, or no better than chance, and inputs of its
first batch normalisation that are unlike those it remembers.
"""

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradaudit.models.module_kinds import BATCH_NORMS
from gradaudit.models.target import Expected

_NORMS = (*BATCH_NORMS, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_SHIFT = 1.0
_SPREAD = 2.0
"""Limits from which on a batch normalisation's inputs differ from training: the mean's distance in
standard deviations (root mean square over channels), and the factor between spreads (geometric
mean). With a small net on digits, records like those of training have .01–.12 and 1.0, those in [0,
1] instead of standardised .2 and 2.5 at an accuracy of .91, bytes 10–190 and 16–260."""
_MOST_BYTES = 64 << 20
PROBABLY = "the preprocessing is then probably not the one the model was trained with"
_COMPILED, _INSIDE = "OptimizedModule", "_orig_mod"
"""Class of compiled models, and the prefix of the inner model in their state dict."""


def expected_of_run(checkpoint: Path) -> Expected | None:
    """Returns the accuracy in ``run.json`` beside a checkpoint, as ``train`` writes it.

    Of the one on its clients' records and the one on records that nobody trained on, the lower.
    None where there is no such file, or it does not speak of this checkpoint.
    """
    path = checkpoint.parent / "run.json"
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        rounds = json.loads(path.read_text())["rounds"]
        (scores,) = [(r["train"], r["test"]) for r in rounds if r["file"] == checkpoint.name]
        known = [float(score) for score in scores if isinstance(score, int | float)]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return Expected(min(known), "run.json beside its checkpoint") if known else None


class ChannelMoments:
    """Moments of the first batch normalisation's input, by channel.

    Attributes:
        name: of the module; empty before a call.
        moments: count, sum and sum of squares, (3, channels).
    """

    def __init__(self) -> None:
        self.name = ""
        self.moments = torch.zeros(3, 1, dtype=torch.float64)

    def add(self, name: str, values: Tensor) -> None:
        """Add a call's input, (batch, channels, …)."""
        if name != (self.name or name):
            return
        self.name = name
        flat = values.detach().double().cpu().transpose(0, 1).flatten(1)
        count = torch.full((len(flat),), float(flat.shape[1]), dtype=torch.float64)
        self.moments = self.moments + torch.stack([count, flat.sum(1), flat.square().sum(1)])

    def unlike(self, model: nn.Module) -> str | None:
        """Describe how inputs differ from the module's running statistics; empty if they do not."""
        if not self.name:
            return None
        module: Any = model.get_submodule(self.name)
        count, total, squares = self.moments
        mean, known = total / count, module.running_var.double().cpu() + module.eps
        variance = (squares / count - mean.square()).clamp_min(0) + module.eps
        shifts = (mean - module.running_mean.double().cpu()).square() / known
        shift = float(shifts.mean().sqrt())
        spread = float((variance / known).log().mean().div(2).exp())
        if shift <= _SHIFT and 1 / _SPREAD <= spread <= _SPREAD:
            return None
        return (
            f"what comes into its first batch normalisation ({self.name}) lies {shift:.2g} "
            f"standard deviations from what it saw in training, with {spread:.2g} times the "
            f"spread: {PROBABLY}"
        )


@contextmanager
def watching(model: nn.Module) -> Iterator[ChannelMoments]:
    """Watch batch normalisations with running statistics while the model is called."""
    seen = ChannelMoments()
    handles = [
        module.register_forward_pre_hook(lambda _, inputs, name=name: seen.add(name, inputs[0]))
        for name, module in model.named_modules()
        if isinstance(module, _NORMS) and module.num_batches_tracked
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def unwrapped(model: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """Returns the model in ``DataParallel``, ``DistributedDataParallel`` and ``torch.compile``.

    Gradients are the same without them; compiled code is made anew for every shape and transform.

    Returns:
        The model, or a copy where it holds tensors that cannot be copied later (those that
        ``nn.utils.weight_norm`` and ``spectral_norm`` compute of others); and what was taken off.
    """
    taken: list[str] = []
    while (inside := _inside(model)) is not None:
        name = "torch.compile" if type(model).__name__ == _COMPILED else type(model).__name__
        taken.append(f"without {name}: its gradients are the same")
        model = inside
    computed = dict(_computed(model))
    if computed:
        model = copy.deepcopy(model, dict(computed))
    return model, tuple(taken)


def _inside(model: nn.Module) -> nn.Module | None:
    if isinstance(model, nn.DataParallel | DistributedDataParallel):
        module: nn.Module = model.module
        return module
    return dict(model.named_children()).get(_INSIDE) if type(model).__name__ == _COMPILED else None


def _computed(model: nn.Module) -> Iterator[tuple[int, Tensor]]:
    """Returns copies of the tensors that each call of the model computes anew, by identity."""
    for part in model.modules():
        for value in vars(part).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                yield id(value), value.detach().clone()
