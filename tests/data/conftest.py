"""Files for the adapters' tests."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("GRADAUDIT_SHARED", Path(__file__).parents[3] / "shared"))


@pytest.fixture
def csv_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a CSV file of these lines."""

    def write(*lines: str, name: str = "table.csv") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


@pytest.fixture
def real() -> Callable[[str], Path]:
    """A real data file, or a skip where the folder with them is absent."""

    def find(name: str) -> Path:
        path = SHARED / "data" / name
        if not path.is_file():
            pytest.skip(f"the real data file {name} is not here (set GRADAUDIT_SHARED)")
        return path

    return find
