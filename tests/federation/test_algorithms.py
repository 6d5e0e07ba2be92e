"""The algorithms against centralised training and against sums done by hand."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES, CROSS_ENTROPY, MSE, Case
from torch import Tensor, nn

from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.errors import AuditError, UsageError
from gradaudit.federation.federated_training import FederatedTraining, train_rounds
from gradaudit.federation.partition import split
from gradaudit.federation.settings import TrainingOptions
from gradaudit.models.target import Target

NAMED = {str(case): case for case in CASES}
State = dict[str, Tensor]


def classes_of(model: nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.arange(len(inputs)) % model(inputs).shape[1]


def problem(case: Case, count: int = 24) -> tuple[Target, Records]:
    """A case's model in training mode and more records like its own."""
    target = replace(case.target(), mode="train")
    generator = torch.Generator().manual_seed(1)
    shape = case.inputs.shape[1:]
    inputs = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    return target, Records(inputs, classes_of(target.model, inputs))


def trained(target: Target, records: Records, **options: object) -> State:
    made = TrainingOptions(**options)  # type: ignore[arg-type]
    return list(train_rounds(target, records, made, scored=False))[-1].state


def descend(
    target: Target, records: Records, steps: int, rate: float, momentum: float = 0
) -> State:
    """Full-batch gradient descent, written out."""
    model = target.model
    weights = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    velocity = {n: torch.zeros_like(p) for n, p in weights.items()}
    for _ in range(steps):
        outputs = torch.func.functional_call(model, weights, (records.inputs,))
        loss = nn.functional.cross_entropy(outputs, records.labels)
        gradients = torch.autograd.grad(loss, list(weights.values()))
        with torch.no_grad():
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
                velocity[name] = momentum * velocity[name] + gradient
                weight -= rate * velocity[name]
    return {name: weight.detach() for name, weight in weights.items()}


def assert_same(found: State, wanted: State, tolerance: float = 1e-12) -> None:
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("case", "options", "descent"),
    [
        ("conv-strided", {"algorithm": "fedsgd", "clients": 4, "rounds": 3}, (3, 0.3)),
        (
            "conv-strided",
            {
                "algorithm": "fedsgd",
                "clients": 4,
                "rounds": 3,
                "momentum": 0.9,
                "partition": "dirichlet:1",
            },
            (3, 0.3, 0.9),
        ),
        ("mlp-tanh", {"clients": 1, "rounds": 1, "epochs": 4}, (4, 0.3)),
        ("mlp-tanh", {"clients": 1, "rounds": 1, "epochs": 4, "momentum": 0.9}, (4, 0.3, 0.9)),
        ("mlp-tanh", {"clients": 1, "rounds": 3, "momentum": 0.9}, (3, 0.3)),
    ],
    ids=["fedsgd", "fedsgd with momentum", "local", "local with momentum", "afresh each round"],
)
def test_whole_batches_are_centralised_sgd(
    case: str, options: dict[str, Any], descent: tuple[Any, ...]
) -> None:
    """FedSGD of all clients, and FedAvg of one, whose momentum starts afresh in each round."""
    target, records = problem(NAMED[case])
    found = trained(target, records, rate=0.3, batch_size=24, **options)
    assert_same(found, descend(target, records, *descent))


def test_fedavg_averages_by_the_number_of_records() -> None:
    target, records = problem(NAMED["mlp-tanh"], 25)
    options = TrainingOptions(clients=3, rounds=1, epochs=5, batch_size=25, rate=0.3)
    training = FederatedTraining(target, records, options)
    local = [descend(target, records.take(part), 5, 0.3) for part in training.parts]
    sizes = [len(part) for part in training.parts]
    training.advance()
    wanted = {
        name: sum(n * state[name] for n, state in zip(sizes, local, strict=True)) / 25
        for name in local[0]
    }
    assert sorted(sizes) == [8, 8, 9]
    assert_same(training.server.state(), wanted)


