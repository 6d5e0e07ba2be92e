"""Whole attacks on small transformers: every word comes back, and none of what was not shared."""

from dataclasses import replace

import pytest
import torch
from audits.attack_text.sentences import LENGTH, texts, transformer, view
from torch import Tensor, nn

from gradaudit.audits.attack_text.linear_maps import Structure
from gradaudit.audits.attack_text.recovery.recover import last_tokens, recover
from gradaudit.audits.attack_text.text_threat import TextThreat
from gradaudit.defenses import parse_defense
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.sharing.protocol import SharingProtocol


class Last(nn.Module):
    """The first two scores at the last position."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor) -> Tensor:
        """(texts, positions) to (texts, 2)."""
        scores: Tensor = self.inner(ids)
        return scores[:, -1, :2]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("hide", [(), ("words",), ("words", "places")])
def test_texts_of_a_causal_model_come_back_word_for_word(tied: bool, hide: tuple[str, ...]) -> None:
    made, truth = view(5, tied=tied, hide=hide)
    answer = recover(made, Structure.of(made), 0, Silent())
    headless = tied and "words" in hide
    expected = {text[:-1] if headless else text for text in truth}
    assert set(answer.texts) == expected


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_texts_with_the_same_beginning_come_back_word_for_word(tied: bool, seed: int) -> None:
    """They fill fewer dimensions than there are positions."""
    made, truth = view(4, tied=tied, shared=3, seed=seed)
    found = recover(made, Structure.of(made), 0, Silent()).texts
    assert {text[:-1] for text in found} == {text[:-1] for text in truth}
    assert tied or set(found) == set(truth)


@pytest.mark.slow
def test_a_text_that_is_there_twice_comes_back() -> None:
    for causal in (True, False):
        made, truth = view(2, causal=causal, shared=LENGTH)
        assert set(recover(made, Structure.of(made), 0, Silent()).texts) == set(truth)


def test_texts_of_a_causal_model_that_is_asked_for_a_class_come_back() -> None:
    """In its last block what came in has no gradient but at the last position."""
    target = Target(Last(transformer()).eval(), CrossEntropy())
    batch = texts(3, causal=False)
    made = TextThreat(target, SharingProtocol(), target.layers).view(batch, torch.Generator())
    assert made.task == "class"
    answer = recover(made, Structure.of(made), 0, Silent())
    assert set(answer.texts) == set(map(tuple, batch.inputs.tolist()))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_texts_of_an_encoder_come_back_word_for_word(count: int) -> None:
    made, truth = view(count, causal=False)
    answer = recover(made, Structure.of(made), 0, Silent())
    assert set(answer.texts) == set(truth)


def test_words_alone_come_back_where_no_block_is_shared() -> None:
    blocks = tuple(f"blocks.{k}.{name}" for k in (0, 1) for name in ("out", "wide", "narrow"))
    made, truth = view(3, hide=(*blocks, "blocks.1.qkv", "head"))
    answer = recover(made, Structure.of(made), 0, Silent())
    inner = {word for text in truth for word in text[:-1]}
    assert set(answer.tokens) == inner
    assert not set(answer.texts) & set(truth)


def test_words_come_back_that_the_head_alone_was_asked_for() -> None:
    made, truth = view(4, hide=("words", *(f"blocks.{k}.{n}" for k in (0, 1) for n in _MAPS)))
    answer = recover(made, Structure.of(made), 0, Silent())
    asked = {word for text in truth for word in text[1:]}
    assert set(answer.tokens) <= asked
    assert len(set(answer.tokens)) > len(asked) / 2


def test_nothing_is_named_where_neither_a_span_nor_the_table_is_shared() -> None:
    made, _ = view(2, hide=("words", *(f"blocks.{k}.{n}" for k in (0, 1) for n in _MAPS), "head"))
    answer = recover(made, Structure.of(made), 0, Silent())
    assert answer.texts == answer.tokens == ()


_MAPS = ("qkv", "out", "wide", "narrow")


def test_texts_that_fill_the_space_come_back_by_its_strongest_directions() -> None:
    """Of 30 tokens in 32 dimensions, where no span of the first block is whole."""
    found = 0
    for seed in range(3):
        made, truth = view(5, width=32, seed=seed)
        assert not Structure.of(made).mixed
        texts = recover(made, Structure.of(made), 0, Silent()).texts
        assert len(texts) == 5
        found += len({text[:-1] for text in texts} & {text[:-1] for text in truth})
    assert found >= 9  # 11 of these 15, 25 of 40 on eight seeds


def test_texts_come_back_where_the_tables_and_the_first_block_are_frozen() -> None:
    """The head tells all tokens but the first of each text, which any may be."""
    frozen = ("words", "places", *(f"blocks.0.{n}" for n in (*_MAPS, "before", "between")))
    made, truth = view(4, hide=frozen)
    assert set(recover(made, Structure.of(made), 0, Silent()).texts) == set(truth)


def test_structure_is_found_by_trying() -> None:
    made, _ = view(2)
    found = Structure.of(made)
    local = {name for place in found.places if place.local for name in place.names}
    assert local == {"blocks.0.qkv.weight"}
    assert found.causal
    assert found.positional
    other, _ = view(2, causal=False)
    assert not Structure.of(other).causal


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("defense", ["sign", "prune:0.99", "selective:0.01"])
def test_defended_updates_give_an_answer_of_no_more_than_there_was(
    tied: bool, defense: str
) -> None:
    made, truth = view(3, tied=tied, defenses=(parse_defense(defense),))
    answer = recover(made, Structure.of(made), 0, Silent())
    assert len(answer.texts) <= 3
    assert len(answer.tokens) <= sum(map(len, truth))


@pytest.mark.parametrize("factor", [1.0, 7.0])
@pytest.mark.parametrize("tied", [False, True])
def test_last_tokens_are_told_whatever_the_length_of_the_update(tied: bool, factor: float) -> None:
    made, truth = view(5, tied=tied)
    scaled = replace(made, update={name: factor * part for name, part in made.update.items()})
    found = last_tokens(scaled, [text[:-1] for text in truth])
    assert found == [text[-1] for text in truth]


@pytest.mark.parametrize("lengths", [(7, 3, 5), (2, 7, 4)])
def test_texts_of_several_lengths_end_where_they_end(lengths: tuple[int, ...]) -> None:
    made, truth = view(3, lengths=lengths)
    assert made.lengths == lengths
    assert last_tokens(made, [text[:-1] for text in truth]) == [text[-1] for text in truth]
