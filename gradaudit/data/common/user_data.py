"""Records from what a user's own function returns, or from a data set of items.

Items of different widths, as collators that pad each batch to its own widest item give them, are
padded to the widest of all: where a mask says which positions are filled (``attention_mask``), the
arrays beside it that are as long, on the side where the batches have their padding.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import JsonValue

from gradaudit.core.specs import suggest
from gradaudit.data.common.arrays import as_inputs, packed, packed_labels, pictures, scaled
from gradaudit.data.common.checks import expect_finite, expect_length, quote
from gradaudit.data.common.items import (
    NAME_THEM,
    NO_LABELS,
    ItemLayout,
    are_arrays,
    array_of,
    columns_of,
    expect_no_graph,
    is_array_of_records,
    is_data_set,
    stacked,
    turned,
)
from gradaudit.data.common.packing import InputPart
from gradaudit.data.common.picture_files import Picture, stack_pictures
from gradaudit.data.common.roles import (
    Labels,
    Task,
    assemble,
    labels_of_array,
    labels_of_positions,
    no_labels,
)
from gradaudit.data.common.table_columns import (
    DataColumn,
    Inputs,
    declared_features,
    numeric_features,
)
from gradaudit.data.records import IGNORED, Records
from gradaudit.errors import DataError

_NO_TOKENS = ("mask", "type", "position")
"""Words in the names of whole numbers that are no tokens, which are padded with zeros."""
_PARTS = ("inputs", "labels", "attributes", "users", "members", "classes", "columns")


def padded(
    inputs: Sequence[Mapping[str, NDArray[Any]]], labels: Sequence[Any]
) -> tuple[list[dict[str, NDArray[Any]]], list[Any], dict[str, JsonValue]]:
    """Inputs and labels with the arrays beside a mask brought to its widest; and a note.

    Tokens get the token that stands where a mask says that nothing is, or 0; masks, types and
    numbers get 0; whole numbers as labels, -100. What is as long as no mask stays as it is.

    Args:
        inputs: arrays of each record by the names of the model's arguments.
        labels: of each record.
    """
    made, targets, notes = [dict(one) for one in inputs], list(labels), dict[str, JsonValue]()
    for mask in [name for name, first in inputs[0].items() if "mask" in name and first.ndim == 1]:
        lengths = _lengths([one[mask] for one in inputs])
        if not lengths or len(set(lengths)) == 1:
            continue
        left = any(not one[mask][:1].all() for one in inputs)
        filling = _filling(made, mask, lengths)
        for name, value in filling.items():
            for one in made:
                one[name] = _wide(one[name], max(lengths), value, left)
        notes["padded_to"] = max(lengths)
        if _lengths(targets) == lengths and np.asarray(targets[0]).dtype.kind in "iu":
            targets = [_wide(np.asarray(one), max(lengths), IGNORED, left) for one in targets]
    ragged = _lengths(targets)
    if notes and len(set(ragged)) > 1 and np.asarray(targets[0]).dtype.kind in "iu":
        targets = [_wide(np.asarray(one), max(ragged), IGNORED, left=False) for one in targets]
    return made, targets, notes


def _lengths(values: Sequence[Any]) -> list[int]:
    """Returns the number of positions of each value; an empty list where one has none."""
    shapes = [np.shape(value) for value in values]
    return [shape[0] for shape in shapes] if all(shapes) else []


def _filling(
    inputs: Sequence[Mapping[str, NDArray[Any]]], mask: str, lengths: Sequence[int]
) -> dict[str, int]:
    """Returns the padding value of each array that is as long as the mask, by name."""
    found = {}
    for name, first in inputs[0].items():
        if _lengths([one[name] for one in inputs]) != lengths:
            continue
        words = first.dtype.kind in "iu" and not any(word in name for word in _NO_TOKENS)
        behind = (one[name][~one[mask].astype(bool)] for one in inputs) if words else ()
        found[name] = next((int(tokens.flat[0]) for tokens in behind if tokens.size), 0)
    return found


def _wide(array: NDArray[Any], width: int, value: int, left: bool) -> NDArray[Any]:
    """The array with as many positions, the new ones in front or behind."""
    more = width - len(array)
    ends = [(more, 0) if left else (0, more), *[(0, 0)] * (array.ndim - 1)]
    return np.pad(array, ends, constant_values=value)


Named = Sequence[tuple[str, Picture]]
"""Pictures with what messages call them."""


def records_of(
    returned: Any,
    origin: str,
    layout: ItemLayout = ItemLayout(),  # noqa: B008 - it is frozen
) -> Records:
    """Records of what a user's function returned.

    Args:
        returned: ``Records``; a pair (inputs, labels); a mapping of ``inputs``, ``labels`` and, if
            there are any, ``attributes`` (a mapping of name to array), ``users``, ``members``,
            ``classes`` (names) and ``columns`` (see ``declared_features``), with ``inputs`` an
            array or a mapping of the model's arguments to arrays; or a data set or ``DataLoader``
            of items (see ``items``).
        origin: the function, for messages.
        layout: what is known of an item's parts; without labels a tuple is of inputs, in their
            order.

    Raises:
        DataError: it is none of these, or the parts are not of the same records.
    """
    if isinstance(returned, Records):
        return _checked(returned, origin)
    expect_no_graph(returned, origin)
    if (parts := _parts(returned, unlabelled=layout.unlabelled)) is not None:
        if layout.unlabelled and parts.get("labels") is not None:
            raise DataError(f"{origin}: returns labels; leave out labels=none")
        return records_of_parts({**parts, "labels": None} if layout.unlabelled else parts, origin)
    if is_data_set(returned):
        return records_of_items(returned, origin, layout=layout)
    needed = (
        "without labels return inputs, a tuple of several, a mapping of parts, or a data set or "
        "loader of items"
        if layout.unlabelled
        else "return Records, a pair (inputs, labels), a mapping of "
        f"{', '.join(_PARTS)}, or a data set or loader of such items"
    )
    raise DataError(f"{origin}: returns {type(returned).__name__}; {needed}")


def _parts(returned: Any, *, unlabelled: bool) -> Mapping[str, Any] | None:
    """Return the data's parts by name; None where the data may yield records one by one."""
    if isinstance(returned, Mapping):
        return returned
    if unlabelled and isinstance(returned, (np.ndarray, torch.Tensor)):
        return {"inputs": returned}
    if unlabelled and isinstance(returned, tuple) and all(map(is_array_of_records, returned)):
        return {"inputs": {str(place): part for place, part in enumerate(returned)}}
    if not unlabelled and isinstance(returned, tuple) and len(returned) == 2:
        return {"inputs": returned[0], "labels": returned[1]}
    return None


