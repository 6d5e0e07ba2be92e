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

from gradaudit.errors import UsageError
from gradaudit.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")
_STYLE: Any = {"svg.hashsalt": "gradaudit", "svg.fonttype": "none", "font.size": 9}
_INCHES = (4.6, 3.2)


def expect_picture(path: Path) -> None:
    """Check before the work that a picture can be written to a path.

    Raises:
        UsageError: the suffix is neither .svg nor .png, the folder is missing or not writable, or
            a folder has the picture's name.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path}: pictures are written as {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path}: the folder is not writable; name another")
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; name a file")


@contextmanager
def picture(path: Path, panels: int) -> Iterator[list[Axes]]:
    """Yields panels side by side to draw into; the picture is written when the block ends.

    Args:
        path: ends in .svg or .png.
        panels: how many. All share one legend, of the first panel's labels, above them.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_INCHES[0] * panels, _INCHES[1]), layout="constrained")
        axes = list(figure.subplots(1, panels, squeeze=False)[0])
        for panel in axes:
            panel.spines[["top", "right"]].set_visible(False)
        yield axes
        write_atomically(path, _content(figure, path.suffix.lower().removeprefix(".")))


def _content(figure: Figure, kind: str) -> bytes:
    labelled = figure.axes[0].get_legend_handles_labels()
    if labelled[0]:
        figure.legend(*labelled, loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    content = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    figure.savefig(content, format=kind, metadata=metadata, dpi=150)
    return content.getvalue()
