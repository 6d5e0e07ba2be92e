import numpy as np
import pytest
import torch

from gradaudit.attacks.reconstruction.attempts import recovered_labels
from gradaudit.attacks.reconstruction.base import Execution
from gradaudit.attacks.reconstruction.gradient_matching import DeepLeakage, ImprovedDeepLeakage
from gradaudit.attacks.reconstruction.matching.restarts import MatchingOptions
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.models.losses import MeanSquaredError
from tests.attacks.reconstruction.scenes import mlp, observed, records

SEED = np.random.SeedSequence(0)
SHORT = MatchingOptions(iterations=10)


@pytest.mark.slow
def test_labels_are_recovered_by_optimising_them_with_the_records() -> None:
    seen = observed(mlp(), records(6, labels=[3]))
    labels, score = recovered_labels(DeepLeakage(SHORT, restarts=2), seen, Execution(SEED))
    assert labels is not None
    assert labels.tolist() == [3]
    assert score is not None
    assert score < 1e-6


def test_signs_are_read_without_a_step_of_optimisation() -> None:
    seen = observed(mlp(), records(6, labels=[3]))
    labels, score = recovered_labels(ImprovedDeepLeakage(SHORT, restarts=2), seen, Execution(SEED))
    assert labels is not None
    assert labels.tolist() == [3]
    assert score is None


def test_real_targets_have_no_class_to_recover() -> None:
    seen = observed(mlp(), Records(torch.rand(1, 6), torch.rand(1, 4)), loss=MeanSquaredError())
    with pytest.raises(NotApplicable, match="no class to recover"):
        recovered_labels(DeepLeakage(SHORT, restarts=1), seen, Execution(SEED))
