"""Records of what a user's own function returns, in one of the documented forms."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import JsonValue
from torch.utils.data import DataLoader, IterableDataset

from gradaudit.core.specs import suggest
from gradaudit.core.text import first_line
from gradaudit.data.common.arrays import as_inputs, packed, pictures, scaled
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
    "pairs (input, label) or of mappings of arrays, a label and single values; several inputs are "
    "a mapping by the names of the model's arguments; labels are None where there are none"
)
STREAMED = 10_000
"""Items that are taken of what has no length."""

_PARTS = ("inputs", "labels", "attributes", "users", "members", "classes", "columns")
_ROLES = {
    "labels": ("labels", "label", "y", "target"),
    "users": ("users", "user"),
    "members": ("members", "member"),
}
"""Keys of an item that is a mapping, beside its inputs and attributes."""

Prepare = Callable[[Named, str], Inputs]


def records_of(returned: Any, origin: str, *, prepare: Prepare | None = None) -> Records:
    """Read records in one of the documented forms.

    Args:
        returned: in one of the ``FORMS``.
        origin: where it is from, for messages.
        prepare: makes inputs of named pictures; in [0, 1] without it.

    Raises:
        DataError: it has none of these forms, or the parts are not of the same records.
    """
    if isinstance(returned, Records):
        return _checked(returned, origin)
    if isinstance(returned, tuple) and len(returned) == 2:
        returned = dict(zip(("inputs", "labels"), returned, strict=True))
    if isinstance(returned, Mapping):
        return _of_parts(returned, origin)
    plain = isinstance(returned, (str, bytes, np.ndarray, torch.Tensor))
    if plain or not (hasattr(returned, "__getitem__") or isinstance(returned, Iterable)):
        raise DataError(f"{origin}: returns {type(returned).__name__}; {FORMS}")
    columns, notes = _columns(returned, origin)
    parts: dict[str, Any] = {}
    if all(isinstance(one, Image.Image) for one in columns["inputs"]):
        shown = columns.pop("inputs")
        sources = [(f"{origin}: picture {k}", one) for k, one in enumerate(shown)]
        made = (prepare or _unprepared)(sources, origin)
        parts["inputs"] = made.array
        notes |= made.notes
    batches = isinstance(returned, DataLoader)
    joined = {k: _joined(v, f"{origin}: {k}", batches=batches) for k, v in columns.items()}
    names = getattr(getattr(returned, "dataset", returned), "classes", ())
    named = isinstance(names, Sequence) and all(isinstance(name, str) for name in names)
    parts |= {name: joined.pop(name) for name in ("inputs", *_ROLES) if name in joined}
    classes = names if named else ()
    records = _of_parts({"labels": None, **parts, "classes": classes, "attributes": joined}, origin)
    return replace(records, notes={**records.notes, **notes})


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
    notes: dict[str, JsonValue] = {}
    if several:
        notes["inputs"] = {part.name: list(part.shape) for part in several}
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
        _labels(parts, f"{origin}: labels", len(array)),
        [_column(str(k), part, f"{origin}: attribute {k}") for k, part in attributes.items()],
        user=_column("users", parts["users"], f"{origin}: users") if "users" in parts else None,
        member=_column("members", parts["members"], f"{origin}: members")
        if "members" in parts
        else None,
    )
    return replace(made, parts=several)


def _inputs(given: Any, origin: str) -> tuple[NDArray[Any], tuple[InputPart, ...]]:
    """Inputs (records, …), and their parts where the model takes several or one number a record."""
    if isinstance(given, Mapping):
        arrays = {str(k): _unscaled(part, f"{origin}: {k}") for k, part in given.items()}
        return packed(arrays, origin)
    raw = _unscaled(given, origin)
    if raw.ndim == 1 and raw.dtype.kind in "iuf":
        return packed({"": raw}, origin)
    return as_inputs(raw, origin, tokens=raw.dtype.kind in "iu"), ()


def _labels(parts: Mapping[str, Any], origin: str, records: int) -> Labels:
    """The task's labels."""
    if parts["labels"] is None:
        return no_labels(records, origin)
    labels = array_of(parts["labels"], origin)
    if labels.dtype.kind == "i" and labels.ndim == 1 and labels.size and IGNORED < labels.min() < 0:
        return Labels(labels.astype(np.int64), (), origin)
    task: Task | None = "classification" if labels.dtype.kind in "iub" else None
    return labels_of_array(labels, origin, tuple(parts.get("classes", ())), task)


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
        raise DataError(f"{origin}: is of type {array.dtype}; numbers or text are needed; {FORMS}")
    return array


def _column(name: str, part: Any, origin: str) -> DataColumn:
    return DataColumn.of_array(name, origin, array_of(part, origin))


