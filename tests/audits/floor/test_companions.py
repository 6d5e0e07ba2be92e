"""Updates that are no means over records: after local steps, weighed, or clipped as a whole."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from audits.floor.dense import dense_covariance, network, released
from audits.floor.test_gap import Shifted, classes, gaps, linear, numbers
from subjects import rows_by, subject_of
from torch import Tensor, nn

from gradaudit.audits.floor import Floor
from gradaudit.audits.floor.drawn import PriorSample
from gradaudit.audits.floor.information import layer_information
from gradaudit.audits.floor.playing import sent
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.rate_distortion import update_laws
from gradaudit.core.randomness import torch_rng
from gradaudit.defenses import parse_defense
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, layers_of
from gradaudit.models.torch_losses import WeightedCrossEntropy
from gradaudit.sharing.companions import Companions
from gradaudit.sharing.protocol import LocalTraining

RATE, RECORDS = 0.3, 3
OTHERS = torch.randn(9, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
LABELS = torch.arange(9) % 2


def trained(
    model: nn.Module, training: LocalTraining | None, record: Tensor, label: Tensor, drawn: Tensor
) -> Tensor:
    """(w₀ − w_E)/rate by a loop over gradients, as ``torch.optim.SGD`` would take them."""
    whole = gradient_of_batch(model)
    weights = [parameter.detach() for parameter in model.parameters()]
    others, orders = drawn[: RECORDS - 1], drawn[RECORDS - 1 :]
    inputs = torch.stack([record, *(OTHERS[k] for k in others)])
    labels = torch.stack([label, *(LABELS[k] for k in others)])
    if training is None:
        return torch.cat([g.flatten() for g in whole(weights, inputs, labels)])
    now, kept = list(weights), [torch.zeros_like(w) for w in weights]
    for rows in torch.split(orders, training.local_batch or RECORDS):
        gradients = whole(now, inputs[rows], labels[rows])
        kept = [training.momentum * b + g for b, g in zip(kept, gradients, strict=True)]
        now = [w - training.rate * b for w, b in zip(now, kept, strict=True)]
    moved = [(w - n) / training.rate for w, n in zip(weights, now, strict=True)]
    return torch.cat([each.flatten() for each in moved])


def gradient_of_batch(model: nn.Module) -> Any:
    names = [name for name, _ in model.named_parameters()]

    def gradients(weights: Sequence[Tensor], inputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        leaves = [w.requires_grad_() if w.is_leaf else w for w in (x.clone() for x in weights)]
        outputs = torch.func.functional_call(model, dict(zip(names, leaves, strict=True)), inputs)
        loss = nn.functional.cross_entropy(outputs, labels)
        return torch.autograd.grad(loss, leaves, create_graph=True)

    return gradients


TRAININGS = [
    None,
    LocalTraining(steps=3, rate=RATE),
    LocalTraining(epochs=2, rate=RATE, local_batch=1, momentum=0.5),
]


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("clip", [None, 0.4])
def test_information_is_that_of_differences_of_whole_trainings(
    training: LocalTraining | None, clip: float | None
) -> None:
    """By central differences of updates that a loop over gradients makes, clipped as a whole."""
    model, labels = network(4, 3, 2), torch.arange(8) % 2
    target, layers = Target(model, CrossEntropy()), layers_of(model, with_bias=True)
    prior = GaussianPrior.fitted(OTHERS)
    companions = Companions(OTHERS, LABELS, RECORDS, training)
    clips = (released(layers, clip=clip),)
    found = layer_information(
        target, layers, prior, labels, shape=(4,), seed=3, clips=clips, companions=companions
    )
    names = [name for layer in layers for name in layer.parameter_names]
    view = FunctionalModel.of(target, seed=3)
    sample = PriorSample.of(view, names, prior, labels, shape=(4,), seed=3, most=9)
    drawn = companions.drawn(2, torch_rng(3, "floor", "companions"))

    def left(record: Tensor, label: Tensor, beside: Tensor) -> Tensor:
        update = trained(model, training, record, label, beside).detach()
        return update * (clip / update.norm()).clamp(max=1) if clip else update

    sizes, step = [layer.parameters for layer in layers], 1e-5
    expected = [torch.zeros(4, 4, 4, dtype=torch.float64) for _ in layers]
    cells = zip(sample.records, sample.labels, sample.cells.tolist(), strict=True)
    for record, label, cell in cells:
        own = label, drawn[cell // 2]
        moves = step * prior.leaders
        apart = [left(record + move, *own) - left(record - move, *own) for move in moves]
        jacobian = torch.stack(apart, dim=1) / (2 * step)
        for sums, part in zip(expected, torch.split(jacobian, sizes), strict=True):
            sums[cell] += part.mT @ part / 2
    for layer, sums in zip(layers, expected, strict=True):
        halves = sums.reshape(2, 2, 4, 4)
        assert float(halves.abs().max()) > 1e-4
        torch.testing.assert_close(found[layer.name].halves, halves, rtol=1e-5, atol=1e-8)


def test_what_is_attacked_is_the_client_s_update() -> None:
    model = network(4, 3, 2)
    layers = layers_of(model, with_bias=True)
    view = FunctionalModel.of(Target(model, CrossEntropy()))
    companions = Companions(OTHERS, LABELS, RECORDS, TRAININGS[2])
    (drawn,) = companions.drawn(1, torch.Generator().manual_seed(1))
    record, label = torch.linspace(-1, 1, 4, dtype=torch.float64), torch.tensor(1)
    update = trained(model, TRAININGS[2], record, label, drawn).detach()
    release = released(layers, 1, 0.5, clip=0.1)
    found = sent(view, layers, [release], companions)(record, label, drawn)
    torch.testing.assert_close(found, update * 0.1 / update.norm() / 0.5)


def exact(sigma: float, slope: float) -> tuple[float, float]:
    """Error over the prior's variance, and nats, where the update moves by slope · W."""
    prior = GaussianPrior.fitted(linear().records.inputs)
    weight = Shifted().get_buffer("fixed").double() * slope / sigma
    precision = torch.linalg.inv(dense_covariance(prior)) + weight.mT @ weight
    told = torch.logdet(precision) + torch.logdet(dense_covariance(prior))
    return float(torch.linalg.inv(precision).trace()) / prior.variance, float(told) / 2


