import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradaudit.attacks.reconstruction.attempts import answer_of, attempt
from gradaudit.attacks.reconstruction.base import AttackerView, Candidates, Execution
from gradaudit.attacks.reconstruction.gradient_matching import (
    DeepLeakage,
    ImprovedDeepLeakage,
    InvertingGradients,
    InvertingOptions,
)
from gradaudit.attacks.reconstruction.matching.restarts import GradientMatching, MatchingOptions
from gradaudit.attacks.reconstruction.matching.unknowns import Start, starts
from gradaudit.errors import NotApplicable, UsageError
from tests.attacks.reconstruction.scenes import cnn, drawn, mlp, observed, records, view

SEED = np.random.SeedSequence(0)


def run(method: GradientMatching, seen: AttackerView, restarts: int = 3) -> Candidates:
    return type(method)(method.options, restarts=restarts).run(seen, Execution(1))


def candidates(scores: list[float], inputs: Tensor | None = None) -> Candidates:
    inputs = torch.zeros(len(scores), 1, 2) if inputs is None else inputs
    return Candidates(inputs, None, torch.tensor(scores), torch.zeros(len(scores)).bool())


@pytest.mark.slow
def test_dlg_rebuilds_a_record_and_its_label() -> None:
    batch = records(6, labels=[2])
    method = DeepLeakage(MatchingOptions(iterations=40), restarts=4)
    made = attempt(method, observed(mlp(), batch), Execution(SEED))
    assert made.answer is not None
    assert made.scores["relative_error"][made.answer] < 1e-3
    assert made.labels is not None
    assert made.labels[made.answer] == 1


@pytest.mark.slow
def test_idlg_rebuilds_a_picture() -> None:
    seen = observed(cnn(), records(1, 6, 6, labels=[1]))
    method = ImprovedDeepLeakage(MatchingOptions(iterations=40), restarts=2)
    made = attempt(method, seen, Execution(SEED))
    assert made.answer is not None
    assert made.scores["psnr"][made.answer] > 40
    assert made.candidates.details["labels_from"] == "signs of the last layer's gradient"


@pytest.mark.slow
def test_inverting_gradients_comes_close_within_its_box() -> None:
    seen = observed(cnn(), records(1, 6, 6, labels=[0]))
    options = InvertingOptions(iterations=250, tv=0)
    made = attempt(InvertingGradients(options, restarts=2), seen, Execution(SEED))
    found = made.candidates.inputs
    assert made.answer is not None
    assert made.scores["relative_error"][made.answer] < 0.1
    assert 0 <= float(found.min()) <= float(found.max()) <= 1


def test_a_batch_is_rebuilt_record_by_record() -> None:
    batch = records(6, labels=[1, 3])
    seen = observed(mlp(), batch, known_labels=True)
    made = attempt(DeepLeakage(MatchingOptions(iterations=60), restarts=4), seen, Execution(SEED))
    found = answer_of(made, seen)
    assert found is not None
    torch.testing.assert_close(found, batch.inputs, rtol=0, atol=1e-2)
    assert made.labels is None  # it was told them


def test_inverting_gradients_estimates_a_batchs_labels() -> None:
    seen = view(mlp(), records(6, labels=[1, 3]))
    method = InvertingGradients(InvertingOptions(iterations=1))
    found = run(method, seen)
    assert found.details["labels_from"] == "estimated from the last layer's gradient"
    assert found.labels is not None
    assert found.labels.shape == (3, 2)


def test_idlg_refuses_a_batch_without_labels_and_takes_one_with_them() -> None:
    batch = records(6, labels=[1, 3])
    method = ImprovedDeepLeakage(MatchingOptions(iterations=1))
    with pytest.raises(NotApplicable, match="signs tell the label of one record"):
        run(method, view(mlp(), batch))
    assert run(method, view(mlp(), batch, known_labels=True)).labels is not None


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers_whatever_the_threads() -> None:
    seen = observed(mlp(), records(6, labels=[2]))
    method = DeepLeakage(MatchingOptions(iterations=1), restarts=2)
    before = torch.get_num_threads()
    made = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        made.append(attempt(method, seen, Execution(SEED)).candidates)
        assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert torch.equal(made[0].inputs, made[1].inputs)
    assert torch.equal(made[0].scores, made[1].scores)