def _columns(returned: Any, origin: str) -> tuple[dict[str, list[Any]], dict[str, JsonValue]]:
    """The parts of items, or of batches of a loader, by name; a note where not all were taken.

    A data set is read once, from its first item to its last; what it draws from torch is drawn
    under seed 0.
    """
    batches = isinstance(returned, DataLoader)
    source = returned.dataset if batches else returned
    endless = isinstance(source, IterableDataset) or not hasattr(source, "__len__")
    columns: dict[str, list[Any]] = {}
    count = place = 0
    more = False
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        for place, item in enumerate(_items(returned, origin), start=1):
            if more := endless and count >= STREAMED:
                break
            named = _named(item, f"{origin}: item {place - 1}", batches=batches)
            count += _records_in(named["inputs"]) if batches else 1
            for name, value in named.items():
                columns.setdefault(name, []).append(value)
    if not place:
        raise DataError(f"{origin}: is empty")
    most = len(columns["inputs"])
    short = next((name for name, values in columns.items() if len(values) < most), None)
    if short is not None:
        raise DataError(f"{origin}: {short!r} is missing in some items; give it in all or in none")
    return columns, {"first_records": count} if more else {}


def _records_in(batch: Any) -> int:
    return _records_in(next(iter(batch.values()))) if isinstance(batch, Mapping) else len(batch)


def _items(returned: Any, origin: str) -> Iterator[object]:
    """The items of a data set or a stream, or the batches of a loader."""
    indexed = hasattr(returned, "__getitem__") and hasattr(returned, "__len__")
    places = (returned[index] for index in range(len(returned))) if indexed else None
    source = iter(returned) if places is None or isinstance(returned, IterableDataset) else places
    index = 0
    while True:
        try:
            yield next(source)
        except StopIteration:
            return
        except GradauditError:
            raise
        except Exception as error:  # of the user's own code
            raise DataError(f"{origin}: item {index} failed with {first_line(error)}") from error
        index += 1


def _named(item: Any, origin: str, *, batches: bool) -> dict[str, Any]:
    """The parts of an item or a batch: ``inputs``, ``labels``, ``users``, ``members``, others."""
    if not isinstance(item, Mapping):
        if not isinstance(item, tuple | list) or len(item) != 2:
            length = f" of {len(item)}" if isinstance(item, tuple | list) else ""
            raise DataError(f"{origin} is {type(item).__name__}{length}; {FORMS}")
        inputs, label = item
        return {"inputs": inputs} if label is None else {"inputs": inputs, "labels": label}
    rest = {str(name): value for name, value in item.items()}
    made: dict[str, Any] = {}
    for role, names in _ROLES.items():
        key = next((name for name in names if name in rest), None)
        if key is not None:
            made[role] = rest.pop(key)
    attributes = rest.pop("attributes", {})
    given = {name: value for name, value in rest.items() if _is_input(value, batches=batches)}
    if not given or "labels" not in made:
        label = f"a label ({', '.join(_ROLES['labels'])})"
        raise DataError(
            f"{origin} has {', '.join(map(str, item))}; arrays and {label} are needed; {FORMS}"
        )
    if made["labels"] is None:
        del made["labels"]
    single = {name: value for name, value in rest.items() if name not in given}
    made["inputs"] = next(iter(given.values())) if len(given) == 1 else given
    return {**single, **attributes, **made}


def _is_input(value: object, *, batches: bool) -> bool:
    """Whether a part has more than one value a record."""
    if isinstance(value, list | tuple) and batches:
        return False  # texts of the records, as loaders collate them
    several = isinstance(value, list | tuple | Mapping | Image.Image)
    return several or getattr(value, "ndim", 0) > batches


def _joined(values: Sequence[Any], origin: str, *, batches: bool) -> Any:
    """Items of one shape, or batches, as one array with the records first, or arrays by name."""
    if isinstance(values[0], Mapping):
        for place, value in enumerate(values):
            if not isinstance(value, Mapping) or value.keys() != values[0].keys():
                raise DataError(
                    f"{origin}: those of item {place} are not those of item 0 "
                    f"({', '.join(map(str, values[0]))}); give the same in all"
                )
        return {
            str(name): _joined(
                [value[name] for value in values], f"{origin}: {name}", batches=batches
            )
            for name in values[0]
        }
    arrays = [array_of(value, f"{origin}: item {k}") for k, value in enumerate(values)]
    for place, array in enumerate(arrays):
        if array.ndim < batches or array.shape[batches:] != arrays[0].shape[batches:]:
            raise DataError(
                f"{origin}: item {place} is of shape {array.shape} and item 0 of "
                f"{arrays[0].shape}; bring all to one shape (tokens by padding='max_length')"
            )
    return np.concatenate(arrays) if batches else np.stack(arrays)


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
