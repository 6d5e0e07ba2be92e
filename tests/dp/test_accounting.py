import math
import sys

import pytest
from dp_accounting import get_epsilon_gaussian

from gradaudit.dp.theory import epsilon_composed, epsilon_gaussian
from gradaudit.errors import UsageError


@pytest.mark.parametrize(("relation", "sensitivity"), [("remove", 1), ("replace", 2)])
def test_full_batches_compose_exactly(relation, sensitivity):
    ours = epsilon_composed(20.0, 100, 1e-5, relation=relation)
    assert ours == pytest.approx(get_epsilon_gaussian(20 / (10 * sensitivity), 1e-5), abs=1e-6)


def test_one_step_is_the_mechanism_itself():
    assert epsilon_composed(0.5, 1, 1e-5) == epsilon_gaussian(4.0, 1e-5)


def test_sampled_batches():
    tight = epsilon_composed(1.0, 50, 1e-5, sampling_rate=0.01, relation="remove")
    loose = epsilon_composed(1.0, 50, 1e-5, sampling_rate=0.01, relation="remove", accountant="rdp")
    replaced = epsilon_composed(1.0, 50, 1e-5, sampling_rate=0.01)
    assert 0 < tight < loose
    assert tight < replaced
    assert loose < epsilon_composed(1.0, 50, 1e-5, relation="remove") / 10


def test_sampling_almost_everything_is_a_full_batch():
    sampled = epsilon_composed(4.0, 4, 1e-5, sampling_rate=1 - 1e-9, relation="remove")
    assert sampled == pytest.approx(epsilon_composed(4.0, 4, 1e-5, relation="remove"), rel=1e-3)


def test_no_noise_has_no_budget():
    assert epsilon_composed(0.0, 10, 1e-5, sampling_rate=0.1) == math.inf


def test_missing_library_is_told_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UsageError, match=r"pip install 'gradaudit\[accounting\]'"):
        epsilon_composed(1.0, 10, 1e-5, sampling_rate=0.1)


def test_rdp_does_not_know_replacement_in_sampled_batches():
    with pytest.raises(UsageError, match="use the pld accountant"):
        epsilon_composed(1.0, 10, 1e-5, sampling_rate=0.1, accountant="rdp")


@pytest.mark.parametrize(
    ("noise", "steps", "delta", "rate"),
    [(-1, 1, 0.1, 1), (1, 0, 0.1, 1), (1, 1, 0, 1), (1, 1, 0.1, 0), (1, 1, 0.1, 1.5)],
)
def test_values_out_of_range(noise, steps, delta, rate):
    with pytest.raises(UsageError, match="composition needs"):
        epsilon_composed(noise, steps, delta, sampling_rate=rate)
