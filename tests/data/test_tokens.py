"""Tokens of a tokenizer's folder, and their spelling."""

from pathlib import Path

import pytest
from language_models import SENTENCES, tokenizer_in

from gradaudit.core.huggingface import library
from gradaudit.data.common.tokenizing import Hashing, Pretrained

LENGTH = 6
LONG = " ".join(SENTENCES)
TEXTS = [
    LONG,
    "  \n".join(SENTENCES),
    "gold",
    "",
    "z" * 500,
    "a" * 60 + " " + LONG,
    " " * 100 + LONG,
    "bird" + "\t" * 200 + "gold",
    "x" * 47 + LONG,
]


@pytest.fixture(params=["words", "bytes"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A tokenizer with special tokens at both ends, or one of bytes with spaces in its tokens."""
    if request.param == "words":
        tokenizer_in(tmp_path, ends=True, types=True)
        return tmp_path
    made = pytest.importorskip("tokenizers").ByteLevelBPETokenizer()
    made.train_from_iterator(SENTENCES, vocab_size=300, min_frequency=1)
    transformers = library("transformers")
    transformers.PreTrainedTokenizerFast(tokenizer_object=made._tokenizer).save_pretrained(tmp_path)
    return tmp_path


def test_tokens_are_those_of_whole_texts(folder: Path) -> None:
    tokenizer = library("transformers").AutoTokenizer.from_pretrained(folder)
    tokens = Pretrained(folder).tokens(TEXTS, LENGTH, padding=0)
    for k, text in enumerate(TEXTS):
        whole = tokenizer(text, truncation=True, max_length=LENGTH)["input_ids"]
        assert tokens.ids[k][tokens.present[k]].tolist() == whole


def test_tokens_are_spelled_as_the_tokenizer_decodes_them(folder: Path) -> None:
    """Of bytes too that make a character only together."""
    tokenizer = library("transformers").AutoTokenizer.from_pretrained(folder)
    texts = [tokenizer(text)["input_ids"] for text in (*SENTENCES, "café 🦊 \u4e2d", "")]
    spelled, note = Pretrained(folder).spelled(texts, lambda: [])
    assert (note, list(map(len, spelled))) == ("", list(map(len, texts)))
    for ids, pieces in zip(texts, spelled, strict=True):
        for end in range(len(ids) + 1):
            begun = tokenizer.decode(ids[:end], clean_up_tokenization_spaces=False)
            if end == len(ids) or not begun.endswith("\ufffd"):
                assert "".join(pieces[:end]) == begun


def test_hashed_tokens_are_spelled_by_the_most_frequent_word() -> None:
    few, many = Hashing(2), Hashing(10_000)
    read = ["Gold and gold.", "the GOLD's dog"]
    assert few.spelled([[1, 1]], lambda: read).texts == [["gold", " gold"]]
    assert "most frequent" in few.spelled([[1]], lambda: read).note
    tokens = many.tokens(["the dog's gold"], 4).ids[0].tolist()
    spelled, note = many.spelled([tokens, []], lambda: read)
    assert spelled == [["the", f" #{tokens[1]}", " gold", " #0"], []]
    assert not note
