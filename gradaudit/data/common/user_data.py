"""Records of what a user's own function returns, in one of the documented forms."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import JsonValue
from torch.utils.data import DataLoader, IterableDataset

from gradaudit.core.specs import suggest
from gradaudit.core.text import first_line
from gradaudit.data.common.arrays import as_inputs, packed, packed_labels, pictures, scaled
from gradaudit.data.common.checks import expect_finite, expect_length, quote
from gradaudit.data.common.packing import InputPart
from gradaudit.data.common.picture_files import Named, stack_pictures
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
from gradaudit.errors import DataError, GradauditError

FORMS = (
    "the forms are: Records; a pair (inputs, labels); a mapping of inputs, labels and, if there "
    "are any, attributes, users, members, classes, columns; or a data set, loader or iterable of "
    "pairs (input, label), triples with an attribute, or mappings of arrays and a label; several "
    "inputs are a mapping or a tuple of arrays; without labels (labels=none) there are inputs alone"
)
STREAMED = 10_000
"""Records that are taken of what has no length."""

_PARTS = ("inputs", "labels", "attributes", "users", "members", "classes", "columns")
_ROLES = {
    "labels": ("labels", "label", "y", "target"),
    "users": ("users", "user"),
    "members": ("members", "member"),
}
"""Keys of an item that is a mapping, beside its inputs and attributes."""

Prepare = Callable[[Named, str], Inputs]


def records_of(
    returned: Any,
    origin: str,
    *,
    unlabelled: bool = False,
    inputs: int = 1,
    records: int | None = None,
    prepare: Prepare | None = None,
) -> Records:
    """Read records in one of the documented forms.

    Args:
        returned: in one of the ``FORMS``.
        origin: where it is from, for messages.
        unlabelled: whether there are no labels, so that a tuple is of inputs.
        inputs: how many parts of an item that is a tuple are inputs.
        records: how many are taken of a data set; all, or 10,000 of what has no length.
        prepare: makes inputs of named pictures; in [0, 1] without it.

    Raises:
        DataError: it has none of these forms, or the parts are not of the same records.
    """
    if isinstance(returned, Records):
        return _checked(returned, origin)
    arrays = isinstance(returned, tuple) and all(_is_array(part) for part in returned)
    if unlabelled and (arrays or _is_array(returned)):
        returned = {"inputs": returned, "labels": None}
    elif isinstance(returned, tuple) and len(returned) == 2:
        returned = dict(zip(("inputs", "labels"), returned, strict=True))
    if isinstance(returned, Mapping):
        if unlabelled and returned.get("labels") is not None:
            raise DataError(f"{origin}: returns labels; leave out labels=none")
        return _of_parts({**returned, "labels": None} if unlabelled else returned, origin)
    plain = isinstance(returned, (str, bytes)) or _is_array(returned)
    if plain or not (hasattr(returned, "__getitem__") or isinstance(returned, Iterable)):
        raise DataError(f"{origin}: returns {type(returned).__name__}; {FORMS}")
    columns, note = _columns(returned, origin, unlabelled, inputs, records)
    values, notes = _inputs_of(columns.pop("inputs"), f"{origin}: inputs", prepare or _unprepared)
    labels = columns.pop("labels", None)
    names = getattr(getattr(returned, "dataset", returned), "classes", ())
    named = isinstance(names, Sequence) and all(isinstance(name, str) for name in names)
    parts: dict[str, Any] = {k: columns.pop(k) for k in ("users", "members") if k in columns}
    parts["labels"] = None if labels is None else _stacked(labels, f"{origin}: labels")
    parts |= {"inputs": values, "classes": names if named else (), "attributes": columns}
    made = _of_parts(parts, origin)
    return replace(made, notes={**made.notes, **notes, **note})


def _is_array(value: object) -> bool:
    return isinstance(value, (np.ndarray, torch.Tensor))


def _several(value: object) -> Mapping[str, Any] | None:
    """Return arrays by name or place, of a mapping or a tuple of them; None of anything else."""
    if isinstance(value, Mapping):
        return {str(name): part for name, part in value.items()}
    if isinstance(value, tuple) and any(_has_values(part) for part in value):
        return {str(place): part for place, part in enumerate(value)}
    return None


def _has_values(value: object) -> bool:
    """Whether an object holds more than one value."""
    return isinstance(value, (list, tuple, Mapping, Image.Image)) or getattr(value, "ndim", 0) > 0


def _of_parts(parts: Mapping[str, Any], origin: str) -> Records:
    """Records of arrays by name.

    Whole numbers as inputs are tokens, unless they are bytes, which are numbers from 0 to 255.
    Labels are taken as they are.
    """
    unknown = next((name for name in parts if name not in _PARTS), None)
    if unknown is not None:
        hint = suggest(str(unknown), _PARTS)
        raise DataError(
            f"{origin}: unknown part {unknown!r}{hint}; the parts are {', '.join(_PARTS)}"
        )
    if not {"inputs", "labels"} <= set(parts):
        raise DataError(f"{origin}: inputs and labels are needed; {FORMS}")
    array, several = _inputs(parts["inputs"], f"{origin}: inputs")
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
    attributes = parts.get("attributes", {})
    if not isinstance(attributes, Mapping):
        raise DataError(f"{origin}: attributes are a mapping of name to one value a record")
    made = assemble(
        Inputs(array, features, notes),
        labels,
        [_column(str(k), part, f"{origin}: attribute {k}") for k, part in attributes.items()],
        user=_column("users", parts["users"], f"{origin}: users") if "users" in parts else None,
        member=_column("members", parts["members"], f"{origin}: members")
        if "members" in parts
        else None,
    )
    return replace(made, parts=several, label_parts=label_parts)


def _inputs(given: Any, origin: str) -> tuple[NDArray[Any], tuple[InputPart, ...]]:
    """Inputs (records, …), and their parts where the model takes several or one number a record."""
    if (named := _several(given)) is not None:
        return packed({k: _unscaled(part, f"{origin}: {k}") for k, part in named.items()}, origin)
    raw = _unscaled(given, origin)
    if raw.ndim == 1 and raw.dtype.kind in "iuf":
        return packed({"": raw}, origin)
    return as_inputs(raw, origin, tokens=raw.dtype.kind in "iu"), ()


def _labels(
    parts: Mapping[str, Any], origin: str, records: int
) -> tuple[Labels, tuple[InputPart, ...]]:
    """The task's labels, and their parts where a record has several."""
    given = parts["labels"]
    if given is None:
        return no_labels(records, origin), ()
    if (named := _several(given)) is not None:
        arrays = {name: array_of(part, f"{origin}: {name}") for name, part in named.items()}
        block, label_parts = packed_labels(arrays, origin)
        return Labels(block, (), origin), label_parts
    labels = array_of(given, origin)
    if labels.dtype.kind == "i" and labels.ndim == 1 and labels.size and IGNORED < labels.min() < 0:
        return Labels(labels.astype(np.int64), (), origin), ()
    task: Task | None = "classification" if labels.dtype.kind in "iub" else None
    return labels_of_array(labels, origin, tuple(parts.get("classes", ())), task), ()


