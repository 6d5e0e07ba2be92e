"""Labels numbered as the model's outputs are."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from gradaudit.data.records import Records
from gradaudit.errors import UsageError
from gradaudit.files import read_file
from gradaudit.specs import suggest
from gradaudit.text import listed

_MAX_BYTES = 1 << 20


def in_class_order(records: Records, order: str, origin: str) -> Records:
    """The records with class i called as the i-th of the names.

    Args:
        records: with labels that are classes.
        order: names with commas between them, or a file with one a line.
        origin: the data's spec, for messages.

    Raises:
        UsageError: as ``in_order``, or the file cannot be read.
    """
    return in_order(records, _names(order), origin)


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
    return replace(records, labels=codes[records.labels], classes=names)


def _names(order: str) -> tuple[str, ...]:
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
