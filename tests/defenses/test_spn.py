"""The secret polarization network against eq. 18, and what stays secret."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from cases import CASES, MSE, Case
from torch import Tensor, nn

from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.defenses.attachment import attachments, private_names
from gradaudit.defenses.spn import PolarizationHead, polarization_loss
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.federation.federated_training import FederatedTraining
from gradaudit.federation.settings import TrainingOptions
from gradaudit.gradients.per_sample import per_sample_gradients
from gradaudit.models.target import Target, layers_of, shared_parameters
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import share
from gradaudit.subject import defended_target, seen_by_outsiders
from tests.gradients.batches import batch_gradient

NAMED = {str(case): case for case in CASES}
WITH_LINEAR = [
    case
    for case in CASES
    if str(case) in ("mlp-tanh", "conv-strided", "text", "lstm", "group-norm", "reused-module")
]
SPEC = "spn:bits=8,alpha=0.3"


def spn(case: Case, spec: str = SPEC, seed: int = 0) -> Target:
    return defended_target(case.target(), [parse_defense(spec)], seed)


def head_of(target: Target) -> PolarizationHead:
    (head,) = attachments(target.model)
    assert isinstance(head, PolarizationHead)
    return head


def features_of(case: Case, target: Target) -> Tensor:
    """What the last fully connected layer of the case's own model reads."""
    model, seen = case.make_model(), []
    last = [part for part in model.modules() if type(part) is nn.Linear][-1]
    last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    model(case.inputs)
    return seen[-1]


def by_hand(case: Case, target: Target, alpha: float, margin: float = 1.0) -> Tensor:
    """Cross-entropy plus α Σ_k max(m − v_k t_k, 0) of the true class, record by record."""
    head, features = head_of(target), features_of(case, target)
    plain = nn.functional.cross_entropy(
        case.make_model()(case.inputs), case.labels, reduction="none"
    )
    found = []
    for record, label, own in zip(features, case.labels, plain, strict=True):
        v = head.weight @ record + head.bias
        secret = sum(max(margin - float(a * b), 0.0) for a, b in zip(v, head.codes[label]))  # noqa: B905
        found.append(own + alpha * secret)
    return torch.stack(found).detach()


@pytest.mark.parametrize("case", WITH_LINEAR, ids=str)
def test_the_loss_is_cross_entropy_plus_the_true_codes_polarization(case: Case) -> None:
    target = spn(case)
    outputs = target.model(case.inputs)
    losses = target.loss.per_record(outputs, case.labels)
    torch.testing.assert_close(losses, by_hand(case, target, 0.3))
    plain = case.make_model()(case.inputs)
    torch.testing.assert_close(target.loss.predictions(outputs), plain)


def test_the_margin_is_that_of_the_spec() -> None:
    case = NAMED["mlp-tanh"]
    target = spn(case, "spn:bits=8,alpha=0.3,margin=2.5")
    losses = target.loss.per_record(target.model(case.inputs), case.labels)
    torch.testing.assert_close(losses, by_hand(case, target, 0.3, 2.5))