def _unscaled(given: Any, origin: str) -> NDArray[Any]:
    """Array of a user's inputs, in which bytes are the numbers that they are."""
    array = array_of(given, origin)
    return array.astype(np.float32) if array.dtype == np.uint8 and array.ndim > 1 else array


def array_of(part: Any, origin: str) -> NDArray[Any]:
    """Tensors, arrays or lists of numbers or text as an array; else a DataError."""
    if isinstance(part, torch.Tensor):
        part = (part.float() if part.is_floating_point() else part).detach().cpu().numpy()
    try:
        array = np.asarray(part)
    except Exception as error:  # of an object of the user's
        raise DataError(
            f"{origin}: cannot become one array (numpy: {first_line(error)}); bring the rows to "
            "one shape"
        ) from error
    if array.dtype.kind not in "biufU":
        raise DataError(f"{origin}: is of type {array.dtype}; numbers or text are needed")
    return array


def _column(name: str, part: Any, origin: str) -> DataColumn:
    return DataColumn.of_array(name, origin, array_of(part, origin))


def _columns(
    returned: Any, origin: str, unlabelled: bool, inputs: int, records: int | None
) -> tuple[dict[str, list[Any]], dict[str, JsonValue]]:
    """The parts of items by name, and a note where not all items were taken.

    A data set is read once, from its first item to its last; what it draws from torch is drawn
    under seed 0.
    """
    source = (
        getattr(returned, "dataset", returned) if isinstance(returned, DataLoader) else returned
    )
    endless = isinstance(source, IterableDataset) or not hasattr(source, "__len__")
    most = STREAMED if endless and records is None else records
    columns: dict[str, list[Any]] = {}
    count = 0
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        items = _items(returned, origin)
        for count, item in enumerate(islice(items, most), start=1):
            for name, value in _named(
                item, f"{origin}: item {count - 1}", unlabelled, inputs
            ).items():
                columns.setdefault(name, []).append(value)
        more = count == most and next(items, None) is not None
    if not count:
        raise DataError(f"{origin}: is empty")
    short = next((name for name, values in columns.items() if len(values) < count), None)
    if short is not None:
        raise DataError(f"{origin}: {short!r} is missing in some items; give it in all or in none")
    return columns, {"first_records": count} if more else {}


