"""Who holds which records."""

import numpy as np
import pytest
from scipy.stats import beta, chisquare

from gradaudit.errors import UsageError
from gradaudit.federation.partition import dirichlet, even, partition

LABELS = np.repeat(np.arange(4), [40, 30, 21, 9])


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("spec", ["iid", "dirichlet:0.9", "dirichlet:5"])
@pytest.mark.parametrize("clients", [1, 3, 7])
def test_every_record_is_dealt_to_one_client(spec: str, clients: int) -> None:
    parts = partition(spec, LABELS, clients, generator(1))
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(LABELS)))
    assert all(np.array_equal(part, np.sort(part)) for part in parts)


@pytest.mark.parametrize("clients", [2, 3, 8])
def test_an_even_deal_differs_by_one_in_all_and_in_every_class(clients: int) -> None:
    parts = even(LABELS, clients, generator())
    for labels in [value == LABELS for value in range(4)] + [np.full(len(LABELS), True)]:
        counts = [int(labels[part].sum()) for part in parts]
        assert max(counts) - min(counts) <= 1


def test_a_deal_depends_on_the_seed_alone() -> None:
    once, again, other = (partition("iid", LABELS, 3, generator(s)) for s in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    assert not np.array_equal(once[0], other[0])


@pytest.mark.parametrize("concentration", [0.3, 2.0])
def test_dirichlet_shares_follow_their_law(concentration: float) -> None:
    """One client's share of a class is Beta(A, A (N − 1))."""
    clients, classes = 4, 400
    labels = np.repeat(np.arange(classes), 1000)
    parts = dirichlet(labels, clients, concentration, generator(3))
    edges = np.array([0, 0.0105, 0.1005, 0.2505, 0.4005, 0.6005, 1])
    for part in parts:
        shares = np.bincount(labels[part], minlength=classes) / 1000
        found = np.histogram(shares, edges)[0]
        for factor, fits in ((1, True), (3, False)):
            law = beta(factor * concentration, factor * concentration * (clients - 1))
            p_value = chisquare(found, classes * np.diff(law.cdf(edges))).pvalue
            assert p_value > 1e-3 if fits else p_value < 1e-6


def test_real_targets_are_dealt_evenly_and_refused_to_dirichlet() -> None:
    targets = np.linspace(0, 1, 10)
    assert sorted(map(len, partition("iid", targets, 3, generator()))) == [3, 3, 4]
    with pytest.raises(UsageError, match="the labels are numbers; use --partition iid"):
        partition("dirichlet:1", targets, 2, generator())


@pytest.mark.parametrize(
    ("spec", "clients", "message"),
    [
        ("idd", 2, r"unknown \(did you mean 'iid'\?\)"),
        ("shards", 2, "write iid or dirichlet:A"),
        ("iid:3", 2, "write iid or dirichlet:A"),
        ("dirichlet", 2, "A must be a positive number"),
        ("dirichlet:x", 2, "A must be a positive number"),
        ("dirichlet:0", 2, "A must be a positive number"),
        ("dirichlet:-1", 2, "A must be a positive number"),
        ("dirichlet:inf", 2, "A must be a positive number"),
        ("dirichlet:nan", 2, "A must be a positive number"),
        ("iid", 101, "only 100 training records"),
        ("dirichlet:0.01", 50, "clients got no record"),
    ],
)
def test_wrong_requests(spec: str, clients: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        partition(spec, LABELS, clients, generator())
