import numpy as np
import pytest
import torch

from gradaudit.attacks.membership import categorical_distance, recovered_labels
from gradaudit.attacks.reconstruction.dlg import DeepLeakage
from gradaudit.attacks.reconstruction.idlg import ImprovedDeepLeakage
from gradaudit.attacks.reconstruction.restarts import MatchingOptions
from gradaudit.errors import NotApplicable
from gradaudit.loading.losses import MeanSquaredError
from gradaudit.loading.records import Records
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
