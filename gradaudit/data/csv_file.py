"""Tables in CSV files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from gradaudit.data.common.tables import UTF_8, Separator, read_table
from gradaudit.data.common.tabular import Tabular
from gradaudit.data.records import Records


@dataclass(frozen=True, kw_only=True)
class CsvFile(Tabular):
    """A CSV file with a header line, plain or compressed by gzip.

    Attributes:
        sep: what stands between cells; the sign that the header has most of without it.
        decimal: sign before the decimals of numbers.
        encoding: of the text, as Python calls it (``latin-1``, ``utf-16``); UTF-8 without it.
    """

    name: ClassVar[str] = "csv"
    summary: ClassVar[str] = "a table in a CSV file"
    example: ClassVar[str] = "csv:FILE?label=COL&attribute=COL&drop=COL&user=COL&member=COL"

    sep: Separator | None = None
    decimal: Literal[".", ","] = "."
    encoding: str = UTF_8

    def load(self) -> Records:
        """Read and encode the table."""
        how: dict[str, Any] = {"sep": self.sep, "decimal": self.decimal, "encoding": self.encoding}
        return self.records_of(read_table(Path(self.source), **how))
