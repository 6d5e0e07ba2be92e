"""Texts as hashed words."""

import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from gradaudit.data import load_records
from gradaudit.data.common import checks
from gradaudit.data.common.tokenizing import Hashing
from gradaudit.errors import DataError, UsageError

Write = Callable[..., Path]


def token(word: str, vocabulary: int) -> int:
    return 1 + zlib.crc32(word.encode()) % (vocabulary - 1)


def test_words_are_hashed_cut_and_padded() -> None:
    found = Hashing(50).tokens(["Don't STOP, don't", "", "Größe_9 'x' 1 2 3"], 4)
    stop, dont = token("stop", 50), token("don't", 50)
    assert found.present.sum(axis=1).tolist() == [3, 0, 4]
    assert found.ids.tolist() == [
        [dont, stop, dont, 0],
        [0, 0, 0, 0],
        [token("größe", 50), token("9", 50), token("x", 50), token("1", 50)],
    ]


def test_every_token_is_below_the_vocabulary_and_no_word_is_padding() -> None:
    words = [f"w{i}" for i in range(2000)]
    tokens = Hashing(7).tokens(words, 1)
    assert set(tokens.ids[:, 0].tolist()) == {1, 2, 3, 4, 5, 6}


def test_a_word_has_the_same_token_in_every_data_set(csv_file: Write) -> None:
    one = load_records(f"text:{csv_file('t,y', 'blue,0', 'red,1', name='1.csv')}?text=t&label=y")
    two = load_records(f"text:{csv_file('t,y', 'red,0', 'x,1', name='2.csv')}?text=t&label=y")
    assert one.inputs[1].equal(two.inputs[0])


def test_records_of_texts(csv_file: Write) -> None:
    path = csv_file("t,y,n,who,part", "a b,pos,3,u,train", "b,neg,4,v,test", "?,neg,4,v,test")
    records = load_records(
        f"text:{path}?text=t&label=y&attribute=n&user=who&member=part&length=3&vocabulary=100"
    )
    a, b = token("a", 100), token("b", 100)
    assert records.discrete
    assert records.inputs.tolist() == [[a, b, 0], [b, 0, 0], [0, 0, 0]]
    assert records.classes == ("neg", "pos")
    assert list(records.attributes) == ["n", "member"]
    assert records.notes == {"length": 3, "vocabulary": 100, "labels_encoded": True}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("text=tt&label=y", "no column 'tt'"),
        ("text=t&label=yy", "no column 'yy'"),
        ("label=y", "option 'text' is missing"),
        ("text=t", "option 'label' is missing"),
        ("text=t&label=y&task=next-token", "label=y: the model predicts tokens"),
        ("text=t&task=masked-token", "has no token for a masked one"),
        ("text=t&label=y&reading=x", "option 'reading' cannot be set here"),
        ("text=t&label=y&length=0", "length is at least 1"),
        ("text=t&label=y&vocabulary=1", "vocabulary at least 2"),
        ("text=t&label=y&length=long", "is not a whole number"),
    ],
)
def test_bad_requests(csv_file: Write, options: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_records(f"text:{csv_file('t,y', 'a,0', 'b,1')}?{options}")
    assert message in str(caught.value)


def test_tokens_that_would_not_fit_are_refused(
    csv_file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "MAX_BYTES", 100)
    spec = f"text:{csv_file('t,y', 'a,0', 'a,1', 'a,0')}?text=t&label=y&length="
    assert load_records(f"{spec}4").inputs.nbytes == 96
    with pytest.raises(DataError, match=r"csv: numbers of shape \(3, 5\)"):
        load_records(f"{spec}5")
