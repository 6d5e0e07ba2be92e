"""Asks for trust before running code that a configuration file names, if nobody named that file.

A folder that was merely entered may be a stranger's. What its ``gradaudit.yaml`` asks for is read
all the same, but nothing in it that is run: Python files, modules of the folder, exported models,
whole jobs, clusters. A user who names the file, or has ``init`` write it, trusts the code that it
names, whatever else is changed in it.
"""

import hashlib
import re
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gradaudit.core.files import state_folder
from gradaudit.core.parts import declared
from gradaudit.core.specs import parse_spec
from gradaudit.core.text import printable
from gradaudit.errors import UsageError

_TRUSTED = "trusted"
_MODULE = re.compile(r"(?:(?:flower|nvflare|opacus):)?(\w+)[\w.]*:[\w.]+$")
_SCHEMES = ("zoo", "torchvision", "hf")
_OURS = Path(__file__).parents[1] / "sample_models"


def expect_trusted(path: Path, file: Mapping[str, object], given: Collection[str]) -> None:
    """Raise an error where a file that was found names code that the user has not trusted yet.

    Args:
        path: of the file, in the working directory.
        file: its values by field name; those of an audit are a mapping.
        given: names of values that the command line replaces.

    Raises:
        UsageError: it does, and by which key.
    """
    for key, value in _code({name: v for name, v in file.items() if name not in given}):
        if key.rpartition(".")[2] not in given and _digest(path, key, value) not in _known():
            raise UsageError(
                f"{path}: {key}: {printable(value, 100)!r} is code that no installed package "
                f"brings, and this file was found and not named; say --config {path} once if you "
                "trust this folder"
            )


def trust(path: Path, file: Mapping[str, object]) -> None:
    """Remember that the user trusts the code that a configuration file names now."""
    digests = dict.fromkeys(_digest(path, key, value) for key, value in _code(file))
    new = [digest for digest in digests if digest not in _known()]
    with suppress(OSError):  # of a user without a folder for it, who is asked again
        folder = state_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (folder / _TRUSTED).open("a", encoding="ascii") as stream:
            stream.writelines(f"{digest}\n" for digest in new)


def _known() -> set[str]:
    with suppress(OSError, ValueError):
        return set((state_folder() / _TRUSTED).read_text(encoding="ascii").split())
    return set()


def _digest(path: Path, key: str, value: str) -> str:
    named = f"{key}={value}".encode()
    return hashlib.sha256(bytes(path.resolve()) + b"\0" + named).hexdigest()


def _code(file: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yields the values of a file that name code, with their keys."""
    for key, value in _texts(file):
        if _is_code(key.rpartition(".")[2], value):
            yield key, value


def _texts(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yields every text and path in the values of a file, with its key."""
    if isinstance(value, str | Path):
        yield key, str(value)
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _texts(part, f"{key}.{name}".strip("."))
    elif isinstance(value, Iterable):
        for part in value:
            yield from _texts(part, key)


def _is_code(name: str, value: str) -> bool:
    """Whether a value leads to code outside of the installed packages, or to a cluster."""
    if name == "folder":
        return True
    if name == "executor":
        return value != "loky"
    with suppress(UsageError):
        spec = parse_spec(value)
        return any(map(_leads_out, (spec.name, *(option for _, option in spec.pairs))))
    return False


def _leads_out(word: str) -> bool:
    source = word.rpartition(":")[0] or word
    if source.endswith((".py", ".pt2")):
        places = (*map(Path, sysconfig.get_paths().values()), _OURS)
        return not any(Path(source).resolve().is_relative_to(place.resolve()) for place in places)
    module = _MODULE.match(word)
    if module is None or module[1] in (*_SCHEMES, *declared("gradaudit.data")):
        return False
    return Path(module[1]).is_dir() or any(Path.cwd().glob(f"{module[1]}.*"))
