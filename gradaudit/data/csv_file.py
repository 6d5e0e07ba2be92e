"""Tables in CSV files."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from gradaudit.data.common.tables import read_table
from gradaudit.data.common.tabular import Tabular
from gradaudit.data.records import Records


@dataclass(frozen=True, kw_only=True)
class CsvFile(Tabular):
    """A CSV file with a header line, plain or compressed by gzip.

    Attributes:
        delimiter: what stands between cells.
    """

    name: ClassVar[str] = "csv"
    summary: ClassVar[str] = "a table in a CSV file"
    example: ClassVar[str] = "csv:FILE?label=COL&attribute=COL&drop=COL&user=COL&member=COL"

    delimiter: Literal["comma", "semicolon", "tab"] = "comma"

    def load(self) -> Records:
        """Read and encode the table."""
        return self.records_of(read_table(Path(self.source), self.delimiter))
