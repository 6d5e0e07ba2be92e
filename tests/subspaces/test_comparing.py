"""The permutation test: exact counts, ties, its law where nothing differs, several comparisons."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from gradaudit.errors import NotApplicable
from gradaudit.loading.records import Attribute, Records
from gradaudit.subspaces.comparing import Compared, distances, most_significant
from gradaudit.subspaces.samples import compare_samples
from gradaudit.subspaces.splits import Split, permutations, splits_of

Array = NDArray[np.float64]


def compared(angle: float, permuted: list[float]) -> Compared:
    return Compared(np.array([angle]), distances(np.array(permuted)[:, None]))


def test_the_p_value_counts_labellings_that_reach_the_observed_distance() -> None:
    found = compared(1.0, [0.5, 1.0, 1.2, 0.9])
    for name in ("grassmann", "asimov", "chordal", "procrustes"):
        assert found.p_value(name) == 3 / 5
    assert compared(2.0, [0.1] * 19).p_value("grassmann") == 1 / 20
    assert compared(0.1, [0.2] * 19).p_value("grassmann") == 1.0


def test_distances_that_differ_by_rounding_are_ties() -> None:
    assert compared(1.0, [1 - 1e-9] * 9).p_value("grassmann") == 1.0
    assert compared(1.0, [1 - 1e-4] * 9).p_value("grassmann") == 0.1


def test_one_comparison_needs_no_correction() -> None:
    alone = compared(1.0, [0.5, 1.1, 1.2, 0.9])
    best, p_values = most_significant([alone])
    assert (best, p_values["grassmann"]) == (0, alone.p_value("grassmann"))


def test_the_comparison_that_stands_out_most_is_chosen_and_corrected() -> None:
    """Distances of different scale: in standard deviations the small one stands out."""
    generator = np.random.default_rng(0)
    large = Compared(np.array([1.0]), distances(generator.uniform(0.5, 1.5, size=(99, 1))))
    small = Compared(np.array([0.1]), distances(generator.uniform(0.01, 0.02, size=(99, 1))))
    best, p_values = most_significant([large, small])
    assert best == 1
    assert p_values["grassmann"] == small.p_value("grassmann") == 0.01
    _, none = most_significant([large] * 3)
    assert none["grassmann"] == large.p_value("grassmann")


def test_the_corrected_p_value_keeps_its_level() -> None:
    """Eight comparisons without any difference: at most 10 % may come out below 0.1."""
    generator = np.random.default_rng(1)
    found = []
    for _ in range(400):
        angles = generator.uniform(0.2, 1.2, size=(8, 40))
        every = [Compared(each[:1], distances(each[1:, None])) for each in angles]
        found.append(most_significant(every)[1]["grassmann"])
    below = sum(p <= 0.1 for p in found)
    assert stats.binomtest(below, 400, 0.1).pvalue > 1e-4
    assert stats.kstest(found, "uniform").statistic < 0.1


def split_of(inside: int, records: int) -> Split:
    return Split("a", None, np.arange(records) < inside)


def test_p_values_of_single_gradients_are_uniform_where_nothing_differs() -> None:
    generator = np.random.default_rng(2)
    scales = np.array([5.0, 4, 3, 2, 1, 0.1, 0.1])
    found = []
    for seed in range(150):
        vectors = generator.normal(size=(30, 7)) * scales
        orders = permutations(30, 39, seed)
        (each,) = compare_samples(vectors, [split_of(12, 30)], orders, 1 << 20).values()
        assert isinstance(each, Compared)
        found.append(each.p_value("grassmann"))
    assert stats.kstest(found, "uniform").pvalue > 1e-3


def test_groups_that_differ_are_told_apart() -> None:
    generator = np.random.default_rng(3)
    vectors = generator.normal(size=(40, 12)) * np.where(np.arange(12) < 6, 3, 0.1)
    vectors[:15] = vectors[:15][:, ::-1]
    orders = permutations(40, 99, 0)
    (found,) = compare_samples(vectors, [split_of(15, 40)], orders, 1 << 20).values()
    assert isinstance(found, Compared)
    assert found.p_value("grassmann") == 0.01


def test_directions_of_single_gradients_by_hand() -> None:
    """Directions by the pooled energy, subspaces by each group's own decomposition."""
    generator = np.random.default_rng(4)
    vectors = generator.normal(size=(20, 50)) * 10.0 ** -np.linspace(0, 4, 50)
    orders = permutations(20, 25, 5)
    vectors[:, 20:] *= 0.1
    split = split_of(9, 20)
    found = compare_samples(vectors, [split], orders, 1 << 20)[0]
    assert isinstance(found, Compared)
    energies = np.linalg.svd(vectors, compute_uv=False) ** 2
    k = int((np.cumsum(energies) < 0.95 * energies.sum()).sum()) + 1
    assert 3 < k < 9
    assert found.facts["k"] == k

    def angles(member: NDArray[np.bool_]) -> Array:
        bases = [np.linalg.svd(vectors[rows])[2][:k].T for rows in (member, ~member)]
        cosines = np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)
        return np.arccos(np.minimum(cosines, 1))

    np.testing.assert_allclose(found.angles, angles(split.member), atol=1e-7)
    expected = [np.linalg.norm(angles(split.member[order])) for order in orders]
    np.testing.assert_allclose(found.permuted["grassmann"], expected, rtol=1e-6)


