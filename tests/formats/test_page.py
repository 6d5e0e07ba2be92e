"""Grids, bands and paragraphs keep every character."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gradaudit.core.text import printable
from gradaudit.formats.page import Column, Page, grid

WORDS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=1, max_size=30)


def column(heading: str, *cells: str, right: bool = False) -> Column:
    return Column(heading, [Text(cell) for cell in cells], right)


def test_numbers_align_to_the_right_and_headings_to_the_bottom() -> None:
    others = [column("n", "1", "222", right=True), column("x\ny", "p", "")]
    lines = grid([column("name", "a", "bb")], others, 80, "-")
    assert [line.plain for line in lines] == [
        "           x",
        "name    n  y",
        "----  ---  -",
        "a       1  p",
        "bb    222",
    ]


@pytest.mark.slow
@given(
    names=st.lists(WORDS, min_size=1, max_size=4),
    columns=st.lists(st.tuples(WORDS, WORDS), max_size=5),
    width=st.integers(1, 60),
)
def test_every_cell_is_in_the_output_whole(
    names: list[str], columns: list[tuple[str, str]], width: int
) -> None:
    others = [column(heading, *([cell] * len(names))) for heading, cell in columns]
    lines = [line.plain for line in grid([column("key", *names)], others, width, "-")]
    text = "\n".join(lines)
    assert all(cell in text for _, cell in columns)
    for name in names:
        assert any(line.startswith(name) for line in lines)
    key = max(map(cell_len, ["key", *names]))
    if others and key + 2 + max(c.width for c in others) <= width:
        assert max(map(cell_len, lines)) <= width


@pytest.mark.slow
@given(st.lists(WORDS, min_size=1), st.integers(20, 60))
def test_a_paragraph_keeps_every_word_whole(words: list[str], width: int) -> None:
    page = Page(Console(file=io.StringIO(), width=width))
    lines = [line.plain for line in page.prose(" ".join(words), "- ", "  ")]
    shown = [printable(word) for word in words]
    assert [w for i, line in enumerate(lines) for w in line.split()[i == 0 :]] == shown
    assert all(len(line) <= width or len(line.split()) <= 2 for line in lines)


def test_wide_characters_take_two_cells() -> None:
    lines = list(grid([column("k", "層", "a")], [column("v", "1", "2")], 80, "-"))
    assert [line.plain for line in lines] == ["k   v", "--  -", "層  1", "a   2"]


@pytest.mark.parametrize("width", [1, 5])
def test_a_key_column_alone_is_never_cut(width: int) -> None:
    lines = [line.plain for line in grid([column("layer", "abcdefghij")], [], width, "-")]
    assert lines == ["layer", "-" * 10, "abcdefghij"]


def test_every_band_and_card_has_all_keys() -> None:
    keys = [column("layer", "fc1"), column("metric", "a.b")]
    others = [column("x", "1" * 6), column("y", "2" * 6)]
    lines = [line.plain for line in grid(keys, others, 22, "-")]
    assert [line for line in lines if line.startswith("fc1")] == [
        "fc1    a.b     111111",
        "fc1    a.b     222222",
    ]
    assert [line.plain for line in grid(keys, others, 18, "-")] == [
        "fc1",
        "a.b",
        "  x  111111",
        "  y  222222",
    ]