@pytest.mark.parametrize("init", ["normal", "uniform", "pattern"])
def test_more_restarts_keep_the_first_ones_starting_points(init: Start) -> None:
    seen = view(cnn(), records(1, 6, 6, labels=[2]))
    few, many = (starts(seen, init, count, torch.Generator().manual_seed(3)) for count in (2, 5))
    assert torch.equal(few, many[:2])


def test_the_answer_is_the_attackers_own_best_and_nan_does_not_shift_it() -> None:
    assert candidates([3.0, 1.0, 2.0]).answer == 1
    assert candidates([math.nan, 1.0, 0.5]).answer == 2
    assert candidates([math.inf, math.nan]).answer is None
    inputs = torch.zeros(3, 1, 2)
    inputs[0, 0, 1] = math.nan
    assert candidates([0.0, 5.0, 4.0], inputs).answer == 2
    diverged = dataclasses.replace(candidates([0.0, 5.0]), diverged=torch.tensor([True, False]))
    assert diverged.answer == 1


def test_the_truth_never_chooses() -> None:
    """The attacker hands in what it thinks best, though another restart is the record itself."""

    class Lying(DeepLeakage):
        def run(self, view: AttackerView, *args: object) -> Candidates:  # type: ignore[override]
            inputs = torch.stack([batch.inputs, batch.inputs + 1])
            return Candidates(inputs, None, torch.tensor([2.0, 1.0]), torch.zeros(2).bool())

    batch = records(6, labels=[2])
    made = attempt(Lying(MatchingOptions(), restarts=2), observed(mlp(), batch), Execution(SEED))
    assert made.answer == 1
    assert made.scores["mse"].tolist() == [0, pytest.approx(1)]


def test_the_view_holds_no_record() -> None:
    batch = records(6, labels=[2])
    seen = view(mlp(), batch)
    tensors = [*seen.update.values(), *seen.model.parameters.values()]
    assert seen.labels is None
    assert not any(t.shape == batch.inputs.shape and torch.equal(t, batch.inputs) for t in tensors)


@pytest.mark.slow
def test_behind_dead_relus_the_attack_says_that_nothing_moves() -> None:
    model = drawn(lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)))
    with torch.no_grad():
        model[0].bias.fill_(-50)  # type: ignore[index]
    found = run(DeepLeakage(MatchingOptions(iterations=2)), view(model, records(6, labels=[1])))
    assert "no gradient in the records" in str(found.details["flat"])
    curved = run(DeepLeakage(MatchingOptions(iterations=2)), view(mlp(), records(6, labels=[1])))
    assert "flat" not in curved.details


def test_patterns_repeat_and_lie_in_the_known_range() -> None:
    seen = view(cnn(), records(1, 6, 6, labels=[1]))
    drawn_ = starts(seen, "pattern", 2, torch.Generator().manual_seed(0))
    assert torch.equal(drawn_[..., :3, :3], drawn_[..., 3:, 3:])
    assert 0 <= float(drawn_.min()) <= float(drawn_.max()) <= 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (MatchingOptions(box=True), "L-BFGS takes no box"),
        (MatchingOptions(tv=0.1), "total variation is of pictures"),
        (MatchingOptions(init="pattern"), "are no pictures"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_that_do_not_fit_are_refused(options: MatchingOptions, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run(DeepLeakage(options), view(mlp(), records(6, labels=[1])))


def test_tokens_are_refused() -> None:
    seen = view(mlp(), records(6, labels=[1]))
    with pytest.raises(NotApplicable, match="tokens have none"):
        run(DeepLeakage(MatchingOptions()), dataclasses.replace(seen, discrete=True))
