"""Jacobians of gradients the slow and obvious way, one element of the gradient after the other."""

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
        rows = [_row(element, moving[0]) for element in elements]
    return elements.detach(), torch.stack(rows)


def _row(element: Tensor, moving: Tensor) -> Tensor:
    if not element.requires_grad:
        return torch.zeros(moving.numel(), dtype=torch.float64)
    (row,) = torch.autograd.grad(element, moving, retain_graph=True, materialize_grads=True)
    return row.flatten()


def _move_first_embedding(model: nn.Module, moving: list[Tensor]) -> None:
    def move(module: nn.Module, args: object, out: Tensor) -> Tensor:
        if not moving:
            moving.append(torch.zeros_like(out, requires_grad=True))
        return out + moving[0]

    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(move)
            return
