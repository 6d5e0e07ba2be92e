from hypothesis import given
from hypothesis import strategies as st

from gradaudit.core.text import listed, printable


def test_printable_keeps_ordinary_names():
    assert printable("features.0.weight") == "features.0.weight"
    assert printable("größe/層 [x]") == "größe/層 [x]"


def test_printable_replaces_what_moves_a_terminal():
    assert printable("a\x1b[31mb\r\nc\u202ed\u2028e\ud800") == "a�[31mb��c�d�e�"


def test_printable_cuts_the_middle():
    assert printable("a" * 10 + "b" * 10, limit=7) == "aaa…bbb"
    assert printable("abcdefg", limit=7) == "abcdefg"


@given(st.text(st.characters(), max_size=300), st.integers(1, 250))
def test_printable_is_one_printable_line_within_its_limit(name, limit):
    shown = printable(name, limit)
    assert len(shown) <= limit
    assert len(shown) == min(len(name), limit)
    assert all(c.isprintable() for c in shown)


def test_listed_caps_and_counts():
    assert listed(["a", "b"]) == "a, b"
    assert listed([f"k{i}" for i in range(16)]) == "k0, k1, k2, k3 and 12 more"
    assert listed(["a\nb"]) == "a�b"
