"""What every layer of a target gives out for every record, without changing the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gradaudit.errors import AuditError, NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.memory import peak_bytes
from gradaudit.models.target import Layer, Target

_TRIAL = 2


@dataclass(frozen=True)
class Activations:
    """Activations of records in chunks, all layers in one run of the model.

    A layer's activations are the output of its module, flattened; where the module itself is never
    called (attention's projections, exported graphs), that of the function its parameters are given
    to; where it is used several times, all outputs side by side in the order of the calls.

    Attributes:
        view: the model as a pure function.
        layers: whose activations are wanted.
        inputs: (records, …).
        widths: elements of each layer that has activations, by name.
        chunk: records that run through the model at once.
    """

    view: FunctionalModel
    layers: tuple[Layer, ...]
    inputs: Tensor
    widths: Mapping[str, int]
    chunk: int

    @classmethod
    def of(
        cls, target: Target, layers: Sequence[Layer], inputs: Tensor, labels: Tensor, memory: int
    ) -> Activations:
        """Look at two records to see what there is, and how many fit into memory.

        Raises:
            AuditError: the model cannot be run on the records.
            NotApplicable: records have no activations of their own.
        """
        view = FunctionalModel.of(target)
        trial = view.cast(inputs[:_TRIAL])
        view.check(trial, view.cast(labels[:_TRIAL]))
        _expect_own_activations(view, trial)
        alone = [_run(view, layers, record[None]) for record in trial]
        widths = {name: values.shape[1] for name, values in alone[0].items()}
        together = _run(view, layers, trial)
        chunk = 1
        if all(
            _agree(together.get(name), [outputs.get(name) for outputs in alone]) for name in widths
        ):
            runs = [partial(_run, view, layers, trial[:count]) for count in (1, _TRIAL)]
            one, two = map(peak_bytes, runs)
            chunk = max(1, 1 + (memory // 2 - one) // max(1, two - one))
        return cls(view, tuple(layers), inputs, widths, chunk)

    def stream(self, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
        """(chunk, elements) of the named layers, chunk by chunk.

        Raises:
            AuditError: a record gives another number of activations than the first one.
        """
        layers = [layer for layer in self.layers if layer.name in names]
        for start in range(0, len(self.inputs), self.chunk):
            records = self.view.cast(self.inputs[start : start + self.chunk])
            outputs = _run(self.view, layers, records)
            for name in names:
                if name not in outputs or outputs[name].shape[1] != self.widths[name]:
                    raise AuditError(f"{name} gives other numbers of activations to other records")
            yield outputs


def _expect_own_activations(view: FunctionalModel, records: Tensor) -> None:
    reason = view.coupling(records)
    if reason is None and view.stochastic(records):
        reason = "they are drawn at random (dropout)"
    if reason:
        raise NotApplicable(f"records have no activations of their own: {reason}; use --mode eval")


def _agree(together: Tensor | None, alone: list[Tensor | None]) -> bool:
    """Whether a batch's activations are those of its records, in the order of the records."""
    single = [output for output in alone if output is not None]
    if together is None or len(single) < len(alone) or len({output.shape for output in single}) > 1:
        return False
    expected = torch.cat(single)
    tolerance = torch.finfo(expected.dtype).eps ** 0.5
    return together.shape == expected.shape and torch.allclose(
        together, expected, rtol=tolerance, atol=tolerance, equal_nan=True
    )


def _run(view: FunctionalModel, layers: Sequence[Layer], records: Tensor) -> dict[str, Tensor]:
    """Every layer's activations (records, elements), by name, of those that have any."""
    owners = {
        id(view.parameters[name]): layer.name for layer in layers for name in layer.parameter_names
    }
    uses = _Uses(owners)
    with torch.no_grad(), _watching(view.module, layers) as called, uses:
        view.outputs({}, records)
    outputs = {layer.name: called[layer.name] or uses.outputs[layer.name] for layer in layers}
    return {
        name: torch.cat([output.reshape(len(records), -1) for output in value], dim=1)
        for name, value in outputs.items()
        if value and all(output.numel() % len(records) == 0 for output in value)
    }


@contextmanager
def _watching(module: nn.Module, layers: Iterable[Layer]) -> Iterator[dict[str, list[Tensor]]]:
    """Keep copies of what the layers' modules give out, as long as the context lasts."""
    kept: dict[str, list[Tensor]] = {layer.name: [] for layer in layers}

    def keep(name: str, given: Sequence[Any], output: Any) -> None:
        tensor = _first_tensor(output)
        if tensor is not None and _first_tensor(given) is not None:
            kept[name].append(tensor.clone())

    handles = []
    try:
        for name in kept:
            part = module.get_submodule("" if name == "(model)" else name)
            hook = part.register_forward_hook(
                lambda _, args, kwargs, out, name=name: keep(name, [*args, *kwargs.values()], out),
                with_kwargs=True,
            )
            handles.append(hook)
        yield kept
    finally:
        for handle in handles:
            handle.remove()


class _Uses(TorchFunctionMode):
    """Keeps what functions make of layers' parameters and something else.

    Args:
        owners: a layer's name by the identity of each of its parameters.
    """

    def __init__(self, owners: Mapping[int, str]) -> None:
        super().__init__()
        self._owners = owners
        self.outputs: dict[str, list[Tensor]] = {name: [] for name in owners.values()}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        used = {self._owners[id(x)] for x in given if id(x) in self._owners}
        tensor = _first_tensor(output)
        if used and tensor is not None and any(id(x) not in self._owners for x in given):
            for name in used:
                self.outputs[name].append(tensor.clone())
        return output


def _first_tensor(output: Any) -> Tensor | None:
    """The first floating tensor in what a module or function took or gave."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, (tuple, list)):
        return next((x for x in map(_first_tensor, output) if x is not None), None)
    return None
