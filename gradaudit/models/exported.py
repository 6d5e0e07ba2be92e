"""Reads ``torch.export`` archives, which are the user's code, as a factory is.

``torch.export.load`` reads pickles, compiles expressions and runs any operator that the archive
names, so an archive is only ever opened where ``--model`` names it by its suffix ``.pt2``.
"""

import re
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

from gradaudit.core.text import printable
from gradaudit.errors import AuditError, CheckpointError, UsageError, one_line

REMEDY = "export the model and save it with torch.export.save again"
_DECOMPOSED = re.compile(r"aten::(_?native_batch_norm|cudnn_batch_norm|_?batch_norm_(no|with)_).*")
_MODES = ("training", "train")


def load_exported(path: Path) -> nn.Module:
    """Return the model in a ``torch.export`` archive, with its weights.

    The archive is the user's code and is run: ``torch.export.load`` reads it. Parameters keep their
    names; the modules that hold them have no kinds, and the graph runs in the mode of the export.

    Raises:
        UsageError: there is no such file.
        CheckpointError: it is no archive, damaged, decomposed, takes several inputs, or is fixed to
            a number of records.
    """
    name = printable(str(path))
    if not path.is_file():
        raise UsageError(f"{name}: no such file; give an archive of torch.export.save")
    _expect_archive(path, name)
    try:
        with warnings.catch_warnings(action="ignore"):
            held = torch.export.load(path).module(check_guards=False)
            model = GraphModule(held, held.graph)
    except Exception as error:
        what = printable(f"{type(error).__name__}: {error}".splitlines()[0])
        raise CheckpointError(
            f"{name}: torch.export.load cannot read it ({what}); {REMEDY}"
        ) from error
    for node in model.graph.nodes:
        if _DECOMPOSED.fullmatch(_operator(node)):
            raise CheckpointError(
                f"{name}: its graph is decomposed ({printable(_operator(node))}) and does not say "
                "whether it trains; save the export before run_decompositions()"
            )
    shapes = _input_shapes(model.graph)
    if len(shapes) != 1:
        raise CheckpointError(
            f"{name}: takes {len(shapes)} input tensors; one tensor of records is needed"
        )
    if not shapes[0] or shapes[0][0] is not None:
        raise CheckpointError(
            f"{name}: is fixed to inputs of shape {shapes[0]}; export it for any number of "
            "records, with dynamic_shapes={…: {0: torch.export.Dim('batch')}}"
        )
    _tie(model)
    return model


def expect_as_exported(model: nn.Module, mode: str, inputs: Tensor) -> None:
    """Raise an error where an exported model is to run in another mode, or on other inputs.

    Raises:
        UsageError: the graph was exported in the other mode.
        AuditError: it was exported for records of another shape.
    """
    graph = model.graph if isinstance(model, GraphModule) else Graph()
    others = {training for training in _training(graph) if training != (mode == "train")}
    if others:
        made = "train" if mode == "eval" else "eval"
        raise UsageError(
            f"--mode {mode}: the model was exported in {made} mode; say --mode {made}, or export "
            f"it after model.{mode}()"
        )
    for shape in _input_shapes(graph):
        sizes = zip(shape[1:], inputs.shape[1:], strict=False)
        if len(shape) != inputs.dim() or any(size not in (None, given) for size, given in sizes):
            wanted = "x".join("any" if size is None else str(size) for size in shape[1:])
            raise AuditError(
                f"the model was exported for records of shape {wanted or '(none)'}, these have "
                f"{'x'.join(map(str, inputs.shape[1:])) or '(none)'}"
            )


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


def _operator(node: Node) -> str:
    """Return ``aten::NAME`` of an operator; empty for anything else."""
    return node.target._schema.name if isinstance(node.target, OpOverload) else ""


def _training(graph: Graph) -> Iterator[bool]:
    """Return in which mode each operator that differs was exported."""
    for node in graph.nodes:
        if isinstance(node.target, OpOverload):
            names = (argument.name for argument in node.target._schema.arguments)
            given = dict(zip(names, node.args, strict=False)) | node.kwargs
            yield from (bool(value) for key, value in given.items() if key in _MODES)
            if given.get("dropout_p"):
                yield True


def _input_shapes(graph: Graph) -> list[tuple[int | None, ...]]:
    """Return the sizes of the input tensors, None where they are dynamic."""
    values = [node.meta.get("val") for node in graph.nodes if node.op == "placeholder"]
    return [
        tuple(size if isinstance(size, int) else None for size in value.shape)
        for value in values
        if isinstance(value, Tensor)
    ]


def _tie(model: nn.Module) -> None:
    """Make tied parameters one again, which archives keep as several that share their memory."""
    known: dict[tuple[Any, ...], nn.Parameter] = {}
    for part in model.modules():
        for name, parameter in part.named_parameters(recurse=False):
            where = parameter.data_ptr() or id(parameter)  # empty tensors lie nowhere
            key = where, parameter.dtype, tuple(parameter.shape), parameter.stride()
            setattr(part, name, known.setdefault(key, parameter))