@pytest.mark.parametrize(("steps", "records", "clients"), [(1, 1, 1), (3, 1, 1), (4, 5, 2)])
def test_steps_of_a_linear_model_have_their_closed_form(
    steps: int, records: int, clients: int
) -> None:
    """The shift v falls by 2η(Wx̄ + v)/3 in a step, in all by (Wx̄ + v)(1 − (1 − 2η/3)^E)."""
    slope = (1 - (1 - 2 * RATE / 3) ** steps) / RATE / records / clients
    error, told = exact(0.05, slope)
    how = {"batch_size": records, "local_steps": steps, "rate": RATE, "others": clients - 1}
    rows = rows_by(Floor)(linear(8), sigma=0.05, attacked=128, **how)
    found = {row.metric: row for row in rows if row.layer is None}
    assert found["mse_share"].value == pytest.approx(error, rel=1e-6)
    assert found["nats"].value == pytest.approx(told, rel=1e-6)
    ends = numbers(found["gap"].details)
    assert ends["attack_low"] <= error <= ends["attack_high"]
    assert found["gap"].details["local_steps"] == steps


def test_the_law_of_a_linear_model_s_updates_is_exact() -> None:
    """It is Gaussian, and what the companions add to it is known: the bound is the nats."""
    subject, labels = linear(), torch.zeros(400, 3)
    layers = layers_of(subject.target.model, with_bias=True)
    prior = GaussianPrior.fitted(subject.records.inputs)
    records = subject.records
    training = LocalTraining(steps=3, rate=RATE)
    companions = Companions(records.inputs.double(), records.labels.double(), 4, training)
    release = released(layers, 1, 0.05)
    how: dict[str, Any] = {"shape": (5,), "seed": 0, "memory": 1 << 26, "companions": companions}
    laws = update_laws(subject.target, layers, prior, labels, (release,), **how)
    bound = laws["shift"].nats(torch.arange(400) % 8)[0].mean()
    _, told = exact(0.05, (1 - (1 - 2 * RATE / 3) ** 3) / RATE / 4)
    assert float(bound) == pytest.approx(told, rel=0.05)


def test_a_step_over_all_records_is_their_gradient() -> None:
    plain = rows_by(Floor)(classes(), sigma=0.3, batch_size=4, attacked=8)
    stepped = rows_by(Floor)(classes(), sigma=0.3, batch_size=4, attacked=8, local_steps=1)
    assert [row.value for row in plain] == [row.value for row in stepped]


def weighing(*weights: float) -> WeightedCrossEntropy:
    return WeightedCrossEntropy(nn.CrossEntropyLoss(weight=torch.tensor(weights)), "weighed")


def test_records_that_weigh_differently_have_floors_beside_one_another() -> None:
    """Where both classes weigh the same in the end, the floor is that of plain means."""
    subject = classes()
    model = subject.target.model
    even, uneven = (Target(model, weighing(*weights)) for weights in ((1.0, 1.0), (9.0, 1.0)))
    values = [
        rows_by(Floor)(
            subject_of(target, subject.records, samples=8), sigma=0.1, batch_size=2, attacked=0
        )
        for target in (subject.target, even, uneven)
    ]
    shares = [[row.value for row in rows if row.metric == "mse_share"] for rows in values]
    assert shares[1] == pytest.approx(shares[0], rel=1e-6)
    assert shares[2] != pytest.approx(shares[0], rel=1e-2)


def test_why_local_steps_leave_no_derivative() -> None:
    kinked = gaps(classes(nn.ReLU), sigma=0.3, attacked=4, local_steps=2)
    assert (kinked["2"].reason or "").startswith(
        "no floor: later local steps carry on what jumps in 0: ReLU 1 has a kink"
    )
    hidden = classes(nn.ReLU, hidden=("0",), show=("2",))
    assert "what jumps in 0" in (gaps(hidden, sigma=0.3, local_steps=2)["2"].reason or "")
    assert gaps(hidden, sigma=0.3, attacked=4)["2"].status == "measured"
    adam = gaps(classes(), sigma=0.3, local_steps=1, optimizer="adam")
    assert "Adam moves an element" in (adam["0"].reason or "")
    summed = classes(defenses=(parse_defense("dp:clip=1,sigma=0.3"),))
    with pytest.raises(UsageError, match="single records cannot be clipped in FedAvg"):
        gaps(summed, local_steps=2)
    weighted = Target(network(4, 3, 2), weighing(9.0, 1.0))
    both = subject_of(weighted, summed.records, samples=8, defenses=summed.defenses)
    with pytest.raises(NotApplicable, match="clips single records"):
        gaps(both, batch_size=2)
