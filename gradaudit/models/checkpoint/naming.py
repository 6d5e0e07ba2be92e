"""Which of a checkpoint's keys is which of the model's, through the prefixes of wrappers."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

PREFIXES = ("module.", "model.", "net.")
"""DataParallel and DDP, and the attributes Lightning modules keep a model in."""

_COMPILED = "_orig_mod."
_MAX_DEPTH = 4


@dataclass(frozen=True)
class Naming:
    """How a checkpoint's keys map to a model's.

    Attributes:
        prefix: stripped from the checkpoint's keys.
        keys: the checkpoint's key of each of the model's keys that has one.
        missing: required keys of the model without one.
        unexpected: keys of the checkpoint under the prefix that the model lacks.
        outside: keys of the checkpoint that do not begin with the prefix.
        compiled: whether ``torch.compile``'s mark was passed over.
    """

    prefix: str
    keys: dict[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    outside: tuple[str, ...]
    compiled: bool

    @property
    def fits(self) -> bool:
        """Whether every required key is there and none is left over."""
        return not self.missing and not self.unexpected


def match_keys(
    model: Collection[str], required: Collection[Sequence[str]], file: Collection[str]
) -> Naming:
    """Map keys under the shortest prefix that makes them fit.

    ``_orig_mod.`` (a compiled submodule) is passed over anywhere in a key, on both sides.

    Args:
        model: every key of the model.
        required: groups of keys (tied to one another) of which the checkpoint must have one.
        file: the checkpoint's keys.

    Returns:
        The first naming that fits; where none does, the one that matches most keys.
    """
    plain = {_plain(key): key for key in file}
    prefixes = sorted(_prefixes(plain), key=len)
    namings = [_under(prefix, model, required, file, plain) for prefix in prefixes]
    fitting = (naming for naming in namings if naming.fits)
    return next(fitting, max(namings, key=lambda naming: len(naming.keys)))


def _prefixes(names: Collection[str], prefix: str = "", depth: int = 0) -> Iterator[str]:
    yield prefix
    for more in PREFIXES if depth < _MAX_DEPTH else ():
        longer = prefix + more
        inside = [name for name in names if name.startswith(longer)]
        if inside:
            yield from _prefixes(inside, longer, depth + 1)


def _under(
    prefix: str,
    model: Collection[str],
    required: Collection[Sequence[str]],
    file: Collection[str],
    plain: Mapping[str, str],
) -> Naming:
    found = {name: plain.get(prefix + _plain(name)) for name in model}
    keys = {name: key for name, key in found.items() if key is not None}
    used = set(keys.values())
    inside = {key for key in file if _plain(key).startswith(prefix)}
    return Naming(
        prefix=prefix,
        keys=keys,
        missing=tuple(tied[0] for tied in required if keys.keys().isdisjoint(tied)),
        unexpected=tuple(key for key in file if key in inside and key not in used),
        outside=tuple(key for key in file if key not in inside),
        compiled=any(_COMPILED in key and _COMPILED not in name for name, key in keys.items()),
    )


def _plain(key: str) -> str:
    return key.replace(_COMPILED, "")
