import numpy as np
import torch

from gradaudit.attacks.tracing import own_items, trace


def some(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_records_go_to_the_participant_of_the_nearest_reconstruction() -> None:
    queries, rebuilt = some(7, 3, 2), some(9, 3, 2, seed=1)
    owners = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2])
    found = trace(queries, rebuilt, owners)
    for query, participant, item in zip(queries, found.participants, found.items, strict=True):
        errors = [float((query - other).square().mean()) for other in rebuilt]
        assert item == int(np.argmin(errors))
        assert participant == owners[item]


def test_exact_reconstructions_are_traced_without_error() -> None:
    queries = some(6, 4)
    found = trace(queries, queries + 1e-6, np.arange(6) // 2)
    assert found.items.tolist() == list(range(6))
    assert found.participants.tolist() == [0, 0, 1, 1, 2, 2]


def test_reconstructions_that_are_not_finite_are_nobodys() -> None:
    queries, rebuilt = some(2, 4), some(2, 4)
    rebuilt[0] = torch.nan
    found = trace(queries, rebuilt, np.array([0, 1]))
    assert found.participants.tolist() == [1, 1]
    rebuilt[1, 0] = torch.inf
    assert trace(queries, rebuilt, np.array([0, 1])).items.tolist() == [-1, -1]


def test_items_are_put_in_the_order_of_the_records_inside_their_batch() -> None:
    truth = some(6, 3)
    mixed = truth[[1, 0, 2, 5, 3, 4]]
    assert torch.equal(own_items(truth, mixed, 2), truth)
