"""Texts that make an update in several rounds: spans that are joined, and when they are not."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from audits.attack_text.sentences import LENGTH, adapted, texts, transformer
from subjects import rows_by, subject_of
from torch import nn

from gradaudit.audits.attack_text import AttackText, TextOptions
from gradaudit.audits.attack_text.linear_maps import (
    MapsOfOneInput,
    Structure,
    adapters,
    predicted,
)
from gradaudit.audits.attack_text.recovery.recover import recover
from gradaudit.audits.attack_text.span import Span
from gradaudit.audits.attack_text.text_scores import scores_of
from gradaudit.audits.attack_text.text_threat import TextThreat, ids_of
from gradaudit.audits.attack_text.view import TextView
from gradaudit.defenses import parse_defense
from gradaudit.errors import UsageError
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.sharing.protocol import SharingProtocol

POOL = texts(100)
LOWER = "blocks.0.qkv.lower.weight"


def trained(model: nn.Module, count: int, *, first: int = 10) -> list[nn.Module]:
    """The model in so many rounds, of ten steps of training each."""
    moving = [p for p in model.parameters() if p.requires_grad]
    optimiser, draws = torch.optim.SGD(moving, lr=0.1), torch.Generator().manual_seed(0)
    loss, received = CrossEntropy(), list[nn.Module]()
    for step in range(first + 10 * (count - 1) + 1):
        if step >= first and (step - first) % 10 == 0:
            received.append(deepcopy(model).eval())
        rows = torch.randint(40, 100, (16,), generator=draws)
        optimiser.zero_grad()
        outputs = loss.taken(model(POOL.inputs[rows]))
        torch.autograd.backward(loss.of_batch(outputs, POOL.labels[rows]))
        optimiser.step()
    return received


def view_of(
    models: list[nn.Module], first: int = 0, count: int = 2, *, noise: float = 0.0, hide: str = ""
) -> TextView:
    spec = f"dp:clip=1000,sigma={noise},per=release"
    sharing = SharingProtocol(defenses=(parse_defense(spec),) if noise else ())
    threats = []
    for model in models:
        target = Target(model, CrossEntropy())
        layers = tuple(layer for layer in target.layers if layer.name != hide)
        threats.append(TextThreat(target, sharing, layers))
    threat = replace(threats[-1], earlier=tuple(threats[:-1]))
    batch = POOL.take(np.arange(first, first + count))
    return threat.view(batch, torch.Generator().manual_seed(first))


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_adapters_on_a_frozen_base_add_their_ranks_over_rounds(rounds: int) -> None:
    """What comes in is the same in every round: the rank is min(R r, tokens), and holds no more."""
    seen = view_of(trained(adapted(4), 4)[-rounds:])
    place = MapsOfOneInput(seen, (LOWER,), local=True)
    span = place.span
    assert span is not None
    tokens = 2 * (LENGTH - 1)
    assert span.rank == min(4 * rounds, tokens)
    came_in = place.came_in(POOL.inputs[:2])[:, :-1].flatten(0, 1).double()
    basis = torch.linalg.svd(came_in)[2][:tokens]
    outside = span.rows.double() - span.rows.double() @ basis.T @ basis
    assert float(outside.norm(dim=1).max()) < 1e-3
    if rounds == 4:  # more equations than tokens by more than the spare ones
        assert not span.whole
        energy = span.energy(came_in.float())
        assert float(energy.max()) < 1e-4


def test_more_rounds_name_more_of_the_tokens_behind_adapters() -> None:
    models, named, expected = trained(adapted(4), 3), [], []
    for count in (1, 3):
        shares = []
        for first in range(0, 20, 2):
            seen = view_of(models[-count:], first)
            answer = recover(seen, Structure.of(seen), first, Silent())
            truth = ids_of(POOL.take(np.arange(first, first + 2)))
            right, every = scores_of(answer.texts, answer.tokens, truth).tokens
            shares.append(right / every)
            low = adapters(Structure.of(seen))
            assert low is not None
            expected.append(predicted(seen, Structure.of(seen), low, POOL.inputs.flatten(), first))
        named.append(np.mean(shares))
    assert named[1] > named[0] + 0.15
    assert np.mean(expected[10:]) == pytest.approx(named[1], abs=0.12)


def test_rounds_that_bring_in_something_else_are_not_joined() -> None:
    """Behind trained norms what comes in moves between the rounds, and no noise hides it."""
    models = trained(transformer(), 3)
    alone, together = view_of(models[-1:]), view_of(models)
    for name in ("blocks.0.qkv.weight", "blocks.1.wide.weight"):
        one, other = (MapsOfOneInput(seen, (name,), local=False).span for seen in (alone, together))
        assert one is not None
        assert other is not None
        assert torch.equal(one.rows, other.rows)


def test_noise_that_hides_what_moved_joins_rounds() -> None:
    """Fresh noise in five rounds at one checkpoint: directions that were lost are found again."""
    models = [transformer()] * 5
    ranks, energies = [], []
    for count in (1, 5):
        place = MapsOfOneInput(view_of(models[:count], noise=1e-3), ("blocks.0.qkv.weight",), True)
        span = place.span
        assert span is not None
        ranks.append(span.rank)
        energies.append(float(span.energy(place.came_in(POOL.inputs[:2])[:, :-1]).mean()))
    assert ranks[0] < ranks[1] <= 2 * (LENGTH - 1)
    assert energies[1] < 0.8 * energies[0]


def test_a_span_leaves_noise_where_it_is_all_that_stands_behind_the_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(n, 5, generator=generator).double() for n in (120, 40))
    noise = torch.randn(120, 40, generator=generator).double()
    for scale, tokens, leaves in ((0.1, 5, True), (0.1, 4, False), (0.0, 5, True), (0.0, 4, False)):
        span = Span.of([left @ right.T + scale * noise], tokens)
        assert span is not None
        assert span.leaves_noise(tokens) == leaves


def test_the_audit_attacks_rounds_together_on_demand() -> None:
    models = trained(adapted(4), 3)
    whole = subject_of(Target(models[-1], CrossEntropy()), POOL)
    whole = replace(whole, targets=tuple(Target(model, CrossEntropy()) for model in models))
    options = {"batches": 4, "batch_size": 2, "decoys": 8, "joint_rounds": True}
    rows = AttackText(TextOptions(every_round=True, **options)).run(whole, Silent())
    found = {
        (row.metric, str(row.variant)): row for row in rows if row.metric == "tokens_recovered"
    }
    assert len(found) == 4
    together = found["tokens_recovered", "{}"]
    knowledge = together.details["knowledge"]
    assert isinstance(knowledge, dict)
    assert knowledge["rounds"] == 3
    assert together.number is not None
    assert together.number > max(
        row.number or 0 for (_, variant), row in found.items() if variant != "{}"
    )
    one = replace(whole, targets=whole.targets[:1])
    with pytest.raises(UsageError, match="--joint-rounds: needs several rounds"):
        rows_by(AttackText)(one, **options)
