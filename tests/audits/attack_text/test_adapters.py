"""What is predicted of low-rank adapters, beside what the attack on them names."""

from typing import Any

import pytest
from audits.attack_text.sentences import adapted, low_rank_view, texts
from subjects import rows_by, subject_of
from torch import nn

from gradaudit.audits.attack_text import AttackText
from gradaudit.audits.attack_text.linear_maps import Structure, adapters, predicted
from gradaudit.audits.attack_text.recovery.recover import recover
from gradaudit.audits.attack_text.text_scores import scores_of
from gradaudit.progress import Silent
from gradaudit.report import Measurement


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


def test_adapters_at_their_start_and_steps_of_adam_have_no_prediction() -> None:
    """With a second matrix of zeros the first has no gradient; Adam's steps are no sums of them."""
    attack = rows_by(AttackText, batches=1, batch_size=2, decoys=4)

    def prediction(model: nn.Module, **options: Any) -> Measurement:
        rows = attack(subject_of(model, texts(24)), **options)
        return next(row for row in rows if row.metric == "lora_predicted")

    model = adapted(4)
    assert (prediction(model).value or 0) > 0
    by_adam = prediction(model, algorithm="fedavg", local_steps=2, optimizer="adam")
    assert "Adam made the update" in (by_adam.reason or "")
    for name, weight in model.named_parameters():
        if "upper" in name:
            nn.init.zeros_(weight)
    assert prediction(model).value == 0
