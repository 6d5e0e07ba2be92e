"""Updates of several rounds, matched by the batch behind them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from gradaudit.attacks.reconstruction.base import AttackerView
from gradaudit.attacks.reconstruction.round_matching import likeness, matched_rounds
from gradaudit.data.records import Records
from tests.attacks.reconstruction.scenes import cnn, records, view

CLIENTS, ROUNDS = 6, 4
BATCHES = [records(1, 6, 6, labels=[n % 3, (n + 1) % 3], seed=n) for n in range(CLIENTS)]


def later(model: nn.Module, steps: int) -> nn.Module:
    """The model after some steps on records of nobody's."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        others = records(1, 6, 6, labels=[0, 1, 2, 0], seed=100 + step)
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(others.inputs), others.labels)
        torch.autograd.backward(loss)
        optimiser.step()
    return model


def seen(model: nn.Module, order: list[int], *, known: bool = False) -> list[AttackerView]:
    return [view(model, BATCHES[client], known_labels=known) for client in order]


def test_likeness_is_the_cosine_of_what_sets_updates_apart() -> None:
    before, after = seen(cnn(), [0, 1, 2]), seen(cnn(), [2, 0, 1])
    rows = []
    for views in (before, after):
        flat = np.stack([torch.cat([p.flatten() for p in v.update.values()]) for v in views])
        away = flat - flat.mean(axis=0)
        rows.append(away / np.linalg.norm(away, axis=1, keepdims=True))
    np.testing.assert_allclose(likeness(before, after), rows[0] @ rows[1].T, atol=1e-12)
    same = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]], dtype=bool)
    np.testing.assert_allclose(likeness(before, after)[same], 1)  # at one checkpoint


def test_known_labels_count_by_the_share_that_is_common() -> None:
    plain = likeness(seen(cnn(), [0, 1]), seen(cnn(), [0, 1]))
    told = likeness(seen(cnn(), [0, 1], known=True), seen(cnn(), [0, 1], known=True))
    np.testing.assert_allclose(told - plain, [[1, 0.5], [0.5, 1]], atol=1e-12)


@pytest.mark.parametrize("known", [False, True])
def test_batches_are_matched_over_near_rounds(known: bool) -> None:
    draws = np.random.default_rng(0)
    orders = [draws.permutation(CLIENTS).tolist() for _ in range(ROUNDS)]
    rounds = [seen(later(cnn(), 5 * n), order, known=known) for n, order in enumerate(orders)]
    client_of = {id(v): c for vs, order in zip(rounds, orders, strict=True)
                 for v, c in zip(vs, order, strict=True)}  # fmt: skip
    matched = matched_rounds(rounds)
    for client, found in zip(orders[-1], matched, strict=True):
        assert [client_of[id(one)] for one in found.earlier] == [client] * (ROUNDS - 1)


def test_one_round_and_one_client_are_as_they_are() -> None:
    alone = seen(cnn(), [0, 1])
    assert [one.earlier for one in matched_rounds([alone])] == [(), ()]
    single = [seen(cnn(), [3]), seen(later(cnn(), 5), [3])]
    (found,) = matched_rounds(single)
    assert found.earlier == (single[0][0],)


def test_real_targets_are_matched_by_the_cosine_alone() -> None:
    batch = Records(torch.rand(2, 1, 6, 6, dtype=torch.float64), torch.tensor([0, 1]))
    one = view(cnn(), batch, known_labels=True)
    real = replace(one, classes=0)
    assert likeness([one], [one]) == pytest.approx(2)
    assert likeness([real], [real]) == pytest.approx(1)
