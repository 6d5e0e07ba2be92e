"""Laws of a job's noise: composed Laplace noise, and means that weigh clients by their counts."""

import math

import pytest

pytest.importorskip("dp_accounting")

from gradaudit.audits.job.epsilon import epsilon_laplace_composed


def test_laplace_noise_on_many_numbers_is_worth_what_its_privacy_loss_says() -> None:
    """What NVFlare's sparse vectors send of a model: 0.1 a number with the worst pair."""
    from dp_accounting import LaplaceDpEvent
    from dp_accounting.pld import PLDAccountant

    ledger = PLDAccountant().compose(LaplaceDpEvent(10.0), 617)
    found = epsilon_laplace_composed(0.1, 617, 1e-5)
    assert found == pytest.approx(ledger.get_epsilon(1e-5), rel=0.01)
    assert found == pytest.approx(12.8, rel=0.01)


def test_laplace_noise_on_seven_million_numbers() -> None:
    """A tenth of 7,033,280 parameters; by the normal law of the sum of so many losses too."""
    count, each = 703_329, 0.1
    mean = each + math.exp(-each) - 1
    found = epsilon_laplace_composed(each, count, 1e-5)
    assert found == pytest.approx(3_754, rel=0.01)
    assert found > count * mean


@pytest.mark.parametrize("each", [0.1, 1.0, 3.0])
def test_one_number_under_laplace_noise_has_a_closed_form(each: float) -> None:
    """delta(epsilon) = 1 - e^((epsilon - each)/2) for 0 <= epsilon <= each."""
    found = epsilon_laplace_composed(each, 1, 0.01)
    assert found == pytest.approx(each + 2 * math.log(0.99), abs=each / 60)