def test_round_robin_by_hand_on_a_linear_model() -> None:
    """One step a client: w ← w − rate · 2 Xᵀ(Xw − y)/n, each from the last one's w."""
    inputs = torch.tensor([[1.0, 0], [0, 2], [1, 1], [2, -1]], dtype=torch.float64)
    labels = torch.tensor([[1.0], [2], [0], [1]], dtype=torch.float64)
    model = nn.Linear(2, 1, bias=False).double()
    weight = torch.tensor([[0.5, -0.5]], dtype=torch.float64)
    model.weight.data.copy_(weight)
    target = Target(model, MSE, mode="train")
    options = TrainingOptions(algorithm="round-robin", clients=2, rounds=2, batch_size=4, rate=0.1)
    training = FederatedTraining(target, Records(inputs, labels), options)
    parts = training.parts
    for _ in range(2):
        training.advance()
        for part in parts:
            x, y = inputs[part], labels[part]
            weight = weight - 0.1 * 2 * ((x @ weight.T - y).T @ x) / len(part)
    torch.testing.assert_close(training.server.state()["weight"], weight)
    together = trained(target, Records(inputs, labels), clients=2, rounds=2, batch_size=4)
    assert not torch.allclose(together["weight"], weight)


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg", "round-robin"])
def test_the_same_seed_gives_the_same_numbers_and_leaves_the_target_as_it_was(
    algorithm: str,
) -> None:
    target, records = problem(NAMED["batch-norm"])
    before = {name: tensor.clone() for name, tensor in target.model.state_dict().items()}
    draws = torch.get_rng_state()
    options = TrainingOptions(algorithm=algorithm, clients=3, rounds=2, batch_size=3)
    first, again, other = (
        list(train_rounds(target, records, options, seed=seed, scored=False))[-1].state
        for seed in (5, 5, 6)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert all(torch.equal(before[name], now) for name, now in target.model.state_dict().items())
    assert not target.model.training
    assert torch.equal(draws, torch.get_rng_state())


def test_every_epoch_sees_every_record_once() -> None:
    seen: list[Tensor] = []

    class Spy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                seen.append(x.detach().clone())
            return super().forward(x)

    inputs = torch.arange(10, dtype=torch.float64)[:, None]
    target = Target(Spy(1, 2).double(), CROSS_ENTROPY, mode="train")
    records = Records(inputs, torch.arange(10) % 2)
    training = FederatedTraining(
        target, records, TrainingOptions(clients=1, epochs=2, batch_size=4)
    )
    seen.clear()
    training.advance()
    assert [len(batch) for batch in seen] == [4, 4, 2, 4, 4, 2]
    for epoch in (seen[:3], seen[3:]):
        assert torch.equal(torch.cat(epoch).sort(dim=0).values, inputs)
    assert not torch.equal(torch.cat(seen[:3]), torch.cat(seen[3:]))


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_running_statistics_are_averaged(algorithm: str) -> None:
    target, records = problem(NAMED["batch-norm"])
    options = TrainingOptions(
        algorithm=algorithm, clients=2, rounds=1, batch_size=12, rate=1e-9, partition="iid"
    )
    training = FederatedTraining(target, records, options)
    convolution, norm = target.model[0], target.model[1]  # type: ignore[index]
    with torch.no_grad():
        means = [convolution(records.inputs[part]).mean(dim=(0, 2, 3)) for part in training.parts]
    wanted = 0.9 * norm.running_mean + 0.1 * sum(means) / 2
    training.advance()
    state = training.server.state()
    torch.testing.assert_close(state["1.running_mean"], wanted, rtol=1e-6, atol=1e-9)
    assert int(state["1.num_batches_tracked"]) == 1


def test_a_last_batch_of_one_joins_the_one_before_where_records_are_coupled() -> None:
    target, records = problem(NAMED["batch-norm"], 7)
    assert trained(target, records, clients=1, rounds=1, batch_size=3)


def test_frozen_weights_stay() -> None:
    target, records = problem(NAMED["unused-and-frozen"])
    found = trained(target, records, clients=2, rounds=2)
    for name in ("frozen.weight", "spare.weight"):
        assert torch.equal(found[name], target.model.state_dict()[name])
    assert not torch.equal(found["head.weight"], target.model.state_dict()["head.weight"])


class Scaled(nn.Module):
    """A layer with a parameter besides weight and bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 4, dtype=torch.float64))
        self.gain = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * (x @ self.weight.T)


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg", "round-robin"])
@pytest.mark.parametrize("spec", ["dp:clip=9,sigma=0,per=release", "sign"])
def test_parameters_that_are_no_weight_are_trained_too(algorithm: str, spec: str) -> None:
    _, records = problem(NAMED["mlp-tanh"])
    target = Target(Scaled(), CROSS_ENTROPY, mode="train")
    options = TrainingOptions(algorithm=algorithm, clients=3, rounds=1)  # an odd number of signs
    chain = [parse_defense(spec)]
    (first, last) = train_rounds(target, records, options, defenses=chain, scored=False)
    assert all(not torch.equal(first.state[name], last.state[name]) for name in first.state)


def test_round_zero_is_the_initial_model_and_accuracies_are_of_both_parts() -> None:
    target, records = problem(NAMED["mlp-tanh"], 60)
    kept, test = records.take(np.arange(40)), records.take(np.arange(40, 60))
    rounds = list(train_rounds(target, kept, TrainingOptions(clients=2, rounds=2), test=test))
    assert [r.number for r in rounds] == [0, 1, 2]
    assert_same(rounds[0].state, dict(target.model.named_parameters()), 0)
    assert rounds[0].loss is None
    with torch.no_grad():
        target.model.load_state_dict(rounds[2].state)
        right = target.model(test.inputs).argmax(dim=1) == test.labels
    assert rounds[2].test is not None
    assert rounds[2].train is not None
    assert rounds[2].test.value == pytest.approx(float(right.double().mean()))
    assert rounds[2].train.n == 40


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg", "round-robin"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_lowers_the_loss(algorithm: str, optimizer: str) -> None:
    target, records = problem(NAMED["mlp-tanh"], 40)
    records = replace(records, labels=(records.inputs[:, 0] > 0).long())
    options = TrainingOptions(
        algorithm=algorithm,
        clients=4,
        rounds=15,
        rate=0.5 if optimizer == "sgd" else 0.05,
        optimizer=optimizer,  # type: ignore[arg-type]
    )
    losses = [r.loss for r in train_rounds(target, records, options, scored=False)]
    assert losses[-1] is not None
    assert losses[1] is not None
    assert losses[-1] < 0.7 * losses[1]


def test_updates_pass_through_the_defenses() -> None:
    """With every element but the largest of each tensor removed, one moves a round."""
    target, records = problem(NAMED["mlp-tanh"])
    options = TrainingOptions(clients=1, rounds=1)
    for algorithm in ("fedsgd", "fedavg"):
        made = options.model_copy(update={"algorithm": algorithm})
        (_, last) = train_rounds(
            target, records, made, defenses=[parse_defense("prune:0.99")], scored=False
        )
        for name, before in target.model.named_parameters():
            assert int((last.state[name] != before).sum()) == 1


def test_clipped_records_bound_a_step_of_fedsgd() -> None:
    target, records = problem(NAMED["mlp-tanh"])
    options = TrainingOptions(algorithm="fedsgd", clients=1, rounds=1, rate=1.0)
    defenses = [parse_defense("dp:clip=0.01,sigma=0,per=record")]
    (_, last) = train_rounds(target, records, options, defenses=defenses, scored=False)
    moved = torch.cat(
        [(last.state[n] - p).detach().flatten() for n, p in target.model.named_parameters()]
    )
    gradients = []
    for record, label in zip(records.inputs, records.labels, strict=True):
        loss = nn.functional.cross_entropy(target.model(record[None]), label[None])
        parts = torch.autograd.grad(loss, list(target.model.parameters()))
        whole = torch.cat([part.flatten() for part in parts])
        gradients.append(whole * min(1.0, 0.01 / float(whole.norm())))
    torch.testing.assert_close(moved, -torch.stack(gradients).mean(dim=0))


def test_noise_differs_between_clients_and_rounds() -> None:
    target, records = problem(NAMED["mlp-tanh"])
    options = TrainingOptions(algorithm="fedsgd", clients=2, rounds=2, rate=1.0)
    defenses = [parse_defense("dp:clip=1e-9,sigma=1,per=release")]
    rounds = list(train_rounds(target, records, options, defenses=defenses, scored=False))
    steps = [
        torch.cat([(b.state[n] - a.state[n]).flatten() for n in a.state])
        for a, b in pairwise(rounds)
    ]
    assert not torch.allclose(steps[0], steps[1])
    # the mean of two clients' independent noise has deviation 1/√2, one noise would have 1
    assert float(torch.cat(steps).std()) == pytest.approx(0.5**0.5, rel=0.3)


def test_diverged_training_names_the_remedy() -> None:
    target, records = problem(NAMED["mlp-mse-on-classes"])
    message = r"diverged in round \d+: .*; lower --rate \(it is 1e\+100\)"
    with pytest.raises(AuditError, match=message):
        trained(target, records, clients=2, rounds=9, rate=1e100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "fedsgd", "epochs": 2}, "--epochs 2: with fedsgd a client takes one step"),
        ({"algorithm": "fedagv"}, r"no such algorithm \(did you mean 'fedavg'"),
        ({"optimizer": "adam", "momentum": 0.5}, "--momentum: only --optimizer sgd has it"),
        ({"clients": 25}, "only 24 training records"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, object], message: str) -> None:
    target, records = problem(NAMED["mlp-tanh"])
    with pytest.raises(UsageError, match=message):
        trained(target, records, **options)


def test_what_does_not_fit_is_refused_before_training() -> None:
    target, records = problem(NAMED["mlp-tanh"])
    clipped = [parse_defense("dp:clip=1,sigma=1")]
    with pytest.raises(UsageError, match="per=release"):
        FederatedTraining(target, records, TrainingOptions(), defenses=clipped)
    wrong = replace(records, labels=records.labels + 7)
    with pytest.raises(AuditError, match="labels run from"):
        FederatedTraining(target, wrong, TrainingOptions())


def test_split_draws_test_records_once_and_takes_the_data_sets_word() -> None:
    records = Records(torch.zeros(50, 1), torch.zeros(50, dtype=torch.int64))
    train, test = split(records, None, 0)
    assert (len(train), len(test)) == (40, 10)
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(50))
    assert [len(part) for part in split(records, 0.0, 0)] == [50, 0]
    members = replace(records, members=np.arange(50) < 30)
    assert np.array_equal(split(members, None, 0)[0], np.arange(30))
    assert len(split(members, 0.5, 0)[0]) == 25
    with pytest.raises(UsageError, match="--test-share"):
        split(replace(records, members=np.zeros(50, bool)), None, 0)