def test_polarization_bounds_the_hamming_distance() -> None:
    """Fan et al. 2020, eq. 19: ½ (K − bin(v)·t) ≤ L_P(v, t); zero beyond the margin."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(200, 16, generator=generator, dtype=torch.float64) * 2
    codes = 2.0 * torch.randint(2, (5, 16), generator=generator) - 1
    losses = polarization_loss(v, codes.double(), 1.0)
    distances = (16 - v.sign() @ codes.double().T) / 2
    assert bool((distances <= losses).all())
    assert float(polarization_loss(3 * codes[:1], codes[:1], 1.0)) == 0


def test_shared_gradients_are_those_of_the_whole_loss() -> None:
    case = NAMED["mlp-tanh"]
    target = spn(case)
    names = shared_parameters(target.model)
    update, parameters = share_of(target, case), dict(target.model.named_parameters())
    assert sorted(update) == sorted(names) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    loss = target.loss.per_record(target.model(case.inputs), case.labels).mean()
    expected = torch.autograd.grad(loss, [parameters[name] for name in names])
    for name, gradient in zip(names, expected, strict=True):
        torch.testing.assert_close(update[name], gradient)


@pytest.mark.parametrize("case", WITH_LINEAR, ids=str)
def test_per_sample_gradients_average_to_the_batch_s(case: Case) -> None:
    target = spn(case)
    layers = layers_of(target.model, with_bias=True)
    whole = batch_gradient(target, case.inputs, case.labels, layers, dtype=torch.float64)
    each = list(per_sample_gradients(target, case.inputs, case.labels, layers, dtype=torch.float64))
    for layer in layers:
        rows = torch.cat([chunk[layer.name] for chunk in each])
        torch.testing.assert_close(rows.mean(dim=0), whole[layer.name])


def test_the_private_part_is_no_layer_and_in_no_update() -> None:
    case = NAMED["conv-strided"]
    target = spn(case)
    plain = layers_of(case.make_model(), with_bias=True)
    assert layers_of(target.model, with_bias=True) == plain
    assert all("spn" not in name for name in shared_parameters(target.model))
    assert len(private_names(target.model)) == 3


def test_the_shared_gradient_carries_the_secret_and_the_last_layer_does_not() -> None:
    case = NAMED["mlp-tanh"]
    one, other = (share_of(spn(case, seed=seed), case) for seed in (0, 1))
    assert not torch.allclose(one["0.weight"], other["0.weight"])
    assert torch.equal(one["2.weight"], other["2.weight"])


def share_of(target: Target, case: Case) -> dict[str, Tensor]:
    return share(
        target, case.inputs, case.labels, SharingProtocol(), torch.Generator(), dtype=torch.float64
    )


def test_an_outsider_s_gradient_is_that_of_the_plain_model() -> None:
    case = NAMED["conv-strided"]
    seen = share_of(seen_by_outsiders(spn(case)), case)
    plain = share_of(case.target(), case)
    for name, gradient in plain.items():
        torch.testing.assert_close(seen[name], gradient)


def test_soft_labels_mix_the_codes() -> None:
    case = NAMED["mlp-tanh"]
    target = spn(case)
    outputs = target.model(case.inputs)
    hard = target.loss.per_record(outputs, case.labels)
    soft = target.loss.per_record(outputs, target.loss.soft(outputs, case.labels))
    torch.testing.assert_close(hard, soft)


def test_every_client_has_a_secret_of_its_own_and_trains_it() -> None:
    case = NAMED["mlp-tanh"]
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, 4, generator=generator, dtype=torch.float64)
    records = Records(inputs, torch.arange(24) % 3)
    target = replace(case.target(), mode="train")
    for algorithm in ("fedsgd", "fedavg", "round-robin"):
        options = TrainingOptions(algorithm=algorithm, clients=3, rounds=1)
        training = FederatedTraining(target, records, options, defenses=[parse_defense(SPEC)])
        before = [dict(client.private) for client in training.clients]
        shared = training.server.state()
        assert not any("spn" in name for name in shared)
        codes = [own["2.spn.codes"] for own in before]
        assert not torch.equal(codes[0], codes[1])
        assert not torch.equal(codes[1], codes[2])
        training.advance()
        for client, own in zip(training.clients, before, strict=True):
            assert torch.equal(client.private["2.spn.codes"], own["2.spn.codes"])
            assert not torch.equal(client.private["2.spn.weight"], own["2.spn.weight"])
        assert not any("spn" in name for name in training.server.state())


@pytest.mark.slow
def test_private_heads_learn_their_own_codes() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    records = Records(inputs, (inputs[:, 0] > 0).long())
    target = replace(NAMED["mlp-tanh"].target(), mode="train")
    options = TrainingOptions(clients=2, rounds=30, epochs=5, rate=0.1)
    training = FederatedTraining(target, records, options, defenses=[parse_defense("spn:bits=32")])
    for _ in range(30):
        training.advance()
    model, losses = training.server.model, []
    for codes in (0, 1):
        private = training.clients[0].private
        secret = training.clients[codes].private["2.spn.codes"]
        model.load_state_dict({**training.server.state(), **private, "2.spn.codes": secret})
        own = training.clients[0].records
        outputs = model(own.inputs).detach()
        losses.append(float(training.target.loss.per_record(outputs, own.labels).mean()))
    assert losses[0] < losses[1] / 2


def test_codes_are_even_and_the_same_under_one_seed() -> None:
    case = NAMED["mlp-tanh"]
    first, again = (head_of(spn(case, "spn:bits=20000", 4)) for _ in range(2))
    assert torch.equal(first.codes, again.codes)
    assert set(first.codes.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(first.codes.mean())) < 4 / 60000**0.5


def test_the_private_layer_starts_within_the_bound_that_is_named() -> None:
    """The same draws in other units, in the target as in every client that draws its own."""
    case = NAMED["mlp-tanh"]
    usual, wide = head_of(spn(case)), head_of(spn(case, f"{SPEC},head=0.3"))
    by = usual.weight.shape[1] ** 0.5 * 0.3
    assert torch.allclose(wide.weight, usual.weight * by)
    assert torch.allclose(wide.bias, usual.bias * by)
    assert torch.equal(wide.codes, usual.codes)
    wide.draw(torch.Generator().manual_seed(1))
    assert 0.2 < float(wide.weight.abs().max()) < 0.3
    with pytest.raises(UsageError, match="head"):
        parse_defense("spn:head=0")


def test_building_it_in_twice_is_once() -> None:
    case = NAMED["mlp-tanh"]
    chain = [parse_defense(SPEC)]
    once = defended_target(case.target(), chain, 0)
    assert defended_target(once, chain, 0) is once


def test_a_defended_model_goes_to_another_process() -> None:
    case = NAMED["conv-strided"]
    target = spn(case)
    for model in (pickle.loads(pickle.dumps(target.model)), copy.deepcopy(target.model)):
        assert torch.equal(model(case.inputs), target.model(case.inputs))


def test_it_works_with_one_logit_and_with_squared_errors() -> None:
    for case in (NAMED["mlp-bce-one-logit"], NAMED["mlp-mse-on-classes"]):
        target = spn(case)
        outputs = target.model(case.inputs)
        plain = case.loss.per_record(case.make_model()(case.inputs), case.labels)
        head = head_of(target)
        v = features_of(case, target) @ head.weight.T + head.bias
        secret = (1 - v * head.codes[case.labels]).relu().sum(dim=1)
        found = target.loss.per_record(outputs, case.labels)
        torch.testing.assert_close(found, plain + 0.3 * secret)
    assert target.loss.name == MSE.name


def test_a_glob_chooses_what_the_private_head_reads() -> None:
    case = NAMED["mlp-tanh"]
    target = spn(case, "spn:bits=8,alpha=0.3,layers=0")
    head = head_of(target)
    assert (head.weight.shape, head.codes.shape) == ((8, 4), (3, 8))
    v = case.inputs @ head.weight.T + head.bias
    plain = case.loss.per_record(case.make_model()(case.inputs), case.labels)
    secret = (1 - v * head.codes[case.labels]).relu().sum(dim=1)
    found = target.loss.per_record(target.model(case.inputs), case.labels)
    torch.testing.assert_close(found, plain + 0.3 * secret)
    with pytest.raises(NotApplicable, match="none that matches layers=conv"):
        spn(case, "spn:bits=8,layers=conv*")


def test_where_it_does_not_apply() -> None:
    with pytest.raises(NotApplicable, match="the model has none"):
        spn(NAMED["conv-autoencoder"])
    with pytest.raises(UsageError, match="margin"):
        parse_defense("spn:margin=0.5")
    with pytest.raises(UsageError, match="bits"):
        parse_defense("spn:0")
