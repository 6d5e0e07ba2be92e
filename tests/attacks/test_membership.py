import itertools

import numpy as np
import pytest
import torch

from gradaudit.attacks.membership import (
    categorical_distance,
    paired_distance,
    recovered_labels,
    shuffled_distance,
)
from gradaudit.attacks.reconstruction.dlg import DeepLeakage
from gradaudit.attacks.reconstruction.idlg import ImprovedDeepLeakage
from gradaudit.attacks.reconstruction.restarts import MatchingOptions
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.models.losses import MeanSquaredError
from gradaudit.progress import Silent
from tests.attacks.reconstruction.scenes import mlp, records, view

SEED = np.random.SeedSequence(0)
SHORT = MatchingOptions(iterations=10)


def test_labels_are_recovered_by_optimising_them_with_the_records() -> None:
    seen = view(mlp(), records(6, labels=[3]))
    labels, score = recovered_labels(DeepLeakage(SHORT), seen, 2, SEED, Silent())
    assert labels is not None
    assert labels.tolist() == [3]
    assert score is not None
    assert score < 1e-6


def test_signs_are_read_without_a_step_of_optimisation() -> None:
    seen = view(mlp(), records(6, labels=[3]))
    labels, score = recovered_labels(ImprovedDeepLeakage(SHORT), seen, 2, SEED, Silent())
    assert labels is not None
    assert labels.tolist() == [3]
    assert score is None


def test_real_targets_have_no_class_to_recover() -> None:
    seen = view(mlp(), Records(torch.rand(1, 6), torch.rand(1, 4)), loss=MeanSquaredError())
    with pytest.raises(NotApplicable, match="no class to recover"):
        recovered_labels(DeepLeakage(SHORT), seen, 1, SEED, Silent())


def test_the_distance_is_the_share_that_was_missed() -> None:
    truth = np.array([0, 1, 1, 2])
    assert categorical_distance(truth, np.array([2, 1, 0, 1])) == 0
    assert categorical_distance(truth, np.array([1, 1, 1, 3])) == 0.5
    assert categorical_distance(truth, np.array([3, 3, 3, 3])) == 1
    assert categorical_distance(truth, None) == 1


def test_a_paired_label_is_that_of_the_record_s_own_reconstruction() -> None:
    truth, found = np.array([0, 1, 2, 3]), np.array([3, 2, 1, 0])
    assert paired_distance(truth, found, np.array([3, 2, 1, 0])) == 0
    assert paired_distance(truth, found, np.array([0, 1, 2, 3])) == 1
    assert paired_distance(truth, found, np.array([3, 1, 2, 0])) == 0.5
    assert paired_distance(truth, None, None) == 1


def test_no_order_is_closer_than_the_lists_are() -> None:
    draws = np.random.default_rng(0)
    for _ in range(20):
        truth, found = draws.integers(3, size=(2, 4))
        orders = np.array(list(itertools.permutations(range(4))))
        least = min(paired_distance(truth, found, order) for order in orders)
        assert categorical_distance(truth, found) == least


def test_right_labels_in_a_random_order_against_all_orders() -> None:
    truth = np.array([0, 1, 1, 2, 1])
    orders = np.array(list(itertools.permutations(range(5))))
    every = [paired_distance(truth, truth, order) for order in orders]
    assert shuffled_distance(truth) == pytest.approx(float(np.mean(every)))
    assert shuffled_distance(truth[:1]) == 0


@pytest.mark.parametrize(("size", "classes"), [(2, 3), (3, 2), (4, 3)])
def test_its_mean_over_balanced_batches(size: int, classes: int) -> None:
    batches = itertools.product(range(classes), repeat=size)
    mean = np.mean([shuffled_distance(np.array(batch)) for batch in batches])
    assert mean == pytest.approx((1 - 1 / size) * (1 - 1 / classes))
