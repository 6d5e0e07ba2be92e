"""The parts of records that come one by one, or batch by batch, from a data set of the user's.

An item is a pair (input, label), a triple with the private attribute as the third (one value, or a
mapping of several), or a mapping: of these parts by name, where an array (a mask, a second picture)
that is left is one more input of the model, and a single value an attribute. An input may be a
mapping itself, of the model's arguments. Where the model takes several arguments, or ``inputs=N``
is said, as many parts of a tuple are inputs, and the label is behind them.

Without labels (``labels=none``) every array of an item is an input of the model: an array alone,
several in a pair or a triplet, or those of a mapping; a single value beside them is an attribute.

What has no length (an iterable data set, a loader of one) is a stream, which may have no end: the
first of its records are taken.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import JsonValue
from torch.utils.data import DataLoader, IterableDataset

from gradaudit.core.text import first_line, listed
from gradaudit.data.common.checks import MAX_BYTES
from gradaudit.errors import DataError

INPUTS = ("inputs", "input", "image", "img", "pixel_values", "x", "input_ids", "features")
LABELS = ("labels", "label", "y", "target", "targets")
USERS = ("users", "user")
MEMBERS = ("members", "member")
SPAN = ("start_positions", "end_positions")
"""What transformers calls the two labels of a question: where the answer begins and ends."""
ATTRIBUTE = "attribute"
"""What the third of a triple is called."""

NAME_THEM = "give several inputs by name, as a mapping of the model's arguments"
NO_LABELS = "of records without labels say labels=none"
"""The remedy where inputs have no names."""

STREAMED, STREAMED_BYTES = 10_000, 1 << 30
"""Records, and their bytes, that are taken of a stream where no number is asked for."""

Item = Mapping[str, Any]


@dataclass(frozen=True)
class ItemLayout:
    """The options and the model's facts that decide what the parts of an item are.

    Attributes:
        unlabelled: whether there are no labels, so that all arrays are inputs.
        inputs: how many parts of a tuple are inputs; the model decides where it is not given.
        takes: how many arguments the model takes by position, at least and at most, where known.
        records: how many are taken at most.
    """

    unlabelled: bool = False
    inputs: int | None = None
    records: int | None = None
    takes: tuple[int, int] | None = None

    def inputs_of(self, item: Sequence[Any], origin: str) -> int:
        """Returns the number of parts of a tuple that are inputs.

        Raises:
            DataError: both one and two may be.
        """
        least, most = self.takes or (1, 1)
        if self.inputs is not None:
            return self.inputs
        if len(item) < 3 or isinstance(item[0], Mapping):
            return 1
        if least > 1:
            return least
        if most > 1 and _is_array(item[1]):
            raise DataError(
                f"{origin} has {len(item)} parts, and the model takes one argument or more: say "
                f"inputs=2 in --data where the first two are inputs, inputs=1 where the second is "
                f"the label; or {NAME_THEM}"
            )
        return 1


def is_data_set(returned: object) -> bool:
    """Whether an object gives items: a loader, an indexed data set with a length, or a stream."""
    if isinstance(returned, (np.ndarray, torch.Tensor, str, bytes, Mapping)):
        return False
    return _has_places(returned) or isinstance(returned, Iterable)


def _has_places(returned: object) -> bool:
    given = hasattr(returned, "__len__") and hasattr(returned, "__getitem__")
    return given and not isinstance(returned, IterableDataset)


def expect_no_graph(item: object, origin: str) -> None:
    """Refuse a graph, or a tuple that begins with one, as PyTorch Geometric gives them.

    A record's gradient is computed beside that of others (``vmap``), which takes arrays of one
    shape, and layers on lists of edges have none.

    Raises:
        DataError: it is one; the message says in which form graphs are given.
    """
    graph = item[0] if isinstance(item, (tuple, list)) and item else item
    if not any(hasattr(graph, name) for name in ("edge_index", "edge_index_dict")):
        return
    parts: list[Any] = [getattr(graph, name, None) for name in ("x", "y")]
    nodes, labels = (np.shape(part)[:1] for part in parts)
    of_nodes = bool(nodes) and nodes == labels and not hasattr(graph, "ptr")
    raise DataError(
        f"{origin} has a graph with a list of edges; give graphs as dense arrays by name, inputs "
        "{'x': (graphs, nodes, features), 'adj': (graphs, nodes, nodes), 'mask': (graphs, nodes)} "
        "of torch_geometric.utils' to_dense_batch and to_dense_adj, to a model of dense layers; "
        + (
            "one graph is one record, its nodes couple: labels are (graphs, nodes), -100 for none"
            if of_nodes
            else "one graph is one record"
        )
    )


def columns_of(
    returned: Any, origin: str, layout: ItemLayout = ItemLayout()
) -> tuple[dict[str, list[Any]], dict[str, JsonValue]]:
    """The parts ``inputs``, ``labels``, ``users``, ``members`` and attributes by name; and a note.

    A data set is read once, from its first item to its last, a loader batch by batch; what these
    draw from torch is drawn under seed 0. Where ``layout`` says so there are no ``labels``. Of a
    stream the first records are taken, at most 10,000 and about 1 GiB where no number is said; the
    note says how many, where there are more.

    Raises:
        DataError: there are no items, one is no pair, triple or mapping, or they are too many.
    """
    columns: dict[str, list[Any]] = {}
    size, named = 0, _inputs_alone if layout.unlabelled else partial(_named, layout)
    source = returned.dataset if isinstance(returned, DataLoader) else returned
    free = layout.records is None and not _has_places(source)
    most = STREAMED if free else layout.records
    notes: dict[str, JsonValue] = {}
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        for index, item in enumerate(_items(returned, origin)):
            if index == most or (free and size > STREAMED_BYTES):
                notes["first_records"] = index
                break
            for name, value in named(item, f"{origin}: item {index}").items():
                columns.setdefault(name, []).append(value)
                size += _bytes(value)
            if size > MAX_BYTES:
                raise DataError(
                    f"{origin}: gives over {MAX_BYTES >> 30} GiB ({index + 1} items); limit it"
                )
    if not columns:
        raise DataError(f"{origin}: is empty")
    counts = {name: len(values) for name, values in columns.items()}
    if len(set(counts.values())) > 1:
        short = min(counts, key=lambda name: counts[name])
        raise DataError(f"{origin}: {short!r} is missing in some items; give it in all or in none")
    return columns, notes


def _bytes(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(map(_bytes, value.values()))
    if isinstance(value, Image.Image):
        return value.width * value.height * len(value.getbands())
    return int(getattr(value, "nbytes", 0))


def _items(returned: Any, origin: str) -> Iterator[object]:
    if isinstance(returned, DataLoader):
        for index, batch in enumerate(returned):
            expect_no_graph(batch, f"{origin}: batch {index}")
            yield from _unbatched(batch, f"{origin}: batch {index}")
    elif _has_places(returned):
        yield from (returned[index] for index in range(len(returned)))
    else:
        yield from returned


def _unbatched(batch: object, origin: str) -> Iterator[object]:
    """The items of a batch: a tuple, list or mapping of parts that are batches themselves."""
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if not isinstance(parts, Iterable) or isinstance(parts, (torch.Tensor, np.ndarray, str)):
        raise DataError(
            f"{origin} is {type(batch).__name__}; a pair (inputs, labels), a triple or a "
            "mapping is needed"
        )
    parts = list(parts)
    columns = [_split(part) for part in parts]
    if _put_together(parts) and any(map(_is_ambiguous, columns)):
        raise DataError(
            f"{origin}: a list of {len(columns[0])} arrays of as many rows is as many records or "
            f"inputs; {NAME_THEM}, or take another batch size"
        )
    if len({len(column) for column in columns}) > 1:
        raise DataError(
            f"{origin}: its parts are of {listed([str(len(c)) for c in columns])} records; give "
            "tensors in the items, for lists are turned over, and inputs by name in a mapping"
        )
    for values in zip(*columns, strict=True):
        yield dict(zip(batch, values, strict=True)) if isinstance(batch, Mapping) else values


def _put_together(parts: Iterable[object]) -> bool:
    """Whether records may have been made arrays of: values in a list are of one record each."""
    return not any(isinstance(part, list) and not are_arrays(part) for part in parts)


def _is_ambiguous(column: Sequence[Any]) -> bool:
    """Whether arrays may be records or inputs; a tuple has records, as ``zip`` gives them."""
    square = are_arrays(column) and all(_rows(one) == (len(column),) for one in column)
    return square and type(column) is not tuple


def _split(part: Any) -> Sequence[Any]:
    """A part of a batch by record."""
    if isinstance(part, Mapping):
        values = zip(*map(_split, part.values()), strict=True)
        return [dict(zip(part, row, strict=True)) for row in values]
    return part  # type: ignore[no-any-return]


def _named(layout: ItemLayout, item: object, origin: str) -> Item:
    """Returns an item's parts by name."""
    expect_no_graph(item, origin)
    if isinstance(item, Mapping):
        return _of_mapping(item, origin)
    parts = list(item) if isinstance(item, (tuple, list)) else []
    count = layout.inputs_of(parts, origin)
    if len(parts) - count not in (1, 2):
        many = f" of {len(parts)}" if isinstance(item, (tuple, list)) else ""
        needed = "a pair (input, label), a triple with an attribute, or a mapping"
        if count > 1:
            needed = f"{count} inputs and a label, with an attribute or without, or a mapping"
        raise DataError(f"{origin} is {type(item).__name__}{many}; {needed} is needed; {NO_LABELS}")
    triple = count == 1 and len(parts) == 3 and _is_array(parts[2])
    if triple and np.shape(parts[2]) == np.shape(parts[0]):
        raise DataError(
            f"{origin} has a third part of the input's shape {tuple(np.shape(parts[2]))}, which is "
            f"no attribute; {NO_LABELS}, and the three are inputs, as a triplet's; say inputs=2 "
            f"where the third is the label of two inputs; else {NAME_THEM}"
        )
    inputs = parts[0] if count == 1 else {str(place): parts[place] for place in range(count)}
    behind = parts[count + 1] if len(parts) > count + 1 else {}
    attributes = behind if isinstance(behind, Mapping) else {ATTRIBUTE: behind}
    named = {str(name): value for name, value in attributes.items()}
    return {**named, "inputs": inputs, "labels": parts[count]}


