"""An exported graph as an ordinary module: named parameters, train and eval, any engine."""

from collections.abc import Collection, Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradaudit.errors import AuditError, CheckpointError, UsageError
from gradaudit.loading.checkpoint.kinds import describe
from gradaudit.loading.exported.archive import Archive, read_archive, telling_damage
from gradaudit.loading.exported.graph import DEVICE, DTYPE, TRAINING, decode, steps_of
from gradaudit.loading.exported.layers import MODEL, as_layers
from gradaudit.text import printable


def load_exported(path: Path) -> "ExportedModel":
    """The model in a ``torch.export`` archive, with the weights it brings, in training mode.

    Parameters keep their names and stand in modules that have the original's names and types'
    names, so layers, ``state_dict`` and checkpoints are the original's. Convolutions and fully
    connected layers are modules of ``torch.nn`` again (``layers.as_layers``); other modules are
    not of the original types and only hold parameters.

    Raises:
        UsageError: there is no such file.
        CheckpointError: the archive is damaged, holds pickles, runs operators that may not run,
            is decomposed, takes several inputs, or is fixed to batches of several records.
    """
    if not path.is_file():
        raise UsageError(f"{describe(path)}: no such file; give an archive of torch.export.save")
    archive = read_archive(path)
    with telling_damage(path):
        try:
            return ExportedModel(archive)
        except CheckpointError as error:
            raise CheckpointError(f"{describe(path)}: {printable(str(error), 1000)}") from error


class ExportedModel(nn.Module):
    """Runs an exported graph.

    In training mode dropout and batch norm run as in training, in eval mode as in eval, whichever
    mode was exported. A graph exported for one record runs any number, one after the other.
    Sizes other than the batch's are those of the export unless they were exported as dynamic.

    Attributes:
        input_shape: the exported input's sizes, None where dynamic; (batch, …).
    """

    def __init__(self, archive: Archive) -> None:
        super().__init__()
        graph = archive.program["graph_module"]["graph"]
        signature = archive.program["graph_module"]["signature"]
        tensors = archive.weights | archive.constants
        types = _types_of_modules(graph["nodes"])
        for name, tensor in tensors.items():
            self._hold(name, tensor, types, persistent=name in archive.weights)
        self._sources, self._constants, self._input = _inputs(signature["input_specs"], tensors)
        self._output = _output(signature["output_specs"])
        precision = next((t.dtype for t in tensors.values() if t.is_floating_point()), None)
        self._steps = as_layers(self, steps_of(graph, precision), self._sources)
        sizes = graph["tensor_values"][self._input]["sizes"]
        self.input_shape = tuple(size.get("as_int") for size in sizes)
        if not self.input_shape:
            raise CheckpointError("takes a single number, not a batch of records")
        if (self.input_shape[0] or 1) > 1:
            raise CheckpointError(
                f"is fixed to batches of exactly {self.input_shape[0]} records; export it for one "
                "record, or with dynamic_shapes={…: {0: torch.export.Dim('batch')}}"
            )

    def forward(self, x: Tensor) -> Tensor:
        """The first output for a batch.

        Raises:
            AuditError: the records' shape is not the exported one.
        """
        self._check(x)
        if self.input_shape[0] == 1 and len(x) != 1:
            return torch.cat([self._run(record[None]) for record in x])
        return self._run(x)

    def _run(self, x: Tensor) -> Tensor:
        held = {name: attrgetter(source)(self) for name, source in self._sources.items()}
        floating = [t.dtype for t in held.values() if t.is_floating_point()]
        values: dict[str, Any] = {**held, **self._constants, self._input: x}
        values[DTYPE.name] = floating[0] if floating else x.dtype
        values[DEVICE.name] = x.device
        values[TRAINING.name] = self.training
        values[MODEL.name] = self
        for step in self._steps:
            if self.training or not _counts(held.get(step.writes_to)):
                step(values)
            else:
                values[step.outputs] = values[step.writes_to]
        return values[self._output]  # type: ignore[no-any-return]

    def _check(self, x: Tensor) -> None:
        exported = self.input_shape[1:]
        fits = len(exported) == x.dim() - 1 and all(
            size in (None, given) for size, given in zip(exported, x.shape[1:], strict=True)
        )
        if not fits:
            wanted = "x".join("any" if size is None else str(size) for size in exported)
            raise AuditError(
                f"the model was exported for records of shape {wanted or '(none)'}, these have "
                f"{'x'.join(map(str, x.shape[1:])) or '(none)'}"
            )

    def _hold(
        self, name: str, tensor: Tensor, types: Mapping[str, str], *, persistent: bool
    ) -> None:
        *path, last = name.split(".")
        module: nn.Module = self
        for depth, part in enumerate(path, 1):
            if part not in module._modules:
                module.add_module(part, _part(types.get(".".join(path[:depth]), "Module")))
            module = module._modules[part]  # type: ignore[assignment]
        if isinstance(tensor, nn.Parameter):
            module.register_parameter(last, tensor)
        else:
            module.register_buffer(last, tensor, persistent=persistent)


