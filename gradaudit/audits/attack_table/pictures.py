"""An answer as a picture and a table: which cells are right, and how sure the attacker is."""

import csv
import io
from pathlib import Path

from PIL import Image, ImageDraw

from gradaudit.audits.attack_table.base import TableAnswer
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.scores import TableScores
from gradaudit.files import write_atomically

_SIDE, _GAP = 14, 2
_RIGHT, _WRONG = (30, 130, 76), (192, 57, 43)
_PALEST = 0.25


def draw_cells(folder: Path, name: str, scores: TableScores) -> None:
    """Write ``NAME.png``: a row a record, a square a column; green is right, red is wrong.

    The surer the attacker is of a cell, the fuller its colour; certified rows have a black bar.
    """
    rows, columns = scores.right.shape
    step = _SIDE + _GAP
    sheet = Image.new("RGB", (step * (columns + 1), step * rows + _GAP), (255, 255, 255))
    ink = ImageDraw.Draw(sheet)
    for row in range(rows):
        top = _GAP + row * step
        if scores.certified[row]:
            ink.rectangle((_GAP, top, 2 * _GAP, top + _SIDE - 1), fill=(0, 0, 0))
        for column in range(columns):
            left = (column + 1) * step
            colour = _RIGHT if scores.right[row, column] else _WRONG
            share = max(_PALEST, float(scores.certainty[row, column]))
            shade = tuple(round(255 - share * (255 - part)) for part in colour)
            ink.rectangle((left, top, left + _SIDE - 1, top + _SIDE - 1), fill=shade)
    content = io.BytesIO()
    sheet.save(content, format="PNG")
    write_atomically(folder / f"{name}.png", content.getvalue())


def write_cells(
    folder: Path, name: str, columns: TableColumns, answer: TableAnswer, *, reveal: bool
) -> None:
    """Write ``NAME.csv``: the answer's rows with their certainty, and values only where asked.

    Args:
        folder: exists.
        name: of the file.
        columns: of the table.
        answer: of an attack.
        reveal: whether values stand in the cells; else the certainty of each.
    """
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([*columns.names, "named", "certified"])
    values = columns.spelled(answer.cells)
    for row, cells in enumerate(values):
        shown = cells if reveal else [f"{part:.2f}" for part in answer.certainty[row].tolist()]
        lines.writerow([*shown, bool(answer.named[row]), bool(answer.certified[row])])
    write_atomically(folder / f"{name}.csv", text.getvalue().encode())