def records_of_parts(parts: Mapping[str, Any], origin: str) -> Records:
    """Records of arrays, tensors or lists by name.

    Whole numbers as inputs are tokens, unless they are bytes, which are numbers from 0 to 255;
    inputs by name are what the model is called with by keyword. Labels are taken as they are;
    labels by name, or in a tuple, go whole to a loss of the user's, and None stands for none.

    Raises:
        DataError: inputs or labels are missing, a name is unknown, or a part cannot be used.
    """
    unknown = next((name for name in parts if name not in _PARTS), None)
    if unknown is not None or not {"inputs", "labels"} <= set(parts):
        needed = f"inputs and labels are needed; {NO_LABELS}"
        what = needed if unknown is None else f"unknown part {unknown!r}"
        hint = "" if unknown is None else suggest(str(unknown), _PARTS)
        raise DataError(f"{origin}: {what}{hint}; the parts are {', '.join(_PARTS)}")
    count = _count(parts["labels"])
    array, several = _inputs(parts["inputs"], f"{origin}: inputs", count)
    labels, label_parts = _labels(parts, f"{origin}: labels", len(array))
    notes: dict[str, JsonValue] = {}
    for what, named in (("inputs", several), ("targets", label_parts)):
        if named:
            notes[what] = {part.name: list(part.shape) for part in named}
    features = () if several else numeric_features(array)
    if parts.get("columns") is not None:
        if several:
            raise DataError(f"{origin}: columns are of one array of inputs, and there are several")
        features = declared_features(parts["columns"], array, f"{origin}: inputs")
    records = assemble(
        Inputs(array, features, notes),
        labels,
        [_column(f"attribute {name}", name, part, origin) for name, part in _named(parts, origin)],
        user=_column("users", "users", parts["users"], origin) if "users" in parts else None,
        member=_column("members", "members", parts["members"], origin)
        if "members" in parts
        else None,
    )
    return replace(records, parts=several, label_parts=label_parts)


def _count(labels: Any) -> tuple[int, ...]:
    """Returns the number of labelled records as a shape; empty without labels."""
    if labels is None:
        return ()
    several = labels.values() if isinstance(labels, Mapping) else labels
    first = next(iter(several), labels) if is_several(labels) else labels
    return tuple(np.shape(first)[:1])