def _counts(written: Tensor | None) -> bool:
    """Whether it is a counter of batches, which an exported training step adds to."""
    return written is not None and not written.is_floating_point()


class Part(nn.Module):
    """A module of the original model; it holds parameters, and the graph uses them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _part, (type(self).__name__,), self.__dict__


@cache
def _type(name: str) -> type[Part]:
    return type(name, (Part,), {"__doc__": Part.__doc__})


def _part(name: str) -> Part:
    return _type(name if name.isidentifier() else "Module")()


def _types_of_modules(nodes: list[dict[str, Any]]) -> dict[str, str]:
    """The original module's type by its name, from the nodes' ``key,path,type;…`` records."""
    types: dict[str, str] = {}
    for node in nodes:
        for record in node["metadata"].get("nn_module_stack", "").split(";"):
            _, _, where = record.partition(",")
            path, _, kind = where.rpartition(",")
            types.setdefault(path.partition("@")[0], kind.rpartition(".")[2])
    return types


def _inputs(
    specs: list[dict[str, Any]], tensors: Collection[str]
) -> tuple[dict[str, str], dict[str, Any], str]:
    """Graph inputs: those from parameters and buffers, the constant ones, and the record's."""
    sources: dict[str, str] = {}
    constants: dict[str, Any] = {}
    records: list[str] = []
    for kind, spec in (next(iter(spec.items())) for spec in specs):
        if kind in ("parameter", "buffer", "tensor_constant"):
            sources[spec["arg"]["name"]] = _known(spec[f"{kind}_name"], tensors)
        elif kind == "constant_input":
            constants[spec["name"]] = decode(spec["value"], None)
        elif kind == "user_input" and "as_tensor" in spec["arg"]:
            records.append(spec["arg"]["as_tensor"]["name"])
        else:
            raise CheckpointError(f"takes an input of kind {kind}, which cannot be given")
    if len(records) != 1:
        raise CheckpointError(
            f"takes {len(records)} input tensors; one tensor of records is needed"
        )
    return sources, constants, records[0]


def _known(name: str, tensors: Collection[str]) -> str:
    if name not in tensors:
        raise ValueError(f"there is no tensor {name}")
    return name


def _output(specs: list[dict[str, Any]]) -> str:
    if any("user_output" not in spec for spec in specs):
        raise CheckpointError(
            "is decomposed (it returns what it would write to its buffers); save the export "
            "before run_decompositions()"
        )
    if not specs or "as_tensor" not in specs[0]["user_output"]["arg"]:
        raise CheckpointError("does not return a tensor first")
    return specs[0]["user_output"]["arg"]["as_tensor"]["name"]  # type: ignore[no-any-return]
