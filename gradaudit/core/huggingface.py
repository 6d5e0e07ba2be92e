"""Opens folders of Hugging Face's libraries offline; code in a folder is never run.

transformers imports torchvision where that is installed, so torchvision comes first
(``user_code``). The libraries are set to stay offline before they are imported, unless the user's
environment says otherwise; folders are read with ``local_files_only`` either way.
"""

import json
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from gradaudit.core.files import read_file
from gradaudit.core.parts import library as installed
from gradaudit.core.text import printable
from gradaudit.core.user_code import import_torchvision
from gradaudit.errors import UsageError

MAX_BYTES = 16 << 20
"""Largest size of a settings file, in bytes."""

_LEAST_WEIGHTS, _WITHOUT_WEIGHTS = 1 << 26, 1 << 28
"""Weights that a model may have however small those in its folder are, and where there are none."""
_BLOCK = 512
"""Bytes of a block of ``st_blocks``, which shows whether a file has content."""

_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


@cache
def library(name: str) -> Any:
    """Returns ``transformers``, ``peft`` or a module of theirs, set to stay offline.

    Raises:
        UsageError: it is not installed, or cannot be imported.
    """
    for variable, value in _OFFLINE.items():
        os.environ.setdefault(variable, value)
    with suppress(UsageError):  # it does without, where there is none
        import_torchvision("ops")
    return installed(name, "transformers", "models of Hugging Face")


def settings_of(folder: Path, name: str) -> dict[str, Any]:
    """Reads settings from a folder; raises an error where they ask for the folder's own code.

    Raises:
        UsageError: there is no such folder or file, it is no JSON object, or it names code.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder; nothing is ever downloaded")
    path = folder / name
    if not path.exists():
        raise UsageError(f"{folder}: holds no {name}; name a folder that save_pretrained wrote")
    try:
        content = json.loads(read_file(path, MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is not JSON ({type(error).__name__}); save it again") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path}: is not a JSON object; save it again")
    if "auto_map" in content:
        raise UsageError(
            f"{path}: auto_map asks for code of the folder's own, which is never run; name a "
            "function that builds the model, as in --model FILE.py:factory"
        )
    return content


def most_weights(weights: Path | None) -> int:
    """Returns how many weights a folder may ask for: as many as lie in it.

    Args:
        weights: file that holds weights, or names others beside it that do; None without any.
    """
    shards = [] if weights is None else [weights]
    if weights is not None and weights.suffix == ".json":
        shards = [file for file in weights.parent.glob("*model*") if file.suffix != ".json"]
    sizes = [file.stat() for file in shards if file.is_file()]
    held = sum(min(size.st_size, _BLOCK * size.st_blocks or size.st_size) for size in sizes)
    return max(held, _LEAST_WEIGHTS) if sizes else _WITHOUT_WEIGHTS


def reason(error: BaseException) -> str:
    """Returns a library's error about a folder as one printable line."""
    return printable(" ".join(str(error).split()) or type(error).__name__)