def _items(returned: Any, origin: str) -> Iterator[object]:
    """The items of a data set, of a stream, or of the batches of a loader."""
    indexed = hasattr(returned, "__getitem__") and hasattr(returned, "__len__")
    places = (returned[index] for index in range(len(returned))) if indexed else None
    source = iter(returned) if places is None or isinstance(returned, IterableDataset) else places
    index = 0
    while True:
        try:
            item = next(source)
        except StopIteration:
            return
        except GradauditError:
            raise
        except Exception as error:  # of the user's own code
            raise DataError(f"{origin}: item {index} failed with {first_line(error)}") from error
        if isinstance(returned, DataLoader):
            yield from _unbatched(item, f"{origin}: batch {index}")
        else:
            yield item
        index += 1


def _unbatched(batch: object, origin: str) -> Iterator[object]:
    """The items of a batch, of which each part has its records first."""
    if isinstance(batch, Mapping):
        columns = [_rows(part, origin) for part in batch.values()]
    elif isinstance(batch, (tuple, list)):
        columns = [_rows(part, origin) for part in batch]
    else:
        columns = [_rows(batch, origin)]
    counts = sorted({len(column) for column in columns})
    if len(counts) != 1:
        raise DataError(f"{origin}: its parts are of {counts} records; {FORMS}")
    for values in zip(*columns, strict=True):
        if isinstance(batch, Mapping):
            yield dict(zip(batch, values, strict=True))
        else:
            yield values if isinstance(batch, (tuple, list)) else values[0]


def _rows(part: Any, origin: str) -> Sequence[Any]:
    """A part of a batch by record: an array, a list of single values, or a mapping of these."""
    if isinstance(part, Mapping):
        rows = zip(*(_rows(one, origin) for one in part.values()), strict=True)
        return [dict(zip(part, row, strict=True)) for row in rows]
    values = isinstance(part, (list, tuple)) and not any(map(_has_values, part))
    if not values and not (_is_array(part) and part.ndim):
        raise DataError(
            f"{origin}: holds {type(part).__name__}, in which records and inputs cannot be told "
            "apart; give arrays with the records first, and several inputs by name"
        )
    return part  # type: ignore[no-any-return]