def is_several(labels: Any) -> bool:
    """Whether a record has labels of several parts: by name, or a tuple of arrays."""
    return isinstance(labels, Mapping) or (isinstance(labels, tuple) and are_arrays(labels))


def _labels(
    parts: Mapping[str, Any], origin: str, records: int
) -> tuple[Labels, tuple[InputPart, ...]]:
    """The task's labels, and their parts where a record has several."""
    given = parts["labels"]
    if given is None:
        return no_labels(records, origin), ()
    if is_several(given):
        named = given if isinstance(given, Mapping) else dict(enumerate(given))
        arrays = {str(name): array_of(part, f"{origin}: {name}") for name, part in named.items()}
        block, label_parts = packed_labels(arrays, origin)
        return Labels(block, (), origin), label_parts
    labels = array_of(given, origin)
    if labels.dtype.kind == "i" and labels.ndim == 1 and labels.size and IGNORED < labels.min() < 0:
        return Labels(labels.astype(np.int64), (), origin), ()
    task: Task | None = "classification" if labels.dtype.kind in "iub" else None
    return labels_of_array(labels, origin, tuple(parts.get("classes", ())), task), ()


def _inputs(
    given: Any, origin: str, records: tuple[int, ...]
) -> tuple[NDArray[Any], tuple[InputPart, ...]]:
    """Inputs (records, …), and their parts where the model takes several or one number a record."""
    if isinstance(given, tuple) and not records and all(map(is_array_of_records, given)):
        given = {str(place): part for place, part in enumerate(given)}
    if are_arrays(given) and (len(given),) != records == np.shape(given[0])[:1]:
        raise DataError(f"{origin}: are {len(given)} arrays; {NAME_THEM}")
    if isinstance(given, Mapping):
        named = {str(k): _unscaled(part, f"{origin}: {k}") for k, part in given.items()}
        return packed(named, origin)
    raw = _unscaled(given, origin)
    if raw.ndim == 1 and raw.dtype.kind in "iuf":
        return packed({"": raw}, origin)
    return as_inputs(raw, origin, tokens=raw.dtype.kind in "iu"), ()


def _unscaled(given: Any, origin: str) -> NDArray[Any]:
    """Array of a user's inputs, in which bytes are the numbers that they are."""
    array = array_of(given, origin)
    return array.astype(np.float32) if array.dtype == np.uint8 and array.ndim > 1 else array


def records_of_items(
    dataset: Any,
    origin: str,
    prepare: Callable[[Named, str], Inputs] | None = None,
    *,
    layout: ItemLayout = ItemLayout(),  # noqa: B008 - it is frozen
) -> Records:
    """Records of a data set or a loader (see ``items``), of which pictures are prepared.

    Args:
        dataset: what gives the items, or batches of them.
        origin: the data, for messages.
        prepare: makes inputs of named pictures; as they are without it.
        layout: what is known of an item's parts.

    Raises:
        DataError: it is empty, an item cannot be understood, or the inputs differ in size.
    """
    columns, column_notes = columns_of(dataset, origin, layout)
    values, targets, wide = _of_one_width(columns.pop("inputs"), columns.pop("labels", []), origin)
    inputs, notes = _inputs_of_items(values, origin, prepare or _as_they_are)
    labels = None if layout.unlabelled else _labels_of_items(targets, f"{origin}: labels")
    names = getattr(getattr(dataset, "dataset", dataset), "classes", ())
    named = isinstance(names, Sequence) and all(isinstance(name, str) for name in names)
    parts: dict[str, Any] = {k: columns.pop(k) for k in ("users", "members") if k in columns}
    parts |= {"inputs": inputs, "labels": labels, "classes": names if named else ()}
    records = records_of_parts({**parts, "attributes": columns}, origin)
    return replace(records, notes={**records.notes, **notes, **column_notes, **wide})


def _of_one_width(
    inputs: Sequence[Any], labels: Sequence[Any], origin: str
) -> tuple[Sequence[Any], Sequence[Any], Mapping[str, JsonValue]]:
    """Inputs by name and labels, padded where a mask says what is filled; and a note."""
    first = inputs[0]
    masked = isinstance(first, Mapping) and any("mask" in str(name) for name in first)
    if not masked or any(not isinstance(one, Mapping) or set(one) != set(first) for one in inputs):
        return inputs, labels, {}
    arrays: list[dict[str, Any]] = [
        {str(k): v if isinstance(v, Image.Image) else array_of(v, origin) for k, v in one.items()}
        for one in inputs
    ]
    return padded(arrays, labels)


