"""Matches a checkpoint's keys to the model's, with prefixes on either side."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from torch import Tensor

from gradaudit.core.text import printable
from gradaudit.errors import CheckpointError, UsageError
from gradaudit.models.checkpoint.state_dict import LoadedCheckpoint

PREFIXES = ("module.", "model.", "net.", "_module.")
"""Known prefixes: DataParallel and DDP, attributes in which Lightning keeps a model, Opacus."""

COMPILED = "_orig_mod."
_MAX_DEPTH = 4
_MOST_TRIED = 16
_MOST_NAMES, _MOST_POINTS, _LONGEST = 2000, 12, 500
"""Limits of the search for a prefix: names, points in a name, and characters."""

Rename = tuple[str, str]
"""A prefix of the checkpoint's keys and the model's prefix in its place."""
NO_RENAME: Rename = ("", "")
MAY_BE_MISSING = "num_batches_tracked"
"""Suffix of the names that a checkpoint may lack."""


@dataclass(frozen=True)
class Naming:
    """The rules by which a checkpoint's keys map to a model's.

    Attributes:
        rename: prefix of the checkpoint's keys, and what stands in its place in the model's.
        keys: the checkpoint's key of each of the model's keys that has one.
        missing: required keys of the model without one.
        unexpected: keys of the checkpoint under the prefix that the model lacks.
        outside: keys of the checkpoint that do not begin with the prefix.
    """

    rename: Rename
    keys: dict[str, str]
    missing: list[str]
    unexpected: list[str]
    outside: list[str]

    @property
    def fits(self) -> bool:
        """Whether every required key has a match, and no key under the prefix is left over."""
        return not self.missing and not self.unexpected

    def renamed(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns a state dict with the prefix replaced, without the keys outside."""
        old, new = self.rename
        plain = {_plain(key): tensor for key, tensor in state.items() if key not in self.outside}
        return {new + key.removeprefix(old): tensor for key, tensor in plain.items()}


class Names:
    """The keys of a model and of a file, to be matched.

    ``_orig_mod.`` (a compiled submodule) is passed over anywhere in a key, on both sides.

    Args:
        model: its keys.
        required: groups of keys, tied to one another, of which the file must have one each.
        file: the checkpoint's keys.
    """

    def __init__(
        self, model: Collection[str], required: Collection[Sequence[str]], file: Collection[str]
    ) -> None:
        self.required = required
        self.model = {name: _plain(name) for name in model}
        self.file = file
        self.plain = {_plain(key): key for key in file}

    def under(self, rename: Rename) -> Naming:
        """Returns the naming in which one prefix replaces another."""
        old, new = rename
        wanted = {
            name: old + plain.removeprefix(new)
            for name, plain in self.model.items()
            if plain.startswith(new)
        }
        keys = {name: self.plain[key] for name, key in wanted.items() if key in self.plain}
        used = set(keys.values())
        inside = {key for key in self.file if _plain(key).startswith(old)}
        return Naming(
            rename,
            keys,
            missing=[tied[0] for tied in self.required if keys.keys().isdisjoint(tied)],
            unexpected=[key for key in self.file if key in inside and key not in used],
            outside=[key for key in self.file if key not in inside],
        )

    def best(self) -> Naming:
        """Returns the naming that fits by the shortest known prefix, else by most matches.

        Where none matches any, it is the only other prefix that makes them fit: taken off the keys
        of the file, or of the model, or put in the place of one of the model's.
        """
        shortest = sorted(self._known(), key=len)[:_MOST_TRIED]
        known = [self.under((old, "")) for old in shortest]
        closest = next((n for n in known if n.fits), max(known, key=lambda n: len(n.keys)))
        if closest.keys:
            return closest
        return self._only(self.candidates()) or self._only(self._replaced()) or closest

    def _only(self, renames: Iterable[Rename]) -> Naming | None:
        """Returns the only fitting naming, if all that fit are the same."""
        fitting = [naming for naming in map(self.under, renames) if naming.fits]
        same = all(naming.keys == fitting[0].keys for naming in fitting)
        return fitting[0] if fitting and same else None

    def candidates(self) -> list[Rename]:
        """Returns prefixes that only the file or the model has, by the keys that they match."""
        file, model = Counter(_cut(self.plain)), Counter(_cut(self.model.values()))
        counts: Counter[Rename] = Counter()
        names = set(self.model.values())
        for (prefix, rest), count in file.items():
            counts[prefix, ""] += count * (rest in names)
        for (prefix, rest), count in model.items():
            counts["", prefix] += count * (rest in self.plain)
        return [rename for rename, count in counts.most_common(_MOST_TRIED) if count]

    def hint(self, naming: Naming) -> str:
        """Returns the ``--prefix`` that would match more keys than a naming does, for a message."""
        tried = [self.under(rename) for rename in (*self.candidates(), *self._replaced())]
        most = max([len(other.keys) for other in tried], default=0)
        if most <= len(naming.keys):
            return ""
        best = [other for other in tried if len(other.keys) == most]
        ways = " or ".join(
            f"--prefix {old}={new}" for old, new in dict.fromkeys(n.rename for n in best)
        )
        return f"{ways} would match {most} of {len(self.model)} keys"

    def _known(self, prefix: str = "", depth: int = 0) -> Iterator[str]:
        yield prefix
        for more in PREFIXES if depth < _MAX_DEPTH else ():
            longer = prefix + more
            if any(name.startswith(longer) for name in self.plain):
                yield from self._known(longer, depth + 1)

    def _replaced(self) -> list[Rename]:
        """Returns prefixes that replace others, found by the longest endings that keys share."""
        endings: dict[str, set[str]] = {}
        for prefix, rest in _cut(self.plain):
            if "." in rest:
                endings.setdefault(rest, set()).add(prefix)
        counts: Counter[Rename] = Counter()
        for prefix, rest in _cut(self.model.values()):
            counts.update((old, prefix) for old in sorted(endings.get(rest, ()))[:_MOST_TRIED])
        return [rename for rename, _ in counts.most_common(_MOST_TRIED)]


