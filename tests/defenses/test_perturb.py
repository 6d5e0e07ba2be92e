"""Adversarial perturbation: inside the ball, uphill, step by step."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from cases import CASES
from torch import Tensor

from gradaudit.audits.attack_inference.observation import prepared
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense, perturb
from gradaudit.defenses.perturb import GradientClassifier, Perturb
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import layers_of
from gradaudit.sharing.interceptor import Interceptor
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import share

ELEMENTS, CLASSES = 30, 3
DRAWS = torch.Generator()


@cache
def updates(count: int = 300, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Gaussian updates of scale 0.01 around a centre for each class."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, ELEMENTS, generator=torch.Generator().manual_seed(9)) * 0.003
    labels = torch.arange(count) % CLASSES
    return centres[labels] + 0.01 * torch.randn(count, ELEMENTS, generator=generator), labels


fit_once = cache(GradientClassifier.fit)


@cache
def fitted(spec: str = "perturb", towards: int | None = None) -> Perturb:
    defense = parse_defense(spec)
    assert isinstance(defense, Perturb)
    with pytest.MonkeyPatch.context() as patch:  # whatever is asked, the classifier is the same
        patch.setattr(GradientClassifier, "fit", fit_once)
        return defense.prepare(*updates(), CLASSES, 0, towards=towards)


def apply(defense: Perturb, rows: Tensor) -> Tensor:
    return defense.apply(rows, records=1, generator=DRAWS)


def classifier_of(defense: Perturb) -> GradientClassifier:
    assert defense.classifier is not None
    return defense.classifier


def losses_of(defense: Perturb, rows: Tensor, labels: Tensor) -> Tensor:
    return CrossEntropy().per_record(classifier_of(defense).logits(rows), labels)


@pytest.mark.slow
def test_the_classifier_learns_what_there_is_to_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = updates(600, seed=1)
    right = (classifier_of(fitted()).logits(rows).argmax(dim=1) == labels).double().mean()
    assert float(right) > 0.6
    monkeypatch.setattr(perturb, "_STEPS", 10)
    once, again = (GradientClassifier.fit(*updates(60), CLASSES, 3) for _ in range(2))
    assert torch.equal(once.logits(rows), again.logits(rows))


@pytest.mark.parametrize("bound", [0.0005, 0.005, 0.02])
def test_it_stays_in_the_ball_and_raises_the_loss(bound: float) -> None:
    rows, labels = updates(60, seed=2)
    before = rows.clone()
    defense = fitted(f"perturb:bound={bound},step={bound / 2}").protecting(labels)
    moved = apply(defense, rows)
    assert float((moved - rows).abs().max()) <= bound * (1 + 1e-4)
    losses = [losses_of(defense, r, labels) for r in (rows, moved)]
    assert float(losses[1].mean()) > float(losses[0].mean())
    assert bool((losses[1] > losses[0]).double().mean() > 0.9)
    assert torch.equal(rows, before)


def test_targeted_it_lowers_the_loss_of_the_target() -> None:
    rows, _ = updates(60, seed=2)
    defense = fitted(towards=2)
    moved = apply(defense, rows)
    aims = torch.full((60,), 2)
    losses = [losses_of(defense, r, aims) for r in (rows, moved)]
    assert bool((losses[1] < losses[0]).all())
    taken = (classifier_of(defense).logits(moved).argmax(dim=1) == 2).double().mean()
    assert float(taken) > float(
        (classifier_of(defense).logits(rows).argmax(1) == 2).double().mean()
    )


@pytest.mark.slow
def test_steps_follow_the_gradient_by_autograd() -> None:
    """PGD written out, with the gradient of the loss in the whole update."""
    rows, labels = updates(40, seed=3)
    rows = rows.double()
    features, known = updates()
    defense = Perturb(Perturb.Options(steps=4, bound=0.004, step=0.0015)).prepare(
        features.double(), known, CLASSES, 0
    )
    moved = rows.clone()
    for _ in range(4):
        point = moved.clone().requires_grad_()
        (slope,) = torch.autograd.grad(losses_of(defense, point, labels).sum(), point)
        moved = moved + 0.0015 * slope.sign()
        moved = torch.max(torch.min(moved, rows + 0.004), rows - 0.004)
    torch.testing.assert_close(apply(defense.protecting(labels), rows), moved)


def test_without_values_it_moves_away_from_the_classifiers_own_guess() -> None:
    rows, _ = updates(50, seed=4)
    defense = fitted()
    guesses = classifier_of(defense).logits(rows).argmax(dim=1)
    assert torch.equal(apply(defense, rows), apply(defense.protecting(guesses), rows))


def test_rows_do_not_depend_on_each_other() -> None:
    rows, _ = updates(20, seed=5)
    together = apply(fitted(), rows)
    apart = torch.cat([apply(fitted(), row[None]) for row in rows])
    torch.testing.assert_close(together, apart)


def test_a_certain_classifier_is_moved_against_all_the_same() -> None:
    """A float32 softmax of its logits has nothing left to differentiate."""
    rows, _ = updates(60, seed=2)
    sure = classifier_of(fitted())
    *first, second, last = sure.weights
    sure = replace(sure, weights=(*first, 100 * second, last))
    assert float(sure.logits(rows).float().softmax(dim=1).amax(dim=1).median()) == 1
    signs = sure.signs(rows, sure.logits(rows).argmax(dim=1))
    assert bool((signs != 0).all())


@pytest.mark.slow
def test_it_is_prepared_on_the_updates_of_shadow_batches() -> None:
    case = next(case for case in CASES if case.id == "mlp-tanh")
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(80) % 2
    inputs = torch.randn(80, 4, generator=generator, dtype=torch.float64)
    inputs[:, 0] += 3.0 * labels
    target, records = case.target(), Records(inputs, torch.zeros(80, dtype=torch.int64))
    values = np.arange(40) % 2
    draws = np.random.default_rng(0)
    batches = np.stack([draws.choice(np.flatnonzero(labels.numpy() == v), 4) for v in values])
    sharing = SharingProtocol(defenses=(parse_defense("perturb:bound=0.05,step=0.02"),))
    ready = prepared(sharing, target, records, batches, values)
    batch = torch.arange(0, 16, 2)
    plain = share(target, inputs[batch], records.labels[batch], SharingProtocol(), DRAWS)
    moved = share(target, inputs[batch], records.labels[batch], ready, DRAWS)
    changes = torch.cat([(moved[n] - plain[n]).flatten() for n in plain]).abs()
    assert 0.04 < float(changes.max()) <= 0.05 * (1 + 1e-4)
    (defense,) = ready.defenses
    assert isinstance(defense, Perturb)
    rows = [torch.cat([u[n].flatten() for n in plain])[None] for u in (plain, moved)]
    losses = [float(losses_of(defense, r, torch.tensor([0]))) for r in rows]
    assert losses[1] > losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("memory", [1 << 30, 1])
def test_clients_move_their_updates_away_from_what_is_true(memory: int) -> None:
    """Chunk by chunk as at once; of other clients' updates nothing is known."""
    case = next(case for case in CASES if case.id == "mlp-tanh")
    target, records = case.target(), Records(case.inputs, case.labels)
    batches = np.array([[0], [1], [2], [0], [1]])
    values = np.array([0, 1, 0, 1, -1])
    ready = prepared(
        SharingProtocol((parse_defense("perturb"),)), target, records, batches, values % 2
    )
    (defense,) = ready.defenses

    def seen(
        sharing: SharingProtocol, values: np.ndarray | None, others: np.ndarray | None
    ) -> Tensor:
        layers = layers_of(target.model, with_bias=True)
        interceptor = Interceptor(target, records, layers, sharing=sharing, memory=memory)
        layers = interceptor.features(batches, values=values, others=others)
        return torch.cat([features for _, features in layers], dim=1)

    def moved(rows: Tensor, known: np.ndarray) -> Tensor:
        return apply(defense.protecting(torch.from_numpy(known)), rows)

    plain, unknown = seen(SharingProtocol(), None, None), np.full(5, -1)
    torch.testing.assert_close(seen(ready, values, None), moved(plain, values))
    torch.testing.assert_close(seen(ready, None, None), moved(plain, unknown))
    assert not torch.equal(moved(plain, values), moved(plain, 1 - values % 2))
    others = np.array([[[2]], [[2]], [[0]], [[1]], [[0]]])
    beside = moved(plain[[2, 2, 0, 1, 0]], unknown)
    mixed = seen(replace(ready, others=1), values, others)
    torch.testing.assert_close(mixed, (moved(plain, values) + beside) / 2)


def test_unprepared_it_says_who_prepares_it() -> None:
    with pytest.raises(NotApplicable, match="inference attacks"):
        apply(Perturb(Perturb.Options()), torch.zeros(1, 2))


@pytest.mark.parametrize("spec", ["perturb:steps=0", "perturb:bound=0", "perturb:step=-1"])
def test_wrong_requests(spec: str) -> None:
    with pytest.raises(UsageError, match=r"steps|bound|step"):
        parse_defense(spec)