def _inputs_alone(item: object, origin: str) -> Item:
    """The parts of an item without a label."""
    expect_no_graph(item, origin)
    if isinstance(item, Mapping):
        label = next((key for key in LABELS if key in item), None)
        if label is not None:
            raise DataError(f"{origin} has a label, {label!r}; leave out labels=none")
        return _of_mapping(item, origin, unlabelled=True)
    if not isinstance(item, (tuple, list)):
        return {"inputs": item}
    flat = [part for one in item for part in (one if are_arrays(one) else [one])]
    arrays = [part for part in flat if _is_array(part)]
    values = [part for part in flat if not _is_array(part)]
    if not arrays or len(values) > 1:
        raise DataError(
            f"{origin} has {len(arrays)} arrays and {len(values)} single values; without labels "
            "arrays are inputs, and one value beside them is an attribute"
        )
    inputs = arrays[0] if len(arrays) == 1 else {str(k): one for k, one in enumerate(arrays)}
    return {"inputs": inputs, **({ATTRIBUTE: values[0]} if values else {})}


def _of_mapping(item: Mapping[Any, Any], origin: str, *, unlabelled: bool = False) -> Item:
    if not unlabelled and all(name in item for name in SPAN) and item.keys().isdisjoint(LABELS):
        rest = {name: value for name, value in item.items() if name not in SPAN}
        item = {**rest, LABELS[0]: np.array([int(item[name]) for name in SPAN])}
    parts = {"inputs": INPUTS, "labels": LABELS, "users": USERS, "members": MEMBERS}
    keys = {
        part: next((key for key in names if key in item), None) for part, names in parts.items()
    }
    if keys["inputs"] is None or (keys["labels"] is None and not unlabelled):
        raise DataError(
            f"{origin} has {', '.join(map(str, item))}; an input ({', '.join(INPUTS)}) and a "
            f"label ({', '.join(LABELS)}) are needed, each by one of these names; {NO_LABELS}"
        )
    taken = {key: part for part, key in keys.items() if key is not None}
    nested = item.get("attributes", {})
    rest = {k: v for k, v in item.items() if k not in taken and k != "attributes"}
    named = {taken[key]: item[key] for key in taken}
    beside = {k: v for k, v in rest.items() if _is_array(v)}
    if beside:
        first = named["inputs"]
        known = first if isinstance(first, Mapping) else {keys["inputs"]: first}
        named["inputs"] = {**known, **beside}
    single = {k: v for k, v in rest.items() if k not in beside}
    return {**{str(k): v for k, v in {**single, **dict(nested)}.items()}, **named}


