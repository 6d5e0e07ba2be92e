"""Canaries in Flower's own strategies, DP wrappers and mods, run in process."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)
from integrations.local_grid import LocalGrid
from observer.training import model, state_of, trained
from torch import Tensor, nn

from gradaudit.audits.dp_audit.law.estimates import gaussian_bound
from gradaudit.errors import AuditError, UsageError
from gradaudit.federation.canaries import FILE, CanaryScores
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_canaries_take_part_as_often_as_nodes_are_asked(tmp_path: Path) -> None:
    """Three of six nodes a round, of which one is dead; half of the canaries that are in."""
    received = []

    class Counting(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            arrived = list(replies)
            received.append(len(arrived) - 3)
            return super().aggregate_train(server_round, arrived)

    inner = Counting(fraction_train=0.5, fraction_evaluate=0.0, min_train_nodes=3)
    strategy = CanaryStrategy(inner, tmp_path, count=200)
    run(strategy, LocalGrid(apps(6, resting), dead=4), linear(20), 8)
    expected = let_in(200) / 2
    assert abs(np.mean(received) - expected) < 4 * np.sqrt(expected / 2 / 8)
    assert len(set(received)) > 1
    assert len(CanaryScores.read(tmp_path).cosines) == 8


def test_a_second_start_draws_its_rounds_anew(tmp_path: Path) -> None:
    """Flower counts the rounds of each start from 1; who takes part is drawn apart."""
    joined: list[set[bytes]] = []

    class Listening(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            arrived = list(replies)
            moved = (r.content["arrays"]["weight"].numpy() - start for r in arrived[1:])
            joined.append({np.round(m / np.abs(m).max(), 2).tobytes() for m in moved})
            return super().aggregate_train(server_round, arrived)

    inner = Listening(fraction_train=0.5, fraction_evaluate=0.0, min_train_nodes=1)
    strategy = CanaryStrategy(inner, tmp_path, count=40, norm=5.0)
    state = linear(50)
    start = state["weight"].numpy()
    for _ in range(2):
        run(strategy, LocalGrid(apps(2, resting)), state, 1)
    assert len(joined[0] & joined[1]) < min(map(len, joined))


def test_a_round_that_a_failure_stops_releases_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Flower's DP strategies skip a round in which a client fails."""
    inner = clipped(0.1, 4 + let_in(10))
    strategy = CanaryStrategy(inner, tmp_path, count=10)
    state = linear(20)
    grid = LocalGrid(apps(4, resting), dead=4)
    run(strategy, grid, state, 1)
    assert "round 1 released nothing" in caplog.text
    assert not (tmp_path / FILE).exists()
    grid.dead = 0
    run(strategy, grid, state, 2)
    assert len(CanaryScores.read(tmp_path).cosines) == 2


