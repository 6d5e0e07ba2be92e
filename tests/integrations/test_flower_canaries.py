"""Canaries in Flower's own strategies, DP wrappers and mods, run in process."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)
from integrations.local_grid import LocalGrid
from observer.training import model, state_of, trained
from torch import Tensor, nn

from gradaudit.dp.estimates import gaussian_bound
from gradaudit.federation.canary_scores import CanaryScores
from gradaudit.integrations.flower import CanaryStrategy, let_in

pytestmark = pytest.mark.usefixtures("inside_a_run")

State = dict[str, Tensor]


def training(message: Message, context: Context) -> Message:
    """Trains on three records, and sends its state in another order than it came."""
    came = message.content["arrays"].to_torch_state_dict()
    after = trained(came, seed=context.node_id)
    record = ArrayRecord({name: after[name] for name in reversed(list(after))})
    metrics = MetricRecord({"num-examples": 2 + context.node_id, "loss": 0.5 * context.node_id})
    return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)


def resting(message: Message, _: Context) -> Message:
    """Sends what came, but for one element: Flower divides by how far a client went."""
    state = message.content["arrays"].to_torch_state_dict(keep_input=True)
    state["weight"][0, 0] += 1e-3
    metrics = MetricRecord({"num-examples": 3})
    return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)


def apps(nodes: int, train: Callable[..., Message], mods: Sequence[Any] = ()) -> dict[int, Any]:
    made = {node: ClientApp(mods=list(mods)) for node in range(1, nodes + 1)}
    for app in made.values():
        app.train()(train)
    return made


def run(strategy: Strategy, grid: LocalGrid, state: State, rounds: int) -> State:
    result = strategy.start(grid, ArrayRecord(state), num_rounds=rounds)  # type: ignore[arg-type]
    return dict(result.arrays.to_torch_state_dict())


def averaging(**how: Any) -> FedAvg:
    return FedAvg(fraction_evaluate=0.0, **how)


def test_those_that_are_in_are_averaged_as_clients_of_the_median_length(tmp_path: Path) -> None:
    """Three clients of 3, 4 and 5 records; buffers of canaries are as they came."""
    state = state_of(model())
    strategy = CanaryStrategy(averaging(), tmp_path / "run", count=8, seed=1)
    after = run(strategy, LocalGrid(apps(3, training)), state, 1)
    clients = [trained(state, seed=node) for node in (1, 2, 3)]
    learnt = [name for name, _ in model().named_parameters()]
    lengths = [
        torch.cat([(client[name] - state[name]).flatten() for name in learnt]).norm()
        for client in clients
    ]
    canaries = strategy.canaries
    assert canaries is not None
    assert set(canaries.shapes) == set(learnt)
    directions = canaries.directions(np.arange(8))
    inside = torch.from_numpy(canaries.included)
    weight = 4 * int(inside.sum())
    for name, held in after.items():
        sums = sum((3 + n) * client[name].double() for n, client in enumerate(clients))
        if name in learnt:
            moves = directions[name][inside].sum(0).reshape(state[name].shape)
            sums = sums + 4 * torch.stack(lengths).median() * moves
        expected = (sums + weight * state[name].double()) / (12 + weight)
        torch.testing.assert_close(held.double(), expected, rtol=1e-5, atol=1e-6)
    scores = CanaryScores.read(tmp_path / "run")
    assert np.array_equal(scores.included, canaries.included)
    assert int(inside.sum()) == let_in(8, seed=1)
    moved = torch.cat([(after[name] - state[name]).flatten() for name in canaries.shapes])
    rows = torch.cat(list(directions.values()), dim=1)
    cosines = torch.cosine_similarity(rows, moved[None], dim=1)
    np.testing.assert_allclose(scores.cosines[0, :, 0], cosines, atol=1e-5)
    assert set(scores.layers) == {"0", "2", "3", "4"}


def test_metrics_are_those_of_the_clients(tmp_path: Path) -> None:
    strategy = CanaryStrategy(averaging(), tmp_path, count=40)
    grid = LocalGrid(apps(3, training))
    result = strategy.start(grid, ArrayRecord(state_of(model())), num_rounds=1)  # type: ignore[arg-type]
    loss = result.train_metrics_clientapp[1]["loss"]
    assert loss == pytest.approx((3 * 0.5 + 4 * 1.0 + 5 * 1.5) / 12)


def linear(elements: int) -> State:
    return dict(nn.Linear(elements, 1, bias=False).state_dict())


def clipped(noise: float, clients: int, *, server: bool = True) -> Strategy:
    kind = (
        DifferentialPrivacyServerSideFixedClipping
        if server
        else DifferentialPrivacyClientSideFixedClipping
    )
    return kind(averaging(), noise, 0.5, clients)


def totals(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    scores = CanaryScores.read(folder)
    return scores.cosines.sum(axis=0)[:, 0], scores.included


@pytest.mark.parametrize("where", ["server", "client"])
def test_the_shift_of_a_noisy_run_is_that_of_its_law(where: str, tmp_path: Path) -> None:
    """R rounds of noise zC/N in a mean of N replies, and the other canaries' constant part.

    A canary's direction meets noise of deviation z√R, and R√(m/d) of m others in d dimensions.
    """
    np.random.seed(0)  # Flower draws its noise there  # noqa: NPY002
    count, nodes, rounds, noise, elements = 300, 4, 3, 0.8, 3000
    mods = [] if where == "server" else [fixedclipping_mod]
    members = let_in(count) + nodes
    dp = clipped(noise, members, server=where == "server")
    strategy = CanaryStrategy(dp, tmp_path, count=count, mods=mods, norm=7.0)
    run(strategy, LocalGrid(apps(nodes, resting, mods)), linear(elements), rounds)
    sums, inside = totals(tmp_path)
    found = gaussian_bound(sums[~inside], sums[inside], delta=1e-5)
    spread = noise**2 * rounds + rounds**2 * inside.sum() / elements
    truth = rounds / np.sqrt(spread)
    assert abs(found.mu_estimate - truth) < 4 * np.sqrt(4 / count + truth**2 / (2 * count))
    assert found.normality_p > 1e-3
