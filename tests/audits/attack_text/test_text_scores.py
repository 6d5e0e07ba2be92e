"""ROUGE worked by hand, the assignment, and counts with repetition."""

import pytest

from gradaudit.audits.attack_text.text_scores import TextScores, rouge, scores_of


@pytest.mark.parametrize(
    ("answer", "text", "one", "two"),
    [
        ((1, 2, 3, 4), (1, 2, 3, 4), 1, 1),
        ((1, 2, 4, 3), (1, 2, 3, 4), 1, 2 * 1 / 6),
        ((1, 1, 1), (1, 2), 2 * 1 / 5, 0),
        ((5, 6, 5, 6), (5, 6, 7), 2 * 2 / 7, 2 * 1 / 5),
        ((8, 9), (1, 2), 0, 0),
        ((), (1, 2), 0, 0),
        ((3,), (3,), 1, 1),
        ((3,), (4,), 0, 0),
        ((3,), (3, 4), 2 / 3, 0),
    ],
)
def test_rouge_is_the_f_measure_of_common_runs(
    answer: tuple[int, ...], text: tuple[int, ...], one: float, two: float
) -> None:
    assert rouge(answer, text, 1) == rouge(text, answer, 1) == pytest.approx(one)
    assert rouge(answer, text, 2) == rouge(text, answer, 2) == pytest.approx(two)


def test_each_text_gets_the_answer_that_serves_all_best() -> None:
    """Text 0 would rather have answer 0, too, but text 1 has none other that fits."""
    texts = [(1, 2, 3), (1, 2, 4)]
    scores = scores_of([(1, 2, 4), (1, 2, 5)], (), texts)
    assert scores.rouge1 == pytest.approx((2 / 3 + 1) / 2)
    assert scores.rouge2 == pytest.approx((1 / 2 + 1) / 2)
    assert scores.sequences == (1, 2)


def test_what_is_missing_counts_nothing() -> None:
    scores = scores_of([(1, 2)], (1, 2), [(1, 2), (3, 4), (5, 6), (7, 8)])
    assert scores == TextScores((2, 8), (1, 4), 0.25, 0.25)
    assert scores_of([], (), [(1,)]) == TextScores((0, 1), (0, 1), 0, 0)


def test_tokens_and_texts_count_as_often_as_they_are_there() -> None:
    texts = [(7, 7, 7), (7, 7, 7), (1, 2, 3)]
    scores = scores_of([(7, 7, 7), (9,), (8,)], (7, 7, 7, 7, 2, 2, 9), texts)
    assert scores.tokens == (5, 9)
    assert scores.sequences == (1, 3)