def _named(item: Any, origin: str, unlabelled: bool, inputs: int) -> dict[str, Any]:
    """The parts of an item by name: ``inputs``, ``labels``, ``users``, ``members``, attributes."""
    if isinstance(item, Mapping):
        return _of_mapping(item, origin, unlabelled)
    parts = tuple(item) if isinstance(item, (tuple, list)) else (item,)
    if unlabelled:
        arrays = tuple(filter(_has_values, parts))
        values = [part for part in parts if not _has_values(part)]
        if not arrays or len(values) > 1:
            raise DataError(
                f"{origin} has {len(arrays)} arrays and {len(values)} single values; without "
                "labels arrays are inputs, and one value beside them is an attribute"
            )
        made = {"inputs": arrays if len(arrays) > 1 else arrays[0]}
        return {**made, "attribute": values[0]} if values else made
    if len(parts) not in (inputs + 1, inputs + 2):
        needed = "an input" if inputs == 1 else f"{inputs} inputs"
        raise DataError(
            f"{origin} is {type(item).__name__} of {len(parts)}, and {needed} and a label are "
            f"needed; {FORMS}"
        )
    behind = parts[inputs + 1] if len(parts) > inputs + 1 else {}
    attributes = behind if isinstance(behind, Mapping) else {"attribute": behind}
    for name, value in attributes.items():
        if _has_values(value):
            raise DataError(
                f"{origin}: attribute {name} is an array, and one value is needed; say inputs=N or "
                f"labels=none where it is an input or a label; {FORMS}"
            )
    named = {str(name): value for name, value in attributes.items()}
    given = dict(zip(map(str, range(inputs)), parts, strict=False)) if inputs > 1 else parts[0]
    return {**named, "inputs": given, "labels": parts[inputs]}


def _of_mapping(item: Mapping[Any, Any], origin: str, unlabelled: bool) -> dict[str, Any]:
    rest = {str(name): value for name, value in item.items()}
    made: dict[str, Any] = {}
    for role, names in _ROLES.items():
        key = next((name for name in names if name in rest), None)
        if key is not None:
            made[role] = rest.pop(key)
    attributes = rest.pop("attributes", {})
    given = {name: value for name, value in rest.items() if _has_values(value)}
    if not given or ("labels" in made) == unlabelled:
        label = "no label" if unlabelled else f"a label ({', '.join(_ROLES['labels'])})"
        raise DataError(
            f"{origin} has {', '.join(map(str, item))}; arrays and {label} are needed; {FORMS}"
        )
    single = {name: value for name, value in rest.items() if name not in given}
    made["inputs"] = next(iter(given.values())) if len(given) == 1 else given
    return {**single, **attributes, **made}


def _inputs_of(
    values: Sequence[Any], origin: str, prepare: Prepare
) -> tuple[Any, Mapping[str, JsonValue]]:
    """Return an array of the items' inputs, or one by name; and notes on pictures."""
    if (first := _several(values[0])) is None:
        if all(isinstance(one, Image.Image) for one in values):
            made = prepare(
                [(f"{origin}: picture {k}", one) for k, one in enumerate(values)], origin
            )
            return made.array, made.notes
        return _stacked(values, origin), {}
    arrays, notes = {}, dict[str, JsonValue]()
    for name, column in _turned(values, first, origin).items():
        arrays[name], more = _inputs_of(column, f"{origin}: {name}", prepare)
        notes |= more
    return arrays, notes


def _stacked(values: Sequence[Any], origin: str) -> Any:
    """Arrays of one shape as one, with the records first, or by name; else a DataError."""
    if (first := _several(values[0])) is not None:
        turned = _turned(values, first, origin)
        return {name: _stacked(column, f"{origin}: {name}") for name, column in turned.items()}
    arrays = [array_of(value, f"{origin}: item {k}") for k, value in enumerate(values)]
    for place, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise DataError(
                f"{origin}: item {place} is of shape {array.shape} and item 0 of "
                f"{arrays[0].shape}; bring all to one shape (tokens by padding='max_length')"
            )
    return np.stack(arrays)


def _turned(values: Sequence[Any], first: Mapping[str, Any], origin: str) -> dict[str, list[Any]]:
    """Mappings or tuples with the same keys as a mapping of lists; else a DataError."""
    rows = [_several(value) or {} for value in values]
    for place, row in enumerate(rows):
        if row.keys() != first.keys():
            raise DataError(
                f"{origin}: those of item {place} are not those of item 0 ({', '.join(first)}); "
                "give the same in all"
            )
    return {key: [row[key] for row in rows] for key in first}


def _unprepared(sources: Named, origin: str) -> Inputs:
    pixels, notes = stack_pictures(sources, origin, None)
    return Inputs(pictures(pixels, origin), notes=scaled(pixels, notes))


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
