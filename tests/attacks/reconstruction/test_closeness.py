from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from gradaudit.attacks.reconstruction.closeness import (
    assigned,
    categorical_distance,
    labels_in_common,
    mse,
    own_items,
    paired_distance,
    psnr,
    relative_error,
    scores_of,
    ssim,
    trace,
    window_for,
)
from gradaudit.errors import NotApplicable


def pictures(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 17, 12), (1, 11, 11)], ids=str)
def test_ssim_and_psnr_are_those_of_scikit_image(shape: tuple[int, ...]) -> None:
    truth, found = pictures(2, *shape), pictures(4, 2, *shape, seed=1)
    found = 0.7 * truth + 0.3 * found
    for restart in range(4):
        for record in range(2):
            pair = truth[record].numpy(), found[restart, record].numpy()
            wanted = structural_similarity(
                *pair,
                data_range=1,
                gaussian_weights=True,
                sigma=1.5,
                use_sample_covariance=False,
                channel_axis=0,
            )
            assert float(ssim(truth, found)[restart, record]) == pytest.approx(wanted, abs=1e-10)
            noise = peak_signal_noise_ratio(*pair, data_range=1)
            assert float(psnr(truth, found)[restart, record]) == pytest.approx(noise)


def test_ssim_of_small_pictures_takes_the_largest_odd_window() -> None:
    truth, found = pictures(1, 1, 8, 8), pictures(1, 1, 8, 8, seed=1)
    x, y = truth[0, 0].numpy(), found[0, 0].numpy()

    def mean(values: np.ndarray) -> np.ndarray:
        return gaussian_filter(values, 1.5, radius=3)[3:-3, 3:-3]

    covariance = mean(x * y) - mean(x) * mean(y)
    spread = mean(x * x) - mean(x) ** 2 + mean(y * y) - mean(y) ** 2
    structure = (2 * covariance + 9e-4) / (spread + 9e-4)
    luminance = (2 * mean(x) * mean(y) + 1e-4) / (mean(x) ** 2 + mean(y) ** 2 + 1e-4)
    assert window_for((8, 8)) == 7
    assert float(ssim(truth, found)) == pytest.approx((structure * luminance).mean(), abs=1e-10)


def test_ssim_refuses_pictures_without_a_window() -> None:
    with pytest.raises(NotApplicable, match="too small for SSIM"):
        window_for((2, 9))
    truth = pictures(1, 1, 2, 9)
    assert set(scores_of(truth, truth[None], pictures=True)) == {"mse", "relative_error", "psnr"}
    assert set(scores_of(truth, truth[None], pictures=False)) == {"mse", "relative_error"}


def test_identical_pictures_score_perfectly() -> None:
    truth = pictures(2, 3, 16, 16)
    scores = scores_of(truth, truth[None].flip(1), pictures=True)
    assert float(scores["ssim"]) == pytest.approx(1)
    assert float(scores["mse"]) == float(scores["relative_error"]) == 0
    assert float(scores["psnr"]) == torch.inf


def test_relative_error_is_a_ratio_of_lengths() -> None:
    truth = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    found = torch.tensor([[3.0, 3.0], [0.0, 1.0]], dtype=torch.float64)
    assert relative_error(truth, found).tolist() == [pytest.approx(0.2), torch.inf]
    assert mse(truth, found).tolist() == [0.5, 0.5]


def test_candidates_that_are_not_finite_score_nan_and_leave_the_others() -> None:
    truth = pictures(2, 1, 12, 12)
    found = torch.stack([torch.full_like(truth, torch.nan), truth + 0.1])
    scores = scores_of(truth, found, pictures=True)
    assert all(np.isnan(values[0].item()) for values in scores.values())
    assert float(scores["mse"][1]) == pytest.approx(0.01)


@pytest.mark.parametrize("seed", range(4))
def test_assignment_is_the_best_of_all_permutations(seed: int) -> None:
    truth, found = pictures(4, 3, seed=seed), pictures(2, 4, 3, seed=seed + 10)
    for restart in range(2):
        totals = [
            float((truth - found[restart][list(order)]).square().sum())
            for order in permutations(range(4))
        ]
        chosen = assigned(truth, found)[restart]
        assert float((truth - chosen).square().sum()) == pytest.approx(min(totals))


@pytest.mark.parametrize("seed", range(3))
def test_shared_labels_are_what_the_best_order_hits(seed: int) -> None:
    generator = np.random.default_rng(seed)
    truth, found = generator.integers(3, size=5), generator.integers(3, size=(4, 5))
    for row, shared in zip(found, labels_in_common(truth, found), strict=True):
        assert shared == max((truth == list(order)).sum() for order in permutations(row))


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
        orders = np.array(list(permutations(range(4))))
        least = min(paired_distance(truth, found, order) for order in orders)
        assert categorical_distance(truth, found) == least
    assert categorical_distance(truth, None) == 1


def test_records_go_to_the_participant_of_the_nearest_reconstruction() -> None:
    queries, rebuilt = pictures(7, 3, 2), pictures(9, 3, 2, seed=1)
    owners = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2])
    found = trace(queries, rebuilt, owners)
    for query, participant, item in zip(queries, found.participants, found.items, strict=True):
        errors = [float((query - other).square().mean()) for other in rebuilt]
        assert item == int(np.argmin(errors))
        assert participant == owners[item]


def test_reconstructions_that_are_not_finite_are_nobodys() -> None:
    queries, rebuilt = pictures(2, 4), pictures(2, 4)
    rebuilt[0] = torch.nan
    found = trace(queries, rebuilt, np.array([0, 1]))
    assert found.participants.tolist() == [1, 1]
    rebuilt[1, 0] = torch.inf
    assert trace(queries, rebuilt, np.array([0, 1])).items.tolist() == [-1, -1]


def test_items_are_put_in_the_order_of_the_records_inside_their_batch() -> None:
    truth = pictures(6, 3)
    mixed = truth[[1, 0, 2, 5, 3, 4]]
    assert torch.equal(own_items(truth, mixed, 2), truth)
