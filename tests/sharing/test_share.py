"""One client's update against plain autograd and a plain optimizer, in float64."""

import copy
from typing import Any

import numpy as np
import plain_updates as plain
import pytest
import torch
from cases import CASES, Case
from torch import nn

from gradaudit.defenses import parse_defense
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.models.losses import CrossEntropy, Loss
from gradaudit.models.target import Target
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import Clients, seen, share

by_id = {case.id: case for case in CASES}
SOME = pytest.mark.parametrize(
    "case",
    [by_id[name] for name in ("mlp-tanh", "conv-strided", "batch-norm", "text")],
    ids=str,
)
EXACT = {"rtol": 1e-9, "atol": 1e-12}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shared(case: Case, *specs: str, target: Target | None = None, **options) -> plain.Update:
    sharing = SharingProtocol(tuple(map(parse_defense, specs)), **options)
    found = share(
        target or case.target(), case.inputs, case.labels, sharing, seeded(), dtype=torch.float64
    )
    shapes = {n: p.shape for n, p in case.make_model().named_parameters() if p.requires_grad}
    assert {name: part.shape for name, part in found.items()} == shapes
    return {name: part.flatten().numpy() for name, part in found.items()}


def assert_equal(found: plain.Update, expected: plain.Update) -> None:
    assert set(found) == set(expected)
    for name, part in expected.items():
        np.testing.assert_allclose(found[name], part, err_msg=name, **EXACT)


def trained(case: Case, epochs: int, rate: float) -> plain.Update:
    """(w_0 − w_E)/rate by torch.optim.SGD on whole batches."""
    model = copy.deepcopy(case.make_model())
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(epochs):
        optimizer.zero_grad()
        case.loss.per_record(model(case.inputs), case.labels).mean().backward()
        optimizer.step()
    return {
        name: ((start[name] - p.detach()) / rate).flatten().numpy()
        for name, p in model.named_parameters()
    }


@SOME
def test_fedsgd_is_the_gradient_and_one_step_of_fedavg_the_same(case: Case) -> None:
    expected = plain.gradient(case.make_model(), case.loss, case.inputs, case.labels)
    found = shared(case)
    assert_equal(found, expected)
    once = shared(case, algorithm="fedavg", rate=0.3)
    assert all(np.array_equal(found[name], once[name]) for name in found)


