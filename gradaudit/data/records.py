"""Records of a data adapter: inputs with task labels, private attributes, users, a schema.

A report says of them sizes and counts (``describe``) and a fingerprint; never a record.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.data.common.packing import InputPart

IGNORED = -100
"""The label of a position that has none."""
OTHER = "other"
"""The value that rare ones are merged into."""


@dataclass(frozen=True)
class Attribute:
    """A private attribute: ``codes[i]`` indexes ``values`` for record i.

    ``codes`` has shape (records,), int64, without missing entries (a missing value is a value of
    its own).
    """

    codes: NDArray[np.int64]
    values: tuple[str, ...]


@dataclass(frozen=True)
class Feature:
    """A column of a table, and its positions in the encoded inputs.

    A numeric column takes one position and has its observed (low, high) range in encoded units;
    a categorical column takes a one-hot group of ``len(values)`` positions, or, ``coded``, one
    position that holds the place of its value among them.
    """

    name: str
    positions: tuple[int, ...]
    range: tuple[float, float] | None = None
    values: tuple[str, ...] = ()
    coded: bool = False


class SpelledTexts(NamedTuple):
    """Texts of tokens in words.

    Attributes:
        texts: the pieces of each text, one for each token; joined they are the text.
        note: what a reader must know of the words; empty where they are the texts' own.
    """

    texts: list[list[str]]
    note: str = ""


Spelling = Callable[[Sequence[Sequence[int]]], SpelledTexts]
"""Spells texts of tokens in words; it may read the data or the tokenizer again."""


@dataclass(frozen=True)
class Records:
    """A data set in memory.

    Attributes:
        inputs: (records, …) floats, or integer tokens for discrete inputs.
        labels: (records,) int64 class labels, (records, …) of positions (``IGNORED`` where there
            is none), or (records,) or (records, …) targets; (records, 0) where there are none.
        classes: names of the classes, empty for regression.
        attributes: the named private attributes.
        users: (records,) user of each record, or None.
        members: (records,) whether the record was in the training set, or None.
        features: the table's columns, empty for other data.
        adapter: the adapter's name.
        notes: what the adapter did to the data (encoding, imputation), for the report.
        parts: the model's arguments by name, where it takes several: they lie side by side in
            ``inputs``, (records, positions).
        spelling: what spells their tokens in words; None where nothing does.
        class_numbers: numbers that the classes are in the data, ascending; empty where they are
            words, or numbered by the user.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    classes: tuple[str, ...] = ()
    attributes: dict[str, Attribute] = field(default_factory=dict)
    users: NDArray[np.str_] | None = None
    members: NDArray[np.bool_] | None = None
    features: tuple[Feature, ...] = ()
    adapter: str = ""
    notes: dict[str, JsonValue] = field(default_factory=dict)
    parts: tuple[InputPart, ...] = ()
    spelling: Spelling | None = None
    class_numbers: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.inputs)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all that is in them."""
        digest = hashlib.sha256()
        for part in _parts(self):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.hexdigest()

    @property
    def unlabelled(self) -> bool:
        """Whether there are no labels at all."""
        return self.labels.dim() == 2 and self.labels.shape[1] == 0

    @property
    def discrete(self) -> bool:
        """Whether the inputs are tokens rather than real numbers."""
        return not self.inputs.is_floating_point()

    @property
    def looked_up(self) -> bool:
        """Whether some of the inputs are tokens or codes, which cannot vary continuously."""
        coded = any(feature.coded for feature in self.features)
        return self.discrete or coded or any(part.kind != "numbers" for part in self.parts)

    def take(self, indices: NDArray[np.int64]) -> Records:
        """The records at ``indices``, in that order."""
        rows = torch.from_numpy(np.asarray(indices, dtype=np.int64))
        return replace(
            self,
            inputs=self.inputs[rows],
            labels=self.labels[rows],
            attributes={
                name: Attribute(attribute.codes[indices], attribute.values)
                for name, attribute in self.attributes.items()
            },
            users=None if self.users is None else self.users[indices],
            members=None if self.members is None else self.members[indices],
        )


def describe(records: Records) -> dict[str, JsonValue]:
    """The ``data`` section of a report.

    Returns:
        adapter, number of records, shape and type of an input, mean, standard deviation and
        (but for the columns of a table) range of the inputs, the task, the count of every class
        (None for other tasks) and of every attribute's values, numbers of users, members and
        columns (None where there are none), what the adapter noted, and the fingerprint.
    """
    known = records.labels[records.labels >= 0].numpy()  # negative ones are no classes
    return {
        "adapter": records.adapter,
        "records": len(records),
        "input_shape": list(records.inputs.shape[1:]),
        "input_type": "tokens" if records.discrete else "numbers",
        "inputs": _moments(records),
        "task": _task(records),
        "classes": _counts(known, records.classes) if records.classes else None,
        "attributes": {
            name: _counts(attribute.codes, attribute.values)
            for name, attribute in records.attributes.items()
        },
        "users": None if records.users is None else len(set(records.users.tolist())),
        "members": None if records.members is None else int(records.members.sum()),
        "columns": len(records.features) or None,
        "notes": dict(records.notes),
        "fingerprint": fingerprint(records),
    }


def _moments(records: Records) -> dict[str, JsonValue] | None:
    """Returns mean, deviation and range of real inputs, rounded alike; None for tokens."""
    if records.discrete or not bool(records.inputs.isfinite().all()) or not records.inputs.numel():
        return None
    deviation, mean = torch.std_mean(records.inputs, correction=0)
    found = {"mean": mean, "deviation": deviation}
    if not records.features:  # an end of a column is a record's own value
        found |= dict(zip(("low", "high"), records.inputs.aminmax(), strict=True))
    largest = max(float(value.abs()) for value in found.values())
    places = 3 - math.floor(math.log10(largest)) if largest else 0
    return {name: round(float(value), places) + 0.0 for name, value in found.items()}


def _task(records: Records) -> str:
    if records.classes:
        return "classification"
    if records.unlabelled:
        return "none"
    tokens = records.labels.dim() > 1 and not records.labels.is_floating_point()
    return "tokens" if tokens else "regression"


def fingerprint(records: Records) -> str:
    """SHA-256 over inputs, labels, attributes, users and membership with their names and types.

    The same records give the same fingerprint in every run; their order matters. It is made once.
    """
    return records.digest


def _parts(records: Records) -> Iterator[bytes | memoryview]:
    yield from _array("inputs", records.inputs.numpy())
    yield from _array("labels", records.labels.numpy())
    if records.parts:
        yield repr(records.parts).encode()
    yield repr(records.classes).encode()
    for name, attribute in sorted(records.attributes.items()):
        yield repr((name, attribute.values)).encode()
        yield from _array("attribute", attribute.codes)
    if records.users is not None:
        yield repr(records.users.tolist()).encode()
    if records.members is not None:
        yield from _array("members", records.members)


def _array(name: str, array: Any) -> Iterator[bytes | memoryview]:
    """Name, type and shape, then the bytes in C order."""
    yield f"{name} {array.dtype.str} {array.shape}".encode()
    if array.size:
        yield np.ascontiguousarray(array).data.cast("B")


def _counts(codes: Any, values: Sequence[str]) -> dict[str, JsonValue]:
    """Returns the number of occurrences of each value."""
    counts = np.bincount(codes, minlength=len(values)).tolist()
    return dict(zip(values, counts, strict=True))


def merge_rare(attribute: Attribute, fewest: int) -> tuple[Attribute, tuple[str, ...]]:
    """The attribute with its rare values merged into one called ``other``.

    Values of fewer than ``fewest`` records are merged, and with them the rarest of the rest while
    all merged ones together are fewer. A value that would be alone stays as it is.

    Args:
        attribute: whose values may occur nowhere.
        fewest: records that a value must have to stand by itself; 0 merges none.

    Returns:
        The attribute, with only values that occur, and the names of those that were merged.
    """
    counts = np.bincount(attribute.codes, minlength=len(attribute.values))
    order = np.argsort(counts, kind="stable")
    order = order[counts[order] > 0]
    rare = int((counts[order] < fewest).sum())
    while 0 < rare < len(order) and counts[order[:rare]].sum() < fewest:
        rare += 1
    merged = np.sort(order[:rare]) if rare > 1 else order[:0]
    kept = np.setdiff1d(order, merged)
    names = [attribute.values[code] for code in kept]
    places = np.full(len(attribute.values), len(names))
    places[kept] = np.arange(len(names))
    if len(merged):
        names.append(OTHER if OTHER not in names else f"{OTHER} values")
    codes = places[attribute.codes].astype(np.int64)
    return Attribute(codes, tuple(names)), tuple(attribute.values[code] for code in merged)


def with_rare_merged(
    records: Records, fewest: int
) -> tuple[Records, Mapping[str, tuple[str, ...]]]:
    """The records with the rare values of every attribute merged, and which, by attribute."""
    if not fewest:
        return records, {}
    merged = {name: merge_rare(a, fewest) for name, a in records.attributes.items()}
    attributes = {name: attribute for name, (attribute, _) in merged.items()}
    return replace(records, attributes=attributes), {n: v for n, (_, v) in merged.items() if v}
