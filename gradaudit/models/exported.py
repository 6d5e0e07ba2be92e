"""Turns ``torch.export`` archives into ordinary modules with parameters and both modes.

They are the user's code, as a factory is. ``torch.export.load`` reads pickles, compiles expressions
and runs any operator that the archive names, so an archive is only ever opened where ``--model``
names it by its suffix ``.pt2``.
"""

from __future__ import annotations

import math
import operator
import warnings
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph

from gradaudit.core.text import printable
from gradaudit.errors import AuditError, CheckpointError, UsageError, one_line
from gradaudit.models.exported_graph import as_layers, follow_the_run, keep_plain

REMEDY = "export the model and save it with torch.export.save again"

_NAMES: dict[str, Any] = {
    "torch": torch,
    "operator": operator,
    "math": math,
    "device": torch.device,
    "inf": math.inf,
    "nan": math.nan,
    "NoneType": NoneType,
}
"""Names that a graph's source may refer to."""


def load_exported(path: Path) -> ExportedModel:
    """Returns the model in a ``torch.export`` archive, with its weights, in training mode.

    The archive is the user's code and is run: ``torch.export.load`` reads it. Parameters keep
    their names and stand in modules that have the original's names and types' names, so layers,
    ``state_dict`` and checkpoints are the original's. Convolutions and fully connected layers are
    modules of ``torch.nn`` again (``as_layers``); other modules are not of the original
    types and only hold parameters.

    Raises:
        UsageError: there is no such file.
        CheckpointError: it is no archive, damaged, decomposed, branches, takes several inputs, or
            is fixed to batches of several records.
    """
    name = printable(str(path))
    if not path.is_file():
        raise UsageError(f"{name}: no such file; give an archive of torch.export.save")
    _expect_archive(path, name)
    doing = "torch.export.load cannot read it"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.load(path)
            doing = "its graph makes no module"
            return ExportedModel(program)
    except CheckpointError as error:
        raise CheckpointError(f"{name}: {error}") from error
    except Exception as error:
        what = printable(f"{type(error).__name__}: {error}".splitlines()[0])
        raise CheckpointError(f"{name}: {doing} ({what}); {REMEDY}") from error


def _expect_archive(path: Path, name: str) -> None:
    """Raise an error for other files before anything in them is run."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.namelist()
    except Exception as error:  # zipfile raises most of the built-in errors on damaged archives
        what = printable(one_line(error), 200)
        raise CheckpointError(f"{name}: cannot be read as a zip ({what}); {REMEDY}") from error
    if not any(entry.endswith("/archive_format") for entry in entries):
        raise CheckpointError(
            f"{name}: is no torch.export archive (weights go to --checkpoint); {REMEDY}"
        )


class ExportedModel(nn.Module):
    """Runs the graph of an exported program.

    In training mode dropout and batch norm run as in training, in eval mode as in eval, whichever
    mode was exported. A graph exported for one record runs any number, one after the other.
    Sizes other than the batch's are those of the export unless they were exported as dynamic.

    Attributes:
        input_shape: the exported input's sizes, None where dynamic; (batch, …).
    """

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        super().__init__()
        held = program.module(check_guards=False)
        graph = held.graph
        graph.set_codegen(torch.fx.graph.CodeGen())
        _hold(self, held, _types_of_modules(graph), {})
        self.input_shape = _input_shape(graph)
        keep_plain(graph)
        as_layers(self, graph)
        follow_the_run(graph, self.precision)
        self._source = graph.python_code("self").src

    @property
    def precision(self) -> torch.dtype:
        """Returns the dtype of the current weights, or torch's default without any."""
        return self._floating().dtype

    @property
    def place(self) -> torch.device:
        """Returns the device of the current weights, or the CPU without any."""
        return self._floating().device

    def forward(self, x: Tensor) -> Tensor:
        """Returns the first output for a batch.

        Raises:
            AuditError: the records' shape is not the exported one.
        """
        self._check(x)
        run = _compiled(self._source)
        if self.input_shape[0] == 1 and len(x) != 1:
            return torch.cat([run(self, record[None])[0] for record in x])
        return run(self, x)[0]  # type: ignore[no-any-return]

    def _floating(self) -> Tensor:
        held = (*self.parameters(), *self.buffers())
        return next((tensor for tensor in held if tensor.is_floating_point()), torch.empty(0))

    def _check(self, x: Tensor) -> None:
        exported, sizes = self.input_shape[1:], zip(self.input_shape[1:], x.shape[1:], strict=False)
        if len(exported) != x.dim() - 1 or any(size not in (None, given) for size, given in sizes):
            wanted = "x".join("any" if size is None else str(size) for size in exported)
            raise AuditError(
                f"the model was exported for records of shape {wanted or '(none)'}, these have "
                f"{'x'.join(map(str, x.shape[1:])) or '(none)'}"
            )