def match_keys(
    model: Collection[str],
    required: Collection[Sequence[str]],
    file: Collection[str],
    rename: Rename | None = None,
) -> tuple[Naming, str]:
    """Returns the naming of a file's keys, and a hint at a prefix that would fit better.

    Args:
        model: the model's keys.
        required: of every group of keys (tied to one another) the file must have one.
        file: the checkpoint's keys.
        rename: the prefix to replace; found without it.
    """
    names = Names(model, required, file)
    naming = names.best() if rename is None else names.under(rename)
    return naming, "" if naming.fits else names.hint(naming)


def parse_rename(text: str) -> Rename:
    """Parses ``OLD=NEW``, either of which may be empty; raises a UsageError for anything else."""
    old, equals, new = text.partition("=")
    if not equals or not (old or new):
        raise UsageError(
            f"--prefix {text}: write OLD=NEW, as in backbone.= (taken off the checkpoint's keys) "
            "or =backbone. (put before them)"
        )
    return old, new


def _cut(names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields the ways to cut a prefix that ends with a point off a name, up to a limit."""
    for name in islice(names, _MOST_NAMES):
        for point in islice(re.finditer(r"\.", name[:_LONGEST]), _MOST_POINTS):
            yield name[: point.end()], name[point.end() :]


def _plain(key: str) -> str:
    return key.replace(COMPILED, "")


def in_order_of(expected: Mapping[str, Tensor], loaded: LoadedCheckpoint) -> dict[str, Tensor]:
    """Returns the arrays under the names of ``expected`` by place; BatchNorm's counters may lack.

    Raises:
        CheckpointError: there are more or fewer, or the shape of one is another; the message names
            the first.
    """
    needed = [name for name in expected if not name.endswith(MAY_BE_MISSING)]
    named = needed if len(loaded.state) == len(needed) else list(expected)
    for name, (key, array) in zip(named, loaded.state.items(), strict=False):
        if array.shape != expected[name].shape:
            raise CheckpointError(
                f"{loaded.record.file}: does not fit the model: array {key} is of shape "
                f"{tuple(array.shape)} where the model has {printable(name)} "
                f"{tuple(expected[name].shape)}; arrays without names stand in the order of "
                "model.state_dict()"
            )
    if len(loaded.state) != len(named):
        raise CheckpointError(
            f"{loaded.record.file}: does not fit the model: it holds {len(loaded.state)} arrays "
            f"without names where the model's state has {len(expected)}; save all of "
            "model.state_dict() in order, or with names"
        )
    return dict(zip(named, loaded.state.values(), strict=True))