def test_a_group_smaller_than_the_directions_needed() -> None:
    vectors = np.random.default_rng(5).normal(size=(40, 60))
    found = compare_samples(vectors, [split_of(5, 40)], permutations(40, 19, 0), 1 << 20)[0]
    assert isinstance(found, Compared)
    assert (found.facts["k"], len(found.angles)) == (5, 5)
    assert found.facts["k_for_95_percent"] > 5  # type: ignore[operator]


def test_a_group_whose_gradients_are_zero_is_as_far_as_can_be() -> None:
    vectors = np.random.default_rng(6).normal(size=(20, 9))
    vectors[:8] = 0
    found = compare_samples(vectors, [split_of(8, 20)], permutations(20, 19, 0), 1 << 20)[0]
    assert isinstance(found, Compared)
    np.testing.assert_allclose(found.angles, np.pi / 2)


def test_memory_changes_nothing() -> None:
    vectors = np.random.default_rng(7).normal(size=(20, 30))
    orders = permutations(20, 30, 0)
    all_at_once, one_by_one = (
        compare_samples(vectors, [split_of(9, 20)], orders, memory)[0] for memory in (1 << 30, 1)
    )
    assert isinstance(all_at_once, Compared)
    assert isinstance(one_by_one, Compared)
    for name, values in all_at_once.permuted.items():
        np.testing.assert_allclose(one_by_one.permuted[name], values, atol=1e-9)


def test_gradients_that_leave_nothing_to_differ_in() -> None:
    orders = permutations(20, 19, 0)
    flat = np.random.default_rng(8).normal(size=(20, 2))
    found = compare_samples(flat, [split_of(9, 20)], orders, 1 << 20)[0]
    assert isinstance(found, NotApplicable)
    assert "needs them all" in str(found)
    with pytest.raises(NotApplicable, match="zero"):
        compare_samples(np.zeros((20, 4)), [split_of(9, 20)], orders, 1 << 20)


def test_permutations_depend_on_the_seed_alone() -> None:
    first, again, other = permutations(9, 50, 1), permutations(9, 50, 1), permutations(9, 50, 2)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    np.testing.assert_array_equal(np.sort(first, axis=1), np.tile(np.arange(9), (50, 1)))


def records_with(*codes: int, values: tuple[str, ...]) -> Records:
    import torch

    attribute = Attribute(np.array(codes, dtype=np.int64), values)
    inputs = torch.zeros(len(codes), 1)
    return Records(inputs, torch.zeros(len(codes)), attributes={"a": attribute})


def test_an_attribute_of_two_values_is_compared_once() -> None:
    records = records_with(*[0] * 6, *[2] * 7, values=("x", "y", "z"))
    (split,) = splits_of(records, ["a"])
    assert (split.value, split.sizes, split.refusal) == (None, (7, 6), None)


def test_every_value_of_several_against_the_rest() -> None:
    records = records_with(*[0] * 6, *[1] * 4, *[2] * 5, values=("x", "y", "z"))
    found = splits_of(records, ["a"])
    assert [(split.value, split.sizes) for split in found] == [
        ("x", (6, 9)),
        ("y", (4, 11)),
        ("z", (5, 10)),
    ]
    assert found[0].refusal is None
    assert found[1].refusal == (
        "one group of a has 4 of the 15 records looked at, and 5 are needed; look at more with "
        "--samples"
    )


def test_one_value_alone_is_refused() -> None:
    (split,) = splits_of(records_with(1, 1, 1, values=("x", "y")), ["a"])
    assert (
        split.refusal == "all 3 records looked at have one value of a; look at more with --samples"
    )