def _labels_of_items(values: Sequence[Any], origin: str) -> Any:
    """Returns an array of labels, or one for each part of a record's labels by name or place."""
    if not is_several(values[0]):
        return stacked([array_of(label, origin) for label in values], origin, "label")
    named = [one if isinstance(one, Mapping) else dict(enumerate(one)) for one in values]
    return {
        str(name): stacked([array_of(one, f"{origin}: {name}") for one in part], origin)
        for name, part in turned(named, origin).items()
    }


def _inputs_of_items(
    values: Sequence[Any], origin: str, prepare: Callable[[Named, str], Inputs]
) -> tuple[NDArray[Any] | dict[str, NDArray[Any]], Mapping[str, JsonValue]]:
    """Returns an array of inputs, or one for each of several inputs by name; and notes."""
    if not isinstance(values[0], Mapping):
        inputs = _input_of_items(values, origin, prepare)
        return inputs.array, inputs.notes
    named = {
        str(name): _input_of_items(part, f"{origin}: {quote(str(name))}", prepare)
        for name, part in turned(values, origin).items()
    }
    notes = {key: note for inputs in named.values() for key, note in inputs.notes.items()}
    return {name: inputs.array for name, inputs in named.items()}, notes


def _input_of_items(
    values: Sequence[Any], origin: str, prepare: Callable[[Named, str], Inputs]
) -> Inputs:
    if all(isinstance(one, Image.Image) for one in values):
        named = [(f"{origin}: picture {index}", one) for index, one in enumerate(values)]
        return prepare(named, origin)
    if are_arrays(values[0]):
        raise DataError(f"{origin}: the input of item 0 is {len(values[0])} arrays; {NAME_THEM}")
    return Inputs(stacked([array_of(one, f"{origin}: inputs") for one in values], origin))


def _as_they_are(sources: Named, origin: str) -> Inputs:
    pixels, notes = stack_pictures(sources, origin, None)
    return Inputs(pictures(pixels, origin), notes=scaled(pixels, notes))


def _named(parts: Mapping[str, Any], origin: str) -> list[tuple[str, Any]]:
    attributes = parts.get("attributes", {})
    if not isinstance(attributes, Mapping):
        raise DataError(f"{origin}: attributes are a mapping of name to one value a record")
    return [(str(name), part) for name, part in attributes.items()]


def _column(what: str, name: str, part: Any, origin: str) -> DataColumn:
    return DataColumn.of_array(name, f"{origin}: {what}", array_of(part, f"{origin}: {what}"))


def _checked(records: Records, origin: str) -> Records:
    """Records that a user made, looked through for what an audit would stumble over."""
    count = len(records)
    if not count:
        raise DataError(f"{origin}: there are no records")
    sized = {"labels": records.labels, "users": records.users, "members": records.members}
    for name, part in sized.items():
        if part is not None:
            expect_length(len(part), count, f"{origin}: {name}")
    expect_finite(records.inputs.numpy(), f"{origin}: inputs")
    expect_finite(records.labels.numpy(), f"{origin}: labels")
    for name, attribute in records.attributes.items():
        where = f"{origin}: attribute {quote(name)}"
        expect_length(len(attribute.codes), count, where)
        if not 0 <= attribute.codes.min() <= attribute.codes.max() < len(attribute.values):
            raise DataError(
                f"{where}: its codes are no places in its {len(attribute.values)} values"
            )
    return _with_classes(records, f"{origin}: labels")


def _with_classes(records: Records, origin: str) -> Records:
    """The records with a name for every class that a label can be."""
    labels = records.labels
    if labels.is_floating_point() and not records.classes:
        return records
    if labels.dtype != torch.int64 or labels.dim() < 1:
        raise DataError(
            f"{origin}: are {labels.dtype} of shape {tuple(labels.shape)}; classes are int64 of "
            "shape (records,) or (records, …), targets are floats without names of classes"
        )
    if labels.dim() > 1:
        names = labels_of_positions(labels.numpy(), origin, records.classes).classes
        return replace(records, classes=names)
    classes = records.classes or tuple(map(str, range(int(labels.max()) + 1)))
    if not 0 <= int(labels.min()) <= int(labels.max()) < len(classes):
        raise DataError(
            f"{origin}: run from {int(labels.min())} to {int(labels.max())}, but there are "
            f"{len(classes)} classes"
        )
    return replace(records, classes=classes)
