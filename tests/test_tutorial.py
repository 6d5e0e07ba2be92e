"""The tutorial, typed from its first line to its last, prints what it shows.

``python tests/test_tutorial.py`` writes what the commands print into the page.
"""

import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
BLOCK = re.compile(
    r"^    (?P<command>gradaudit .*)\n\n```text\n(?P<shown>(?:.*\n)*?)```"
    r"|^```\w+\n# (?P<file>\w+\.\w+)\n(?P<text>(?:.*\n)*?)```",
    re.MULTILINE,
)
"""A command with what it prints, or a file."""
NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?")


def typed(folder: Path) -> Iterator[tuple[re.Match[str], str]]:
    """Follow the page in a folder; yield each command's place and what it printed."""
    for block in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        if file := block["file"]:
            (folder / file).write_text(block["text"])
            if file == "train.py":
                subprocess.run([sys.executable, file], cwd=folder, check=True)
        else:
            yield block, printed(block["command"], folder)


def printed(command: str, folder: Path) -> str:
    words = [sys.executable, "-m", *shlex.split(command)]
    surroundings = os.environ | {"COLUMNS": "80", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=folder, env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def words_and_numbers(text: str) -> tuple[list[str], list[float]]:
    """Split a text into its words, numbers as ``#``, and its numbers."""
    numbers = [float(found.replace(",", "")) for found in NUMBER.findall(text)]
    return NUMBER.sub("#", text).split(), numbers


def near(shown: float, measured: float) -> bool:
    """Whether two numbers agree; those of a reconstruction are rounding errors."""
    tiny = max(abs(shown), abs(measured)) < 1e-6
    return tiny or math.isclose(shown, measured, rel_tol=0.15, abs_tol=0.05)


@pytest.mark.slow
@pytest.mark.processes
def test_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    for block, text in typed(tmp_path):
        printed_words, printed_numbers = words_and_numbers(text)
        for part in block["shown"].split("…\n"):
            words, numbers = words_and_numbers(part)
            ends = range(len(words), len(printed_words) + 1)
            starts = [k - len(words) for k in ends if printed_words[k - len(words) : k] == words]
            assert starts, f"{block['command']} does not print\n{part}\nbut\n{text}"
            first = sum(word.count("#") for word in printed_words[: starts[0]])
            measured = printed_numbers[first : first + len(numbers)]
            assert all(map(near, numbers, measured)), (block["command"], numbers, measured)


def main() -> None:
    """Write what the commands print into the page."""
    page = PAGE.read_text(encoding="utf-8")
    with TemporaryDirectory() as folder:
        for block, text in [*typed(Path(folder))][::-1]:
            page = page[: block.start("shown")] + text + page[block.end("shown") :]
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
