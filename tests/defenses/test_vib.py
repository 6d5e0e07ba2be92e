"""The variational bottleneck: divergence, noise, gradients."""

from dataclasses import replace

import pytest
import torch
from cases import CASES
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

from gradaudit.defenses import parse_defense
from gradaudit.defenses.attachment import attachments
from gradaudit.defenses.vib import Bottleneck, kl_from_standard_normal
from gradaudit.errors import AuditError, NotApplicable, UsageError
from gradaudit.gradients.per_sample import per_sample_gradients
from gradaudit.models.target import Target, layers_of
from gradaudit.subject import defended_target, seen_by_outsiders
from tests.gradients.batches import batch_gradient

NAMED = {str(case): case for case in CASES}
CASE = NAMED["conv-strided"]


def vib(spec: str = "vib:beta=0.2", seed: int = 0) -> Target:
    return defended_target(CASE.target(), [parse_defense(spec)], seed)


def part_of(target: Target) -> Bottleneck:
    (part,) = attachments(target.model)
    assert isinstance(part, Bottleneck)
    return part


def encoded(target: Target) -> tuple[Tensor, Tensor]:
    """The bottleneck's mean and log variance for the case's records."""
    features = CASE.make_model()[:-1](CASE.inputs)  # type: ignore[index]
    part = part_of(target)
    return (features @ part.weight.T + part.bias).chunk(2, dim=1)


def test_the_divergence_is_the_closed_form() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, log_variance = torch.randn(2, 7, 5, generator=generator, dtype=torch.float64)
    wanted = kl_divergence(
        Independent(Normal(mean, (log_variance / 2).exp()), 1),
        Independent(Normal(torch.zeros_like(mean), torch.ones_like(mean)), 1),
    )
    torch.testing.assert_close(kl_from_standard_normal(mean, log_variance), wanted)


def test_the_loss_is_the_tasks_plus_beta_times_the_divergence() -> None:
    target = vib()
    mean, log_variance = encoded(target)
    outputs = CASE.make_model()[-1](mean)  # type: ignore[index]
    divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(dim=1)
    wanted = torch.nn.functional.cross_entropy(outputs, CASE.labels, reduction="none")
    found = target.model(CASE.inputs)
    torch.testing.assert_close(target.loss.predictions(found), outputs)
    torch.testing.assert_close(
        target.loss.per_record(found, CASE.labels), wanted + 0.2 * divergence
    )


@pytest.mark.slow
def test_the_representation_is_drawn_in_training_and_its_mean_in_evaluation() -> None:
    target = vib()
    mean, log_variance = encoded(target)
    part = part_of(target).train()
    features = CASE.make_model()[:-1](CASE.inputs)  # type: ignore[index]
    drawn = torch.stack([part(features)[0] for _ in range(4000)]).detach()
    deviation = (log_variance / 2).exp()
    assert bool(((drawn.mean(0) - mean).abs() < 5 * deviation / 4000**0.5).all())
    torch.testing.assert_close(drawn.std(0), deviation.detach(), rtol=0.07, atol=0)
    assert torch.equal(part.eval()(features)[0], part(features)[0])


def test_records_draw_apart_from_each_other_in_per_sample_gradients() -> None:
    target = replace(vib(), mode="train")
    layers = layers_of(target.model)
    same = CASE.inputs[:1].expand(4, *CASE.inputs.shape[1:]).contiguous()
    labels = CASE.labels[:1].expand(4).contiguous()
    (chunk,) = per_sample_gradients(target, same, labels, layers, dtype=torch.float64)
    rows = chunk["5"] if "5" in chunk else chunk[layers[-1].name]
    assert not torch.allclose(rows[0], rows[1])


def test_the_bottleneck_is_a_layer_like_others() -> None:
    target = vib()
    names = [layer.name for layer in layers_of(target.model)]
    last = [layer.name for layer in layers_of(CASE.make_model())][-1]
    assert names[-1] == f"{last}.vib"
    found = batch_gradient(target, CASE.inputs, CASE.labels, layers_of(target.model))
    assert float(found[f"{last}.vib"].norm()) > 0


def test_an_outsider_who_knows_no_term_sees_the_tasks_loss() -> None:
    target = vib()
    outputs = target.model(CASE.inputs)
    seen = seen_by_outsiders(target).loss.per_record(outputs, CASE.labels)
    torch.testing.assert_close(
        seen, torch.nn.functional.cross_entropy(outputs[:, :-1], CASE.labels, reduction="none")
    )


def test_it_goes_with_the_secret_network() -> None:
    chain = [parse_defense("vib:0.2"), parse_defense("spn:bits=4,alpha=0.5")]
    target = defended_target(CASE.target(), chain, 0)
    found = target.loss.per_record(target.model(CASE.inputs), CASE.labels)
    (head,) = [part for part in attachments(target.model) if part.extra > 1]
    alone = vib()
    mean, _ = encoded(alone)
    secret = head(mean)[1].gather(1, CASE.labels[:, None])[:, 0]
    own = alone.loss.per_record(alone.model(CASE.inputs), CASE.labels)
    torch.testing.assert_close(found, own + 0.5 * secret)


def test_where_it_does_not_apply() -> None:
    with pytest.raises(NotApplicable, match="vib"):
        defended_target(NAMED["conv-autoencoder"].target(), [parse_defense("vib")], 0)
    with pytest.raises(UsageError, match="beta"):
        parse_defense("vib:beta=-1")
    positions = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Flatten()).double()
    target = defended_target(replace(CASE.target(), model=positions), [parse_defense("vib")], 0)
    with pytest.raises(AuditError, match="one vector a record"):
        target.model(torch.zeros(2, 3, 4, dtype=torch.float64))