def _is_array(value: object) -> bool:
    """Whether an object holds more than one value."""
    return isinstance(value, (list, tuple, Image.Image)) or getattr(value, "ndim", 0) > 0


def are_arrays(value: object) -> bool:
    """Whether an object holds several arrays, as a model's inputs without their names are."""
    return isinstance(value, (list, tuple)) and any(map(_rows, value))


def is_array_of_records(value: object) -> bool:
    """Whether an object is an array with a dimension of records."""
    return isinstance(value, (np.ndarray, torch.Tensor)) and value.ndim > 0


def _rows(value: object) -> tuple[int, ...]:
    """Returns the number of rows of an array as a shape; empty for other objects."""
    return tuple(getattr(value, "shape", ()))[:1]


def array_of(part: Any, origin: str) -> NDArray[Any]:
    """Tensors, arrays or lists of numbers or text as an array; else a DataError."""
    if isinstance(part, torch.Tensor):
        part = (part.float() if part.is_floating_point() else part).detach().cpu().numpy()
    try:
        array = np.asarray(part)
    except ValueError as error:
        raise DataError(
            f"{origin}: cannot become one array (numpy: {first_line(error)}); bring the rows to "
            "one shape"
        ) from error
    if array.dtype.kind not in "biufU":
        raise DataError(f"{origin}: is of type {array.dtype}; numbers or text are needed")
    return array


def stacked(values: Sequence[Any], origin: str, what: str = "input") -> NDArray[Any]:
    """Arrays of one shape as one, with the records first; else a DataError."""
    shapes = [np.shape(value) for value in values]
    other = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
    remedy = ", or give an attention_mask as long beside them" if len(shapes[0]) == 1 else ""
    if other is not None:
        raise DataError(
            f"{origin}: {what} {other} is of shape {shapes[other]} and {what} 0 of {shapes[0]}; "
            f"bring all to one shape{remedy}"
        )
    return np.stack(values)


def turned(values: Sequence[Any], origin: str) -> dict[Any, list[Any]]:
    """Mappings with the same keys as a mapping of lists; else a DataError."""
    first = values[0]
    for index, value in enumerate(values):
        if not isinstance(value, Mapping) or set(value) != set(first):
            raise DataError(
                f"{origin}: the inputs of item {index} are not those of item 0 "
                f"({', '.join(map(str, first))}); give the same in all"
            )
    return {key: [value[key] for value in values] for key in first}
