"""What a row of the table is, and the sound files that lie beside every hostile one."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from report_builder import make_report, row

from gradaudit.core.files import write_atomically

CANARY = "ran"
"""The file that code in a hostile file makes where it is run."""

MODEL = "zoo:mlp?inputs=2&hidden=3&classes=2"
DATA = "csv:table.csv?label=y"
OUTPUT = "-o out.json"


@dataclass(frozen=True)
class Case:
    """A hostile file, the command that reads it, and what it must say.

    Attributes:
        name: what is wrong with the file.
        file: its name, which the line must hold.
        content: its bytes, or what makes it at a path.
        command: words after ``gradaudit``, run in the file's folder.
        words: what the line must hold too.
        status: how the command must end.
        seconds, memory: what it may take, of the processor and beyond what is there before.
    """

    name: str
    file: str
    content: bytes | Callable[[Path], object]
    command: str
    words: str
    status: int = 3
    seconds: float = 2
    memory: int = 300 << 20

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"

    def build(self, folder: Path) -> None:
        """Make the hostile file and the sound ones beside it."""
        (folder / "table.csv").write_text("a,b,y\n" + "1,2,no\n3,5,yes\n" * 8)
        report = make_report(row("sensitivity.input_f", "fc1", 0.5), row("copa-metric.c", None, 3))
        write_atomically(folder / "report.json", report.to_json())
        if isinstance(self.content, bytes):
            (folder / self.file).write_bytes(self.content)
            return
        with warnings.catch_warnings(action="ignore"):
            self.content(folder / self.file)


class Touch:
    """Pickles into a call that makes the canary when it is loaded."""

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path(CANARY),)
