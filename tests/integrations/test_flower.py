"""Flower's own client apps and strategies, called in process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from integrations.local_grid import LocalGrid, context
from observer.training import model, state_of, trained

from gradaudit.integrations.flower import ObservedStrategy, ObserverMod
from gradaudit.observer import Blocked, Observer
from gradaudit.report import Report

TRAIN = "train"


pytestmark = pytest.mark.usefixtures("inside_a_run")

Client = Callable[[Message, Context], Message]


def instruction(record: ArrayRecord, node: int = 1, kind: str = TRAIN) -> Message:
    return Message(RecordDict({"arrays": record}), node, kind, group_id="1")


def client(message: Message, context: Context) -> Message:
    """Trains on three records, and sends all of its state."""
    state = message.content["arrays"].to_torch_state_dict()
    after = trained(state, seed=context.node_id)
    metrics = MetricRecord({"num-examples": 3, "loss": 0.5})
    return Message(RecordDict({"arrays": ArrayRecord(after), "metrics": metrics}), reply_to=message)


def app(mod: ObserverMod, *inner: Any, train: Client = client) -> ClientApp:
    made = ClientApp(mods=[mod, *inner])
    made.train()(train)
    made.evaluate()(lambda message, _: Message(RecordDict(), reply_to=message))
    return made


def generous(folder: Path | None = None, **options: Any) -> Observer:
    """One that has all the time it may want."""
    observer = Observer(folder, **options)
    observer.allowance.earn(1000)
    return observer


def test_a_mod_reports_here_and_sends_the_verdict_alone(tmp_path: Path) -> None:
    sent = ArrayRecord(state_of(model()))
    reply = app(ObserverMod(generous(tmp_path)))(instruction(sent), context())
    report = Report.from_file(tmp_path / "node-1-round-1.json")
    assert {row.layer for row in report.select("observe.norm")} == {"0", "2", "3", "4"}
    assert report.data["records"] == 3
    beside = report.select("observe.beside")[0]
    assert beside.value == 3  # what BatchNorm counts
    metrics = reply.content.metric_records["metrics"]
    assert metrics["loss"] == 0.5
    told = {key for key in metrics if key.startswith("gradaudit.")}
    assert told == set(generous().observe({}, {}, seconds=1).verdict.metrics())
    assert reply.content["arrays"].keys() == sent.keys()


def test_a_report_is_of_the_round_that_the_strategy_tells(tmp_path: Path) -> None:
    mod = app(ObserverMod(generous(tmp_path)))
    for number in (1, 2):
        told = instruction(ArrayRecord(state_of(model())))
        told.content["config"] = ConfigRecord({"lr": 0.1, "server-round": number})
        mod(told, context())
    assert sorted(path.stem[-7:] for path in tmp_path.iterdir()) == ["round-1", "round-2"]


def test_a_mod_sees_what_inner_mods_leave(tmp_path: Path) -> None:
    def silence(message: Message, context: Context, call_next: Client) -> Message:
        reply = call_next(message, context)
        reply.content["arrays"] = message.content["arrays"]
        return reply

    app(ObserverMod(generous(tmp_path)), silence)(
        instruction(ArrayRecord(state_of(model()))), context()
    )
    report = Report.from_file(tmp_path / "node-1-round-1.json")
    assert {row.value for row in report.select("observe.norm")} == {0.0}


def test_a_policy_blocks_or_withholds(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules:\n  - {metric: observe.labels_named, layers: '', max: 0}\n")
    sent = ArrayRecord(state_of(model()))
    with pytest.raises(Blocked, match="may not leave"):
        app(ObserverMod(generous(policy=policy, on_fail="raise")))(instruction(sent), context())
    mod = ObserverMod(generous(policy=policy, on_fail="withhold"))
    reply = app(mod)(instruction(sent), context())
    assert reply.content["arrays"].object_id == sent.object_id
    assert reply.content["metrics"]["gradaudit.share_not_fit_to_leave"] == 1


def test_of_a_difference_that_is_withheld_zeros_leave(tmp_path: Path) -> None:
    """The weights that came, taken for a difference, would double the server's."""

    def differing(message: Message, _: Context) -> Message:
        state = message.content["arrays"].to_torch_state_dict()
        after = trained(state)
        record = ArrayRecord({name: after[name] - state[name] for name in state})
        return Message(RecordDict({"arrays": record}), reply_to=message)

    (policy := tmp_path / "policy.yaml").write_text(
        "rules:\n  - {metric: observe.labels_named, layers: '', max: 0}\n"
    )
    sent = ArrayRecord(state_of(model()))
    for kind in (None, "difference"):
        mod = ObserverMod(generous(policy=policy, on_fail="withhold"), kind=kind)
        left = app(mod, train=differing)(instruction(sent), context()).content["arrays"]
        assert left.keys() == sent.keys()
        assert not any(array.numpy().any() for array in left.values())