@cache
def _compiled(source: str) -> Callable[..., Any]:
    """Compiles a graph's ``forward`` from its source, as workers receive models as text."""
    names = dict(_NAMES)
    exec(source, names)
    return names["forward"]  # type: ignore[no-any-return]


def _input_shape(graph: Graph) -> tuple[int | None, ...]:
    """Returns the shape of the only input tensor; placeholders of constants are removed.

    Raises:
        CheckpointError: there is no such input, or more, or its batch is fixed to several records.
    """
    places = [node for node in graph.nodes if node.op == "placeholder"]
    records = [node for node in places if isinstance(node.meta.get("val"), Tensor)]
    for node in places:
        if node not in records and not node.users:
            graph.erase_node(node)
    if len(records) != 1:
        raise CheckpointError(
            f"takes {len(records)} input tensors; one tensor of records is needed"
        )
    shape = [size if isinstance(size, int) else None for size in records[0].meta["val"].shape]
    if not shape:
        raise CheckpointError("takes a single number, not a batch of records")
    if (shape[0] or 1) > 1:
        raise CheckpointError(
            f"is fixed to batches of exactly {shape[0]} records; export it for one record, or with "
            "dynamic_shapes={…: {0: torch.export.Dim('batch')}}"
        )
    return tuple(shape)


class OriginalModule(nn.Module):
    """A module of the original model; it holds parameters that the graph uses."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _part, (type(self).__name__,), self.__dict__


@cache
def _type(name: str) -> type[OriginalModule]:
    return type(name, (OriginalModule,), {"__doc__": OriginalModule.__doc__})


def _part(name: str) -> OriginalModule:
    return _type(name if name.isidentifier() else "Module")()


def _types_of_modules(graph: Graph) -> dict[str, str]:
    """Returns the original modules' types by name, as the graph's nodes record them."""
    types: dict[str, str] = {}
    for node in graph.nodes:
        for path, kind in node.meta.get("nn_module_stack", {}).values():
            types.setdefault(path.partition("@")[0], str(kind).rpartition(".")[2])
    return types


def _hold(
    into: nn.Module,
    held: nn.Module,
    types: Mapping[str, str],
    tied: dict[tuple[Any, ...], nn.Parameter],
    path: str = "",
) -> None:
    """Move the other's parameters, buffers and parts into a module, under their original types.

    Archives keep tied parameters as several that share their memory; they are made one again.
    Constants of the graph become buffers that a state dict leaves out.
    """
    for name, parameter in held._parameters.items():
        whole = parameter if parameter is None else tied.setdefault(_memory(parameter), parameter)
        into.register_parameter(name, whole)
    for name, buffer in held._buffers.items():
        persistent = name not in held._non_persistent_buffers_set
        into.register_buffer(name, buffer, persistent=persistent)
    for name, constant in vars(held).items():
        if isinstance(constant, Tensor):
            into.register_buffer(name, constant, persistent=False)
    for name, inner in held.named_children():
        part = _part(types.get(f"{path}{name}", "Module"))
        _hold(part, inner, types, tied, f"{path}{name}.")
        into.add_module(name, part)


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    where = tensor.data_ptr() or id(tensor)  # empty tensors lie nowhere
    return where, tensor.dtype, tuple(tensor.shape), tensor.stride()