@SOME
def test_fedavg_is_a_plain_loop_of_sgd(case: Case) -> None:
    found = shared(case, algorithm="fedavg", epochs=4, rate=0.3)
    expected = trained(case, 4, 0.3)
    for name, part in found.items():
        np.testing.assert_allclose(part, expected[name], rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(
    "how",
    [
        {"momentum": 0.9},
        {"optimizer": "adam"},
        {"momentum": 0.5, "local_batch": 2, "local_steps": 5},
        {"optimizer": "adam", "local_batch": 2, "local_steps": 3},
        {"optimizer": "adamw", "weight_decay": 0.3, "local_steps": 4, "warmup": 3},
        {"optimizer": "adamw", "local_batch": 2, "local_steps": 3, "accumulate": 2, "warmup": 5},
        {"local_batch": 2, "accumulate": 4, "warmup": 1},
    ],
    ids=lambda how: "-".join(map(str, how.values())),
)
@SOME
def test_local_training_is_that_of_torchs_optimizers(case: Case, how: dict[str, Any]) -> None:
    """Of three epochs, or of so many steps, over minibatches in the order that was drawn."""
    found = shared(case, algorithm="fedavg", epochs=3, rate=0.01, **how)
    expected = by_torch(case.make_model(), case.loss, case.inputs, case.labels, **how)
    for name, part in expected.items():
        np.testing.assert_allclose(found[name], part, rtol=1e-7, atol=1e-9, err_msg=name)


def test_local_training_draws_other_dropout_masks_for_each_minibatch() -> None:
    """With dropout in training mode, of AdamW with warm-up and accumulation."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 12), nn.Dropout(0.4), nn.Tanh(), nn.Linear(12, 3)).double()
    inputs, labels = torch.randn(4, 5, dtype=torch.float64), torch.tensor([0, 2, 1, 2])
    how = {"optimizer": "adamw", "local_batch": 1, "local_steps": 3, "accumulate": 3, "warmup": 2}
    sharing = SharingProtocol(algorithm="fedavg", epochs=3, rate=0.01, **how)
    loss = CrossEntropy()
    clients = {mode: Target(model, loss, mode=mode) for mode in ("train", "eval")}
    found = {
        mode: share(target, inputs, labels, sharing, seeded(), dtype=torch.float64)
        for mode, target in clients.items()
    }
    expected = by_torch(model, loss, inputs, labels, mode="train", **how)
    for name, part in expected.items():
        np.testing.assert_allclose(found["train"][name].flatten(), part, rtol=1e-7, atol=1e-9)
        assert not np.allclose(found["eval"][name].flatten(), part, rtol=0.01)


def by_torch(
    model: nn.Module,
    loss: Loss,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    *,
    mode: str = "eval",
    optimizer: str = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.01,
    local_batch: int | None = None,
    local_steps: int | None = None,
    warmup: int = 0,
    accumulate: int = 1,
) -> plain.Update:
    """(w_0 − w_E)/rate by torch's optimizers and LambdaLR, with the minibatches of ``seeded()``."""
    draws, model = seeded(), copy.deepcopy(model).train(mode == "train")
    seed = int(torch.randint(1 << 62, (), generator=draws))
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    made = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), 0.01, momentum),
        "adam": lambda: torch.optim.Adam(model.parameters(), 0.01),
        "adamw": lambda: torch.optim.AdamW(model.parameters(), 0.01, weight_decay=weight_decay),
    }[optimizer]()
    schedule = torch.optim.lr_scheduler.LambdaLR(
        made, lambda step: (step + 1) / warmup if step < warmup else 1.0
    )
    minibatches: list[torch.Tensor] = []
    for _ in range(3 if local_steps is None else 20):
        order = torch.randperm(len(inputs), generator=draws)
        minibatches += torch.split(order if local_batch else order.sort()[0], local_batch or 999)
    if local_steps is not None:
        minibatches = minibatches[: local_steps * accumulate]
    made.zero_grad()
    for number, rows in enumerate(minibatches):
        if mode == "train":
            torch.manual_seed(seed + number)
        left = len(minibatches) - number // accumulate * accumulate
        part = loss.per_record(model(inputs[rows]), labels[rows]).mean()
        (part / min(accumulate, left)).backward()
        if number + 1 in (len(minibatches), number // accumulate * accumulate + accumulate):
            made.step()
            schedule.step()
            made.zero_grad()
    return {
        name: ((start[name] - p.detach()) / 0.01).flatten().numpy()
        for name, p in model.named_parameters()
    }


@pytest.mark.parametrize("memory", [1, 1 << 30])
@SOME
def test_clients_that_train_together_are_those_that_train_alone(case: Case, memory: int) -> None:
    how = {"epochs": 2, "rate": 0.05, "local_batch": 2, "optimizer": "adam"}
    sharing = SharingProtocol(algorithm="fedavg", **how)
    batches = torch.tensor([[0, 1, 2], [2, 0, 1], [1, 1, 0]])
    clients = Clients(
        case.target(), case.inputs, case.labels, sharing, dtype=torch.float64, memory=memory
    )
    together = clients.updates(batches, [seeded(number) for number in range(3)])
    for number, batch in enumerate(batches):
        alone = clients.update(batch, seeded(number))
        for name, part in alone.items():
            torch.testing.assert_close(together[name][number], part, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"algorithm": "fedavg", "epochs": 2, "optimizer": "adam"}])
