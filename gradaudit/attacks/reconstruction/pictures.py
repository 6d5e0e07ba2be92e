"""Originals beside reconstructions, as PNG; private data, written only on demand."""

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from gradaudit.errors import NotApplicable, UsageError
from gradaudit.files import write_atomically

_SIDE = 128
"""Small pictures are enlarged to about this many pixels a side, without smoothing."""
_GAP, _LINE = 4, 14
_INK = (0, 0, 0)


def expect_folder(folder: Path) -> None:
    """Make the folder for examples, before the work.

    Raises:
        UsageError: it cannot be made or is a file.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--save-examples {folder}: cannot be made: {error.strerror or error}"
        ) from error


def draw_examples(folder: Path, name: str, truth: Tensor | None, reconstructions: Tensor) -> Path:
    """Write ``NAME.png``: a row a record, the original at the left where it is known.

    Args:
        folder: exists.
        name: of the method and the batch; it is written above the pictures.
        truth: (k, channels, height, width) in [0, 1], or None.
        reconstructions: the same shape; values outside are clipped.

    Raises:
        NotApplicable: the records are no pictures.
    """
    if reconstructions.dim() != 4 or reconstructions.shape[1] not in (1, 3):
        raise NotApplicable("--save-examples draws pictures, and these records are none")
    columns = [("reconstruction", reconstructions)]
    if truth is not None:
        columns.insert(0, ("original", truth))
    scale = max(1, round(_SIDE / max(reconstructions.shape[-2:])))
    height, width = (size * scale for size in reconstructions.shape[-2:])
    cell = max(width, 100) + _GAP
    size = (_GAP + cell * len(columns), 2 * _LINE + (height + _GAP) * len(reconstructions) + _GAP)
    sheet = Image.new("RGB", size, (255, 255, 255))
    ink, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    ink.text((_GAP, 1), name, fill=_INK, font=font)
    for column, (title, pictures) in enumerate(columns):
        left = _GAP + column * cell
        ink.text((left, _LINE), title, fill=_INK, font=font)
        for row, picture in enumerate(pictures):
            pixels = (picture.detach().cpu().double().clamp(0, 1) * 255).round()
            shown = pixels.numpy().astype(np.uint8).transpose(1, 2, 0)
            image = Image.fromarray(shown[..., 0] if shown.shape[2] == 1 else shown).convert("RGB")
            enlarged = image.resize((width, height), Image.Resampling.NEAREST)
            sheet.paste(enlarged, (left, 2 * _LINE + row * (height + _GAP)))
    content = io.BytesIO()
    sheet.save(content, format="PNG")
    path = folder / f"{name}.png"
    write_atomically(path, content.getvalue())
    return path
