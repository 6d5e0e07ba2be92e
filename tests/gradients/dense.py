"""Jacobians of gradients the obvious way: each element of the gradient differentiated backwards."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradaudit.models.target import Target


def jacobians(
    target: Target, record: Tensor, label: Tensor, names: Sequence[str], *, by: str = "input"
) -> tuple[Tensor, Tensor]:
    """One record's gradient by the named parameters, and its Jacobian.

    Args:
        target: the model; a copy of it is used.
        record: without the records' dimension.
        label: the record's class or target.
        names: parameters, whose elements are put one after the other.
        by: ``input`` (the first embedding's output where records are tokens) or ``label``.

    Returns:
        (elements,) and (elements, columns) in float64.
    """
    model = copy.deepcopy(target.model).double().train(target.mode == "train")
    parameters = dict(model.named_parameters())
    moving: list[Tensor] = []
    inputs = record[None]
    if by == "label":
        with torch.no_grad():
            outputs = model(inputs)
        moving.append(target.loss.soft(outputs, label[None]).clone().requires_grad_())
    elif record.is_floating_point():
        inputs = inputs.double().clone().requires_grad_()
        moving.append(inputs)
    else:
        _move_first_embedding(model, moving)
    with sdpa_kernel(SDPBackend.MATH):
        outputs = model(inputs)
        targets = moving[0] if by == "label" else label[None]
        loss = target.loss.per_record(outputs, targets)[0]
        gradients = torch.autograd.grad(
            loss, [parameters[name] for name in names], create_graph=True, materialize_grads=True
        )
        elements = torch.cat([gradient.flatten() for gradient in gradients])
        # Torch cannot batch the second derivative of a group norm.
        several = 1 if any(isinstance(m, nn.GroupNorm) for m in model.modules()) else 10_000
        rows = [_rows(some, elements, moving[0]) for some in _units(len(elements), several)]
    return elements.detach(), torch.cat(rows)


def _units(count: int, several: int) -> Sequence[Tensor]:
    return torch.eye(count, dtype=torch.float64).split(several)


def _rows(some: Tensor, elements: Tensor, moving: Tensor) -> Tensor:
    """(units, columns): the slopes of the elements that these unit vectors choose."""
    if not elements.requires_grad:
        return torch.zeros(len(some), moving.numel(), dtype=torch.float64)
    (rows,) = torch.autograd.grad(
        elements,
        moving,
        some if len(some) > 1 else some[0],
        retain_graph=True,
        materialize_grads=True,
        is_grads_batched=len(some) > 1,
    )
    return rows.reshape(len(some), -1)


def _move_first_embedding(model: nn.Module, moving: list[Tensor]) -> None:
    def move(module: nn.Module, args: object, out: Tensor) -> Tensor:
        if not moving:
            moving.append(torch.zeros_like(out, requires_grad=True))
        return out + moving[0]

    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(move)
            return