def test_of_several_clients_the_mean_of_their_updates_is_seen(options: dict) -> None:
    """Each has a part of the records, and is defended for itself."""
    case = by_id["mlp-tanh"]
    inputs, labels = case.inputs[[0, 1, 2, 0]], case.labels[[0, 1, 2, 0]]
    sharing = SharingProtocol((parse_defense("prune:0.5"),), others=1, **options)
    made = case.target(), inputs, labels, sharing, seeded()
    found = seen(*made, dtype=torch.float64)
    alone = SharingProtocol((parse_defense("prune:0.5"),), **options)
    each = [
        share(case.target(), inputs[part], labels[part], alone, seeded(), dtype=torch.float64)
        for part in ([0, 1], [2, 3])
    ]
    for name, part in found.items():
        np.testing.assert_allclose(part, (each[0][name] + each[1][name]) / 2, **EXACT)
    assert any(not np.array_equal(found[n], each[0][n]) for n in found)


def test_minibatches_go_through_every_record_once_an_epoch() -> None:
    case, rate = by_id["mlp-tanh"], 1e-7
    steps = shared(case, algorithm="fedavg", epochs=2, rate=rate, local_batch=2)
    model = case.make_model()
    each = [
        plain.gradient(model, case.loss, case.inputs[i : i + 1], case.labels[i : i + 1])
        for i in range(3)
    ]
    # two epochs, each the mean of a pair and a single record
    possible = []
    for singles in [(a, b) for a in range(3) for b in range(3)]:
        terms = [
            plain.times(plain.mean([each[j] for j in range(3) if j != single]), 1)
            for single in singles
        ] + [each[single] for single in singles]
        possible.append(plain.times(plain.mean(terms), 4))
    distances = [
        max(float(np.abs(steps[name] - total[name]).max()) for name in steps) for total in possible
    ]
    assert min(distances) < 1e-5


def test_records_are_clipped_before_they_are_averaged() -> None:
    case = by_id["conv-strided"]
    model = case.make_model()
    each = [
        plain.gradient(model, case.loss, case.inputs[i : i + 1], case.labels[i : i + 1])
        for i in range(3)
    ]
    bound = float(np.median([plain.norm(one) for one in each]))
    found = shared(case, f"dp:clip={bound},sigma=0,per=record", "prune:0.5")
    expected = plain.prune(plain.mean([plain.clip(one, bound) for one in each]), 0.5)
    assert_equal(found, expected)


def test_hidden_layers_are_not_shared_and_count_in_no_norm() -> None:
    case = by_id["mlp-tanh"]
    whole = plain.gradient(case.make_model(), case.loss, case.inputs, case.labels)
    part = {name: rows for name, rows in whole.items() if name.startswith("2.")}
    sharing = SharingProtocol((parse_defense("dp:clip=0.1,sigma=0,per=release"),), hidden=("0",))
    found = share(case.target(), case.inputs, case.labels, sharing, seeded(), dtype=torch.float64)
    assert_equal({n: rows.flatten().numpy() for n, rows in found.items()}, plain.clip(part, 0.1))
    with pytest.raises(UsageError, match="nothing is shared: all layers are hidden"):
        share(case.target(), case.inputs, case.labels, SharingProtocol(hidden=("0", "2")), seeded())


def test_the_model_is_left_as_it_was() -> None:
    case = by_id["batch-norm"]
    target = Target(case.make_model().eval(), case.loss, mode="train")
    before = copy.deepcopy(target.model.state_dict())
    shared(case, target=target, algorithm="fedavg", epochs=2)
    assert all(torch.equal(part, before[n]) for n, part in target.model.state_dict().items())
    assert not any(module.training for module in target.model.modules())
    assert all(p.grad is None for p in target.model.parameters())


def test_what_cannot_be_clipped_is_refused() -> None:
    defense = parse_defense("dp:clip=1,sigma=1")
    with pytest.raises(UsageError, match="FedAvg's update, which is no mean over them; use per="):
        SharingProtocol((defense,), algorithm="fedavg")
    case = by_id["batch-norm"]
    target = Target(case.make_model(), case.loss, mode="train")
    with pytest.raises(NotApplicable, match="normalises by its batch's statistics"):
        share(target, case.inputs, case.labels, SharingProtocol((defense,)), seeded())
    with pytest.raises(UsageError, match="--fraction and --elements: give one"):
        SharingProtocol(fraction=0.5, elements=3)
