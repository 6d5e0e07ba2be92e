"""Clauses in plain words that stand for what a metric beyond its limit says."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic import JsonValue

from gradaudit.audits import Metric
from gradaudit.report import Measurement

WHOLE_UPDATE = "the whole update"
EVERY_LAYER = "every layer"
MOST_NAMES = 3
MOST_PLACES = 8
WHAT_IS_PRIVATE = "private attribute"


class Place(NamedTuple):
    """Where something holds: in layers, in every one of them, in the update as a whole.

    Of more than ``MOST_PLACES`` layers it says how many.
    """

    layers: tuple[str, ...] = ()
    every: bool = False
    whole: bool = False

    @property
    def several(self) -> bool:
        """Whether it is more than one place, so that the worst of them needs its name."""
        return len(self.layers) + self.whole > 1

    def __str__(self) -> str:
        """``conv1 and fc1``, ``layer 2``, ``every layer and the whole update``."""
        names = tuple(f"layer {name}" if name.isdecimal() else name for name in self.layers)
        if self.every or len(names) > MOST_PLACES:
            names = (EVERY_LAYER if self.every else f"{len(names):,} layers",)
        whole = () if names and not self.whole else (WHOLE_UPDATE,)
        return abridged((*names, *whole), MOST_NAMES + len(whole))


def clause(metric: str, known: Metric | None, row: Measurement | None, place: Place) -> str:
    """What a value beyond its limit says: ``a server can tell a batch's sex from fc1``.

    Args:
        metric: ``audit.metric``.
        known: what its audit declares of it; None where that is not installed.
        row: the row of the value, whose details name what was attacked.
        place: where it holds.
    """
    if known is None or not known.says:
        return f"{metric} is beyond its limit in {place}"
    details = row.details if row else {}
    words = {
        "{where}": str(place),
        "{secret}": secret_of(row) or WHAT_IS_PRIVATE,
        "{records}": _records(batch_size(details)),
    }
    text = known.says
    for placeholder, word in words.items():
        text = word.join(text.split(placeholder))
    return text


def secret_of(row: Measurement | None) -> str:
    """What a row says was attacked: a secret or an attribute; empty where it names none."""
    details = row.details if row else {}
    named = details.get("secret") or details.get("attribute")
    return named if isinstance(named, str) else ""


def batch_size(details: Mapping[str, JsonValue]) -> int | None:
    """Of how many records an attacked update is, where details tell."""
    known = details.get("knowledge")
    size = details.get("batch_size", known.get("batch_size") if isinstance(known, dict) else None)
    return size if isinstance(size, int) else None


def _records(size: int | None) -> str:
    if size is None:
        return "records"
    return "single records" if size == 1 else f"records of batches of {size}"


def abridged(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """Names in a sentence, whole ones, but not all of very many."""
    shown, rest = list(names[:most]), len(names) - most
    if rest > 0:
        return f"{', '.join(shown)} and {rest} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)
