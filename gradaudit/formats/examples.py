"""Pictures of reconstructions that ``--save-examples`` wrote, as data within a page."""

import base64
import re
from collections.abc import Iterator
from pathlib import Path

from gradaudit.report import Report

MOST = 8
MOST_BYTES = 100_000
_NAME = re.compile(r"[a-z][a-z0-9-]*-\d\d\.png")
_PNG = b"\x89PNG\r\n\x1a\n"


def examples_of(report: Report) -> Iterator[tuple[str, str]]:
    """Name and ``data:`` address of each picture that still lies where the report says.

    A report names any folder it likes: only small PNG files, named as reconstructions are, are
    taken.
    """
    folder = _folder(report)
    if folder is None or not folder.is_dir():
        return
    files = [path for path in sorted(folder.glob("*.png")) if _NAME.fullmatch(path.name)]
    for path in files[:MOST]:
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= MOST_BYTES:
            content = path.read_bytes()
            if content.startswith(_PNG):
                yield path.stem, f"data:image/png;base64,{base64.b64encode(content).decode()}"


def _folder(report: Report) -> Path | None:
    audits = report.provenance.get("audits")
    options = audits.get("attack reconstruct") if isinstance(audits, dict) else None
    folder = options.get("save_examples") if isinstance(options, dict) else None
    return Path(folder) if isinstance(folder, str) and folder else None
