"""Matches a checkpoint's keys to the model's: exactly, or without a prefix that all share."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

from torch import Tensor

from gradaudit.core.text import printable
from gradaudit.errors import CheckpointError, UsageError
from gradaudit.models.checkpoint.state_dict import LoadedCheckpoint

COMPILED = "_orig_mod."
_MOST_PREFIXES = 5

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
        """Returns the naming without the shortest common prefix that fits, else by most matches."""
        namings = [self.under((old, "")) for old in common_prefixes(self.plain)]
        return next((n for n in namings if n.fits), max(namings, key=lambda n: len(n.keys)))


def match_keys(
    model: Collection[str],
    required: Collection[Sequence[str]],
    file: Collection[str],
    rename: Rename | None = None,
) -> Naming:
    """Returns the naming of a file's keys.

    Args:
        model: the model's keys.
        required: of every group of keys (tied to one another) the file must have one.
        file: the checkpoint's keys.
        rename: the prefix to replace; without it one that all of the file's keys share is stripped.
    """
    names = Names(model, required, file)
    return names.best() if rename is None else names.under(rename)


def parse_rename(text: str) -> Rename:
    """Parses ``OLD=NEW``, either of which may be empty; raises a UsageError for anything else."""
    old, equals, new = text.partition("=")
    if not equals or not (old or new):
        raise UsageError(
            f"--prefix {text}: write OLD=NEW, as in backbone.= (taken off the checkpoint's keys) "
            "or =backbone. (put before them)"
        )
    return old, new


def common_prefixes(names: Collection[str]) -> list[str]:
    """Returns the prefixes ending with a point that all names share, the empty one first."""
    first, last = min(names, default=""), max(names, default="")
    parts = islice((f"{part}." for part in first.split(".")[:-1]), _MOST_PREFIXES)
    return ["", *(prefix for prefix in accumulate(parts) if last.startswith(prefix))]


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
