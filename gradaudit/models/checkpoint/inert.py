"""Values beside weights that are data but not tensors: paths, arguments, times, numbers.

Training scripts save them with the weights. Reading them needs their classes to be called, so they
are not read: an object that keeps nothing stands for each. Nothing of the classes is imported, and
none of them runs code even where it is: what could is not on these lists. Nor is what the loader
makes itself: sets could take for ever to hash.
"""

import re
from collections import OrderedDict
from collections.abc import Collection
from typing import Any

_PLAIN = r"list|dict|int|float|str|bool|tuple"
_OBJECTS = re.compile(
    r"pathlib(?:\._local)? (?:Pure)?(?:Posix|Windows)?Path"
    r"|argparse Namespace|types SimpleNamespace|typing Any"
    rf"|(?:__builtin__|builtins) (?:{_PLAIN})"
    r"|datetime (?:datetime|date|time|timedelta|timezone)"
    r"|decimal Decimal|fractions Fraction|uuid UUID"
    r"|numpy (?:dtype|ndarray)|numpy\._?core\.multiarray (?:scalar|_reconstruct)"
    r"|numpy\.dtypes \w+DType"
    r"|omegaconf\.(?:dictconfig DictConfig|listconfig ListConfig|nodes \w+Node"
    r"|base (?:ContainerMetadata|Metadata))"
)
_DICTS = re.compile(
    r"collections defaultdict|easydict EasyDict|addict\.addict Dict"
    r"|(?:lightning|lightning_fabric|lightning\.fabric|pytorch_lightning|lightning\.pytorch)"
    r"\.utilities\.(?:data|parsing) AttributeDict"
)


def is_object(name: str) -> bool:
    """Whether a pickle's ``module name`` makes a value that is ignored."""
    return bool(_OBJECTS.fullmatch(name))


def is_dict(name: str) -> bool:
    """Whether a pickle's ``module name`` makes a dict that is filled afterwards."""
    return bool(_DICTS.fullmatch(name))


class StandIn:
    """Stands in for a refused value: it accepts any call and keeps nothing."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


class _Dict:
    """Stands in for a dict that a pickle fills: it is a plain dict."""

    def __new__(cls, *_: Any) -> Any:
        return OrderedDict()


def stand_ins(names: Collection[str]) -> list[Any]:
    """Returns pairs of a stand-in and a name for the weights-only loader."""
    kinds = {name: _Dict if is_dict(name) else StandIn for name in names}
    return [
        (kind, name.replace("__builtin__", "builtins").replace(" ", "."))
        for name, kind in kinds.items()
    ]
