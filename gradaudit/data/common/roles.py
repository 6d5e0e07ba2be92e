"""Roles of columns (label, attribute, user, membership), and records made of them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.core.files import read_file
from gradaudit.core.specs import suggest
from gradaudit.core.text import listed
from gradaudit.data.common.checks import expect_finite, expect_int64, expect_length, quote
from gradaudit.data.common.table_columns import MAX_CLASSES, MISSING, DataColumn, Inputs, spell
from gradaudit.data.records import IGNORED, Attribute, Records
from gradaudit.errors import DataError, UsageError

Task = Literal["classification", "regression"]

_MEMBER = dict.fromkeys(("1", "true", "yes", "train", "member"), True) | dict.fromkeys(
    ("0", "false", "no", "test", "non-member"), False
)
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Labels:
    """Task labels: (records,) int64 indices into ``classes``, or targets without classes.

    ``origin`` is where they are from, for messages; ``numbers`` are those that the classes are,
    where the data has numbers; of ``words`` the indices are an encoding.
    """

    values: NDArray[Any]
    classes: tuple[str, ...]
    origin: str
    numbers: tuple[float, ...] = ()
    words: bool = False


def labels_of(column: DataColumn, task: Task | None = None) -> Labels:
    """A column as the task's label.

    Text, few whole numbers, and any number of whole numbers 0 … K−1 with two records a value on
    average are classes, in the order of their names or numbers; other numbers are a regression
    target as they stand. ``task`` settles it: text and whole numbers may then be as many classes
    as there are records.

    Raises:
        UsageError: text cannot be the target of a regression.
        DataError: labels are missing, infinite, the same word, or too many for classes.
    """
    if column.missing:
        raise DataError(
            f"{column.origin}: {column.missing} of {len(column)} labels are missing; "
            "remove those records"
        )
    if column.numbers is None and len(column.values) < 2:
        raise DataError(
            f"{column.origin}: every record has the label {quote(column.values[0])}; "
            "a label that varies is needed"
        )
    if task == "regression" or (task is None and not _are_classes(column)):
        return Labels(column.quantities().astype(np.float32), (), column.origin)
    if task is None or not (column.whole or column.numbers is None):
        column.expect_few_values(
            "say task=regression for a quantity, or task=classification where they are the "
            "classes (classes=FILE has them in the order of the model's outputs)",
            MAX_CLASSES,
        )
    numbers = tuple(column.known.tolist())
    return Labels(column.codes, column.values, column.origin, numbers, words=not numbers)


def _are_classes(column: DataColumn) -> bool:
    """Whether the values of a label name classes, by their kind and number alone."""
    return column.discrete or (column.counting and len(column.values) <= len(column) // 2)


def labels_of_array(
    array: NDArray[Any], origin: str, names: Sequence[str] = (), task: Task | None = None
) -> Labels:
    """An array as the task's label.

    Whole numbers that are classes are taken as the model's class indices, as they are (negative
    ones in their order). Floats are real targets unless all are 0 or 1. Text is as for a column.
    ``task`` settles it; ``names`` are those of the classes 0 … K−1, if known. The shape is
    (records,), or (records, …) of real targets, or of the class indices of positions, of which
    -100 says that there is none.

    Raises:
        UsageError, DataError: as for a column, or the array has another shape or kind.
    """
    expect_int64(array, origin)
    if array.ndim > 1 and array.dtype.kind == "f":
        expect_finite(array, origin)
        return Labels(array.astype(np.float32), (), origin)
    if array.dtype.kind in "iub" and array.size == len(array):
        array = array.reshape(-1)
    if array.ndim > 1 and array.dtype.kind in "iub":
        return labels_of_positions(array.astype(np.int64), origin, names)
    if array.dtype.kind in "i" and array.size and array.min() == IGNORED and (array >= 0).any():
        raise DataError(
            f"{origin}: {(array == IGNORED).sum()} records have the label {IGNORED}, which stands "
            "for none; leave them out"
        )
    if task is None and array.dtype.kind == "f" and not np.isin(array, (0, 1)).all():
        task = "regression"
    column = DataColumn.of_array(origin, origin, array)
    if len(column) == 0:
        raise DataError(f"{origin}: there are no labels")
    task = task or ("classification" if _are_classes(column) else "regression")
    if task == "regression" or array.dtype.kind not in "iub" or array.min() < 0:
        return labels_of(column, task)
    indices = array.astype(np.int64)
    if (largest := int(indices.max())) >= MAX_CLASSES:
        raise DataError(
            f"{origin}: the class index {largest} is too large; number the classes from 0, or give "
            "a quantity as floats"
        )
    classes = names if len(names) > largest else range(largest + 1)
    return Labels(indices, tuple(map(str, classes)), origin)


def labels_of_positions(array: NDArray[np.int64], origin: str, names: Sequence[str] = ()) -> Labels:
    """Class indices (records, …) of positions; -100 where there is none.

    Raises:
        DataError: another index is negative, or too large, or there is none at all.
    """
    known = array[array != IGNORED]
    if not known.size or known.min() < 0 or known.max() >= MAX_CLASSES:
        ends = f"{known.min()} to {known.max()}" if known.size else "nothing"
        raise DataError(
            f"{origin}: run from {ends}; number the classes of positions from 0 to at most "
            f"{MAX_CLASSES - 1}, with {IGNORED} where there is none"
        )
    classes = names if len(names) > known.max() else range(int(known.max()) + 1)
    return Labels(array, tuple(map(str, classes)), origin)


def attribute_of(column: DataColumn) -> Attribute:
    """A column as a private attribute; a quantity is split in halves at its median.

    Raises:
        DataError: the column has a single value, or too many to be categories.
    """
    if len(column.values) < 2:
        raise DataError(
            f"{column.origin}: every record has the value {quote(column.values[0])}; "
            "there is nothing private to find, name another attribute"
        )
    if column.discrete:
        column.expect_few_values("name another attribute")
        return Attribute(column.codes, column.values)
    numbers = column.quantities()
    known = numbers[~np.isnan(numbers)]
    median = float(np.median(known))
    cut = median if median < known.max() else float(known[known < known.max()].max())
    codes = np.where(np.isnan(numbers), 2, numbers > cut).astype(np.int64)
    values = (f"≤ {spell(cut)}", f"> {spell(cut)}", MISSING)
    return Attribute(codes, values if len(known) < len(numbers) else values[:2])


def users_of(column: DataColumn) -> NDArray[np.str_]:
    """A column as the user of each record, (records,) strings.

    Raises:
        DataError: a user is missing.
    """
    if column.missing:
        raise DataError(
            f"{column.origin}: {column.missing} of {len(column)} users are missing; "
            "remove those records"
        )
    return np.array(column.values, dtype=np.str_)[column.codes]


def members_of(column: DataColumn) -> NDArray[np.bool_]:
    """A column as membership in the training set, (records,).

    Raises:
        DataError: a value says neither yes nor no.
    """
    unclear = [value for value in column.values if value.lower() not in _MEMBER]
    if unclear:
        raise DataError(
            f"{column.origin}: {quote(unclear[0])} does not say whether a record was trained on; "
            f"write {', '.join(_MEMBER)}"
        )
    return np.array([_MEMBER[value.lower()] for value in column.values])[column.codes]


def no_labels(records: int, origin: str) -> Labels:
    """The labels of records that have none, (records, 0)."""
    return Labels(np.zeros((records, 0), dtype=np.float32), (), origin)


def named_label(label: str | None, example: str, origin: str) -> str:
    """The column or key of the label; a UsageError where none is named."""
    if label is None:
        raise UsageError(f"{origin}: option 'label' is missing; add label={example}")
    return label


def left_aside(
    known: Iterable[str], used: Iterable[str | None], note: str = "left"
) -> dict[str, JsonValue]:
    """The note that names columns or keys that nothing is read from; empty where there are none."""
    taken = set(used)
    left: list[JsonValue] = [name for name in known if name not in taken]
    return {note: left} if left else {}


def assemble(
    inputs: Inputs,
    labels: Labels,
    attributes: Iterable[DataColumn] = (),
    *,
    user: DataColumn | None = None,
    member: DataColumn | None = None,
    notes: dict[str, JsonValue] | None = None,
) -> Records:
    """Records of inputs, labels and the columns that serve as something.

    Raises:
        DataError: a part has another number of records than the inputs, or a column cannot serve
            as what it was named for.
    """
    attributes = tuple(attributes)
    expect_length(len(labels.values), len(inputs.array), labels.origin)
    for column in (*attributes, user, member):
        if column is not None:
            expect_length(len(column), len(inputs.array), column.origin)
    halved = [column.name for column in attributes if not column.discrete]
    changes: dict[str, JsonValue] = {"halved_at_median": [*halved]} if halved else {}
    if labels.values.ndim == 2 and not labels.values.shape[1]:
        changes["labels"] = "none"
    if labels.words:
        changes["labels_encoded"] = True
    return Records(
        inputs=torch.from_numpy(np.ascontiguousarray(inputs.array)),
        labels=torch.from_numpy(np.ascontiguousarray(labels.values)),
        classes=labels.classes,
        class_numbers=labels.numbers,
        attributes={column.name: attribute_of(column) for column in attributes},
        users=None if user is None else users_of(user),
        members=None if member is None else members_of(member),
        features=inputs.features,
        notes=inputs.notes | changes | (notes or {}),
    )


def in_order(records: Records, names: tuple[str, ...], origin: str) -> Records:
    """The records with class i called as the i-th of the names.

    Raises:
        UsageError: there are no classes, one of them is not among the names, or a name is there
            twice.
    """
    if not records.classes or records.labels.dim() != 1:
        raise UsageError(f"{origin}: has no classes to put in order; leave out classes=")
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise UsageError(f"{origin}: classes= has {twice!r} twice")
    places = {name: place for place, name in enumerate(names)}
    for name in (records.classes[code] for code in np.unique(records.labels)):
        if name not in places:
            raise UsageError(
                f"{origin}: classes= lacks {name!r}{suggest(name, names)}; the data's classes are: "
                f"{listed(records.classes, 20)}"
            )
    codes = torch.tensor([places.get(name, -1) for name in records.classes])
    return replace(records, labels=codes[records.labels], classes=names, class_numbers=())


def names_in(order: str) -> tuple[str, ...]:
    """Read names that are separated by commas, or that a file lists one a line.

    Raises:
        UsageError: the file cannot be read.
    """
    path = Path(order).expanduser()
    if "," in order or not path.is_file():
        return tuple(name.strip() for name in order.split(",") if name.strip())
    try:
        lines = read_file(path, _MAX_BYTES).decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: is not text in UTF-8; write the name of a class a line"
        ) from error
    return tuple(line.strip() for line in lines if line.strip())
