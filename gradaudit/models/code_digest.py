"""What tells two states of a user's file apart: a digest of its content."""

import hashlib
import sys
from pathlib import Path

from gradaudit.specs import parse_spec

_OURS = ("zoo", "torchvision")


def code_digest(text: str) -> str | None:
    """SHA-256 of the file that ``FILE.py:NAME``, ``package.module:NAME`` or ``FILE`` names.

    Of a module it is the file that it was imported from. What a file imports is not in it.

    Args:
        text: a spec of a model or a loss, which was loaded before.

    Returns:
        The digest in hex; None where no file is named.
    """
    spec = parse_spec(text)
    if spec.scheme in _OURS:
        return None
    source = spec.name.rpartition(":")[0]
    imported = getattr(sys.modules.get(source), "__file__", None)
    for file in (spec.name, source, imported):
        if file and Path(file).is_file():
            return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return None