def test_clients_noise_is_the_canaries_too(tmp_path: Path) -> None:
    """LocalDpMod clips a canary to 0.5, and adds noise of its deviation to each element."""
    noise = 0.1 * np.sqrt(2 * np.log(1.25 / 1e-5)) / 3
    heard: list[np.ndarray] = []

    class Listening(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            arrived = list(replies)
            heard.extend(reply.content["arrays"]["weight"].numpy() for reply in arrived[2:])
            return super().aggregate_train(server_round, arrived)

    mods = [LocalDpMod(clipping_norm=0.5, sensitivity=0.1, epsilon=3, delta=1e-5)]
    strategy = CanaryStrategy(
        Listening(fraction_evaluate=0.0),
        tmp_path,
        count=9,
        norm=2.0,
        mods=mods,
        kind="weights",  # which noise on small weights would leave open
    )
    state = linear(5000)
    run(strategy, LocalGrid(apps(2, resting, mods)), state, 1)
    assert strategy.canaries is not None
    rows = strategy.canaries.directions(np.flatnonzero(strategy.canaries.included))["weight"]
    assert len(heard) == len(rows) == let_in(9)
    for row, array in zip(rows, heard, strict=True):
        rest = array - state["weight"].numpy() - 0.5 * row.numpy()
        assert rest.std() == pytest.approx(noise, rel=0.05)


def test_of_differences_canaries_send_their_direction_alone(tmp_path: Path) -> None:
    """A strategy that adds the mean difference to the weights."""

    def differing(message: Message, context: Context) -> Message:
        reply = training(message, context)
        came = message.content["arrays"].to_torch_state_dict(keep_input=True)
        left = reply.content["arrays"].to_torch_state_dict(keep_input=True)
        reply.content["arrays"] = ArrayRecord({name: left[name] - came[name] for name in left})
        return reply

    class Adding(FedAvg):
        def configure_train(self, server_round: int, arrays: Any, *others: Any) -> Any:
            self.weights = arrays.to_torch_state_dict(keep_input=True)
            return super().configure_train(server_round, arrays, *others)

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            mean = arrays.to_torch_state_dict()
            return ArrayRecord({n: self.weights[n] + mean[n] for n in mean}), metrics

    plain = CanaryStrategy(averaging(), tmp_path / "weights", count=6)
    adding = CanaryStrategy(Adding(fraction_evaluate=0.0), tmp_path / "differences", count=6)
    state = state_of(model())
    for strategy, train in ((plain, training), (adding, differing)):
        run(strategy, LocalGrid(apps(3, train)), state, 1)
    both = [CanaryScores.read(tmp_path / name).cosines for name in ("weights", "differences")]
    np.testing.assert_allclose(*both, atol=1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": 0}, "count=0: let in one canary at least"),
        ({"count": "5"}, "count='5': let in one"),
        ({"count": float("nan")}, "count=nan"),
        ({"count": 10**9}, "100,000 at most"),
        ({"seed": -1}, "seed=-1: give a whole number"),
        ({"seed": None}, "seed=None"),
        ({"norm": 0}, "norm=0: a length must be above 0"),
        ({"norm": float("nan")}, "norm=nan"),
        ({"norm": float("inf")}, "norm=inf"),
        ({"norm": "2"}, "norm='2'"),
        ({"mods": None}, "is not a list of mods"),
        ({"mods": fixedclipping_mod}, "is not a list of mods"),
        ({"strategy": FedAvg}, "is not a strategy of the message API"),
        ({"folder": None}, "name another folder"),
        ({"folder": "a\0b"}, "name another folder"),
    ],
)
def test_arguments_that_no_run_can_have_are_refused_before_it(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    usual = {"strategy": averaging(), "folder": tmp_path / "scores", "count": 5}
    with pytest.raises(UsageError, match=message):
        CanaryStrategy(**{**usual, **given})
    assert not list(tmp_path.iterdir())
    for name in given.keys() & {"count", "seed"}:
        with pytest.raises(UsageError, match=message):
            let_in(**{"count": 5, name: given[name]})


def test_numpys_numbers_are_numbers(tmp_path: Path) -> None:
    CanaryStrategy(averaging(), tmp_path, count=np.int64(5), norm=np.float32(2))  # type: ignore[arg-type]


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="name another folder"):
        CanaryStrategy(averaging(), tmp_path / "file", count=5)
    run(CanaryStrategy(averaging(), tmp_path, count=5), LocalGrid(apps(2, resting)), linear(9), 1)
    with pytest.raises(UsageError, match="belongs to another run"):
        CanaryStrategy(averaging(), tmp_path, count=5)


def test_arrays_without_names_take_those_of_the_state(tmp_path: Path) -> None:
    def nameless(message: Message, context: Context) -> Message:
        arrays = [array.copy() for array in message.content["arrays"].to_numpy_ndarrays()]
        state = {n: torch.from_numpy(a) for n, a in zip(model().state_dict(), arrays, strict=True)}
        after = trained(state, seed=context.node_id)
        record = ArrayRecord([tensor.numpy() for tensor in after.values()])
        metrics = MetricRecord({"num-examples": 3})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    sent = ArrayRecord([tensor.numpy() for tensor in state_of(model()).values()])
    grid: Any = LocalGrid(apps(2, nameless))
    with pytest.raises(AuditError, match="give state="):
        CanaryStrategy(averaging(), tmp_path, count=4).start(grid, sent, num_rounds=1)
    named = CanaryStrategy(averaging(), tmp_path, count=4, state=state_of(model()))
    named.start(grid, sent, num_rounds=1)
    assert set(CanaryScores.read(tmp_path).layers) == {"0", "2", "3", "4"}
    assert named.canaries is not None
    assert "3.running_mean" not in named.canaries.shapes
