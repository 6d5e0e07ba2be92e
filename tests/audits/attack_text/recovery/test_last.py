"""Last tokens, which the head alone was asked for."""

from dataclasses import replace

import pytest
from audits.attack_text.sentences import view

from gradaudit.audits.attack_text.recovery.recover import last_tokens


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
