"""What a scan prints is what docs/reading.md and the README's picture show."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import HANGS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")


def shown(name: str) -> str:
    """The block of the page between the comments of this name."""
    found = re.search(rf"<!-- {name} -->\n```\n(.*?)```\n<!-- /{name} -->", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?(?:e[-+]\d+)?(?![\w.-]*\w)")


def words_and_numbers(text: str) -> tuple[str, list[str]]:
    """The text without time, numbers and what would settle them, and the layout they make."""
    text = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:+]+", "TIME", text)
    text = " ".join(re.sub("─+", " ", text).split())
    text = re.sub(r"about [\d.,]+ (times|records|trials)", r"about MANY \1", text)
    return NUMBER.sub("#", text), NUMBER.findall(text)


def alike(left: str, right: str) -> bool:
    """To a fiftieth, or to 0.01, whatever the processor rounds.

    A forest splits at thresholds, so that the last bit of a gradient moves a measurement by far
    more than a rounding.
    """
    return math.isclose(float(left), float(right), rel_tol=0.02, abs_tol=0.01)


@pytest.mark.slow
def test_the_first_scan_prints_what_the_page_shows() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gradaudit", "scan"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=ROOT,
        env={"PATH": "", "COLUMNS": "80", "PYTHONUTF8": "1"},
        timeout=HANGS,
        check=False,
    )
    assert (done.returncode, "FAILED" in done.stdout) == (1, True), done.stderr
    printed, there = words_and_numbers(done.stdout)
    written, here = words_and_numbers(shown("scan"))
    assert printed == written
    off = [pair for pair in zip(there, here, strict=True) if not alike(*pair)]
    assert not off


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("0.0264", "0.0265", True),
        ("0.02", "0.04", False),
        ("315", "315.0", True),
        ("459", "460", True),
        ("4", "5", False),
        ("3.63e-16", "8.1e-16", True),
        ("1", "0.997", True),
        ("4.91", "5.3", False),
    ],
)
def test_what_is_alike(left: str, right: str, same: bool) -> None:
    assert alike(left, right) is same


def test_names_and_times_are_no_measurements() -> None:
    words, numbers = words_and_numbers(
        "conv1  0.5 [0.2, 1]\n──  round-10 1,797 2026-11-21T22:09:20+00:00"
    )
    assert words == "conv1 # [#, #] round-10 #,# TIME"
    assert numbers == ["0.5", "0.2", "1", "1", "797"]
