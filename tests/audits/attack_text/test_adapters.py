"""What is predicted of low-rank adapters, beside what the attack on them names."""

import pytest
from audits.attack_text.sentences import low_rank_view, texts

from gradaudit.audits.attack_text.linear_maps import Structure, adapters, predicted
from gradaudit.audits.attack_text.recovery.recover import recover
from gradaudit.audits.attack_text.text_scores import scores_of
from gradaudit.progress import Silent


@pytest.mark.slow
@pytest.mark.parametrize("rank", [2, 12, 40])
def test_the_prediction_is_near_what_is_measured(rank: int) -> None:
    measured, expected = [], []
    for seed in range(4):
        made, truth = low_rank_view(3, rank=rank, seed=seed)
        structure = Structure.of(made)
        place = adapters(structure)
        assert place is not None
        answer = recover(made, structure, seed, Silent())
        tokens = scores_of(answer.texts, answer.tokens, truth).tokens
        measured.append(tokens[0] / tokens[1])
        pool = texts(24, seed=100).inputs.flatten()
        expected.append(predicted(made, structure, place, pool, seed))
    assert sum(measured) / 4 == pytest.approx(sum(expected) / 4, abs=0.15)


def test_maps_of_full_rank_are_no_adapters() -> None:
    made, _ = low_rank_view(2, rank=None)
    assert adapters(Structure.of(made)) is None
