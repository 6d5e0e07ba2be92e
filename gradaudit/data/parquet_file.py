"""Tables in Parquet and Arrow files."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gradaudit.data.common.tables import read_table
from gradaudit.data.common.tabular import Tabular
from gradaudit.data.records import Records


@dataclass(frozen=True, kw_only=True)
class ParquetFile(Tabular):
    """A Parquet file, or an Arrow one (a stream or a file).

    The content decides which. Its columns are read as those of a CSV file are: numbers, truth
    values, text, dates; the extra ``gradaudit[parquet]`` is needed.
    """

    name: ClassVar[str] = "parquet"
    summary: ClassVar[str] = "a table in a Parquet or Arrow file"
    example: ClassVar[str] = "parquet:FILE?label=COL&attribute=COL&drop=COL&user=COL&member=COL"

    def load(self) -> Records:
        """Read and encode the table."""
        return self.records_of(read_table(Path(self.source)))
