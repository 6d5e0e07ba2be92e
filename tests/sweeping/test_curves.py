import numpy as np
import pytest

from gradaudit.sweeping.curves import loess


def test_a_straight_line_stays_one() -> None:
    x = np.array([0.0, 0.5, 1, 1, 2, 3, 3.5, 5])
    at = np.linspace(-1, 6, 17)
    np.testing.assert_allclose(loess(x, 3 - 2 * x, at, span=0.6), 3 - 2 * at, atol=1e-12)


@pytest.mark.parametrize("span", [0.3, 0.75, 1.0])
def test_each_place_is_a_weighted_least_squares_fit(span: float) -> None:
    rng = np.random.default_rng(0)
    x, y = np.sort(rng.uniform(0, 10, 25)), rng.normal(size=25)
    at = np.array([0.3, 4.2, 9.9])
    expected = []
    for place in at:
        reach = np.sort(np.abs(x - place))[int(np.ceil(span * 25)) - 1]
        weights = np.clip(1 - (np.abs(x - place) / reach) ** 3, 0, None) ** 3
        expected.append(np.polyval(np.polyfit(x, y, 1, w=np.sqrt(weights)), place))
    np.testing.assert_allclose(loess(x, y, at, span), expected, atol=1e-9)


def test_points_at_one_place_are_averaged() -> None:
    x, y = np.zeros(4), np.array([1.0, 2, 3, 6])
    np.testing.assert_allclose(loess(x, y, np.array([0.0])), [3.0])
    layers = np.repeat([0.0, 1, 2], 2)
    few = loess(layers, np.array([1.0, 3, 5, 5, 0, 2]), np.array([0.0, 1, 2]), span=0.3)
    np.testing.assert_allclose(few, [2, 5, 1])
