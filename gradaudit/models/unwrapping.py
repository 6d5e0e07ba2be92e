"""Takes off what wraps a model without changing its gradients."""

import copy
from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

_COMPILED, _INSIDE = "OptimizedModule", "_orig_mod"
"""Class of compiled models, and the prefix of the inner model in their state dict."""


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
