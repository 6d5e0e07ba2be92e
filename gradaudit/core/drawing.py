"""Settings that pictures share: permitted paths, style, reproducible bytes.

Matplotlib is loaded when something is drawn.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradaudit.core.files import write_atomically
from gradaudit.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".pdf")
_STYLE: Any = {"svg.hashsalt": "gradaudit", "svg.fonttype": "none", "font.size": 9}
_INCHES = (4.6, 3.2)
_SHARED_INCHES = (3.2, 2.6)
_COLUMNS = 4
"""Most panels side by side that share their y axis."""


def expect_picture(path: Path) -> None:
    """Check before the work that a picture can be written to a path.

    Raises:
        UsageError: the suffix is none of ``SUFFIXES``, the folder is missing or not writable, or a
            folder has the picture's name.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path}: pictures are written as {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path}: the folder is not writable; name another")
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; name a file")


@contextmanager
def picture(path: Path, panels: int, *, shared: bool = False) -> Iterator[list[Axes]]:
    """Yields panels to draw into; the picture is written when the block ends.

    Args:
        path: ends in one of ``SUFFIXES``.
        panels: how many. One legend of their labels stands above them.
        shared: whether all panels have the same y axis; they then stand in rows of up to four, and
            else side by side.
    """
    from matplotlib import figure, rc_context

    with rc_context(_STYLE):
        columns = min(panels, _COLUMNS) if shared else panels
        rows = -(-panels // columns)
        width, height = _SHARED_INCHES if shared and panels > 1 else _INCHES
        drawn = figure.Figure(figsize=(width * columns, height * rows), layout="constrained")
        grid = drawn.subplots(rows, columns, squeeze=False, sharey=shared).ravel()
        axes = list(grid[:panels])
        for unused in grid[panels:]:
            unused.remove()
        for panel in axes:
            panel.spines[["top", "right"]].set_visible(False)
        yield axes
        write_atomically(path, _content(drawn, path.suffix.lower().removeprefix(".")))


def _content(figure: Figure, kind: str) -> bytes:
    handles: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside upper center",
            ncols=4,
            frameon=False,
            fontsize=8,
        )
    content = io.BytesIO()
    undated = {"svg": "Date", "png": "Software", "pdf": "CreationDate"}
    figure.savefig(content, format=kind, metadata={undated[kind]: None}, dpi=150)
    return content.getvalue()