def test_weights_that_begin_at_zero_are_told_by_saying_so(tmp_path: Path) -> None:
    zeros = {name: torch.zeros_like(tensor) for name, tensor in state_of(model()).items()}
    for kind, observed in ((None, 0.0), ("weights", 1.0)):
        reply = app(ObserverMod(generous(), kind=kind))(instruction(ArrayRecord(zeros)), context())
        assert reply.content["metrics"]["gradaudit.share_observed"] == observed


def test_other_messages_and_clients_that_fail_pass_as_they_are(tmp_path: Path) -> None:
    def dying(message: Message, _: Context) -> Message:
        raise RuntimeError("out of memory")

    def failing(message: Message, _: Context) -> Message:
        return Message(Error(code=0, reason="no data"), reply_to=message)

    sent, mod = ArrayRecord(state_of(model())), ObserverMod(generous(tmp_path))
    with pytest.raises(RuntimeError, match="out of memory"):
        app(mod, train=dying)(instruction(sent), context())
    assert app(mod, train=failing)(instruction(sent), context()).has_error()
    app(mod)(instruction(sent, kind="evaluate"), context())
    assert not list(tmp_path.iterdir())
    app(mod)(instruction(sent), context())
    assert list(tmp_path.iterdir())


def nameless(message: Message, _: Context) -> Message:
    """Takes arrays in the order of the state, and sends them so."""
    arrays = message.content["arrays"].to_numpy_ndarrays()
    state = {
        name: torch.from_numpy(array.copy())
        for name, array in zip(model().state_dict(), arrays, strict=True)
    }
    record = ArrayRecord([tensor.numpy() for tensor in trained(state).values()])
    return Message(RecordDict({"arrays": record}), reply_to=message)


def test_arrays_without_names_take_those_of_the_state_in_its_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = state_of(model())
    sent = ArrayRecord([tensor.numpy() for tensor in state.values()])
    short = dict(list(state.items())[1:])
    for given, fault in ((None, "no names"), (short, "11 arrays"), (state, "")):
        caplog.clear()
        mod = ObserverMod(generous(tmp_path), given)
        reply = app(mod, train=nameless)(instruction(sent), context())
        assert fault in caplog.text
        assert bool(fault) is bool(caplog.text)
        assert reply.content["metrics"]["gradaudit.share_observed"] == float(not fault)
    report = Report.from_file(tmp_path / "node-1-round-1.json")
    assert {layer.name for layer in report.target.layers} == {"0", "2", "3", "4"}


@pytest.mark.slow
def test_a_strategy_sees_each_client_that_took_part_and_lives(tmp_path: Path) -> None:
    grid = LocalGrid({node: app(ObserverMod(generous())) for node in range(1, 7)}, dead=4)
    inner = FedAvg(fraction_train=0.5, fraction_evaluate=0.0, min_train_nodes=3)
    strategy = ObservedStrategy(inner, generous(tmp_path))
    state = ArrayRecord(state_of(model()))
    result = strategy.start(grid, state, num_rounds=6)  # type: ignore[arg-type]
    asked = [set(nodes) for nodes in grid.asked if nodes]
    assert [len(nodes) for nodes in asked] == [3] * 6
    expected = {
        f"from-node-{node}-round-{number}.json"
        for number, nodes in enumerate(asked, start=1)
        for node in nodes - {4}
    }
    assert {path.name for path in tmp_path.iterdir()} == expected
    assert strategy.absent == (4 in asked[-1])
    shares = [
        metrics["gradaudit.share_observed"] for metrics in result.train_metrics_clientapp.values()
    ]
    assert set(shares) == {1.0}
    assert result.arrays.keys() == state.keys()
