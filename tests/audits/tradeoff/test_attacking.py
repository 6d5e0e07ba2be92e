"""Three games from one reconstruction, and the size of the perturbation."""

import numpy as np
import pytest
import torch
from torch import nn

from gradaudit.attacks.reconstruction import load_method
from gradaudit.audits.tradeoff.attacking import (
    Attack,
    AttackScores,
    attacked,
    has_secret,
    perturbation_ratio,
)
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.models.losses import CrossEntropy, MeanSquaredError
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.subject import defended_target
from tests.attacks.reconstruction.scenes import mlp, records

TABLE = records(6, labels=[0, 1, 2])
BATCHES = [TABLE.take(np.array([i])) for i in range(3)]


def outcome(
    *specs: str, insider: bool = False, iterations: int = 10, method: str = ""
) -> AttackScores:
    chain = tuple(map(parse_defense, specs))
    target = defended_target(Target(mlp(), CrossEntropy()), chain, 0)
    how = load_method(method or f"dlg:iterations={iterations}", {}, 1)
    attack = Attack(how, 3, target.layers, insider)
    return attacked(target, SharingProtocol(chain), BATCHES, attack, 0, Silent())


def test_plain_updates_give_everything_away() -> None:
    found = outcome(iterations=12)
    assert found.reconstruct.max() < 0.05
    assert found.membership is not None
    assert found.membership.tolist() == [0] * 3
    assert found.tracing.tolist() == [0] * 3
    assert np.isinf(found.ratios).all()
    assert found.diverged == 0


def test_labels_go_with_the_records_they_were_rebuilt_with() -> None:
    """A batch of two comes in either order; its list of labels is right in both."""
    target, batch = Target(mlp(), CrossEntropy()), TABLE.take(np.array([0, 1]))
    attack = Attack(load_method("dlg:iterations=60", {}, 4), 1, target.layers)
    found = attacked(target, SharingProtocol(), [batch], attack, 0, Silent())
    assert found.paired is not None
    assert found.reconstruct.max() < 0.05
    assert found.paired.tolist() == [0]
    assert found.named[0] is not None
    assert sorted(found.named[0].tolist()) == sorted(batch.labels.tolist())
    noisy = outcome("dp:clip=1e6,sigma=100,per=release", iterations=2)
    assert noisy.paired is not None
    assert noisy.membership is not None
    assert (noisy.paired >= noisy.membership).all()


def test_noise_keeps_everything() -> None:
    found = outcome("dp:clip=1e6,sigma=100,per=release", iterations=2)
    assert found.reconstruct.mean() > 0.3
    assert (found.reconstruct <= 1).all()
    assert (found.relative_error >= found.reconstruct).all()
    assert (found.ratios < 0.1).all()


def test_whoever_knows_the_private_head_rebuilds_what_it_hides() -> None:
    spec = "spn:bits=16,alpha=1"
    outsider, insider = outcome(spec, iterations=12), outcome(spec, insider=True, iterations=12)
    assert insider.reconstruct.mean() < outsider.reconstruct.mean() / 3
    assert insider.knowledge["private_part"] == "known"
    assert "private_part" not in outsider.knowledge
    assert np.isfinite(outsider.ratios).all()
    assert np.array_equal(insider.ratios, outsider.ratios)


def test_only_spn_has_a_secret() -> None:
    plain = Target(mlp(), CrossEntropy())
    assert not has_secret(plain)
    assert has_secret(defended_target(plain, [parse_defense("spn:bits=4")], 0))


def test_a_method_that_names_no_labels_has_no_membership() -> None:
    found = outcome(method="closed-form")
    assert found.membership is None
    assert found.paired is None
    assert found.reconstruct.max() < 1e-6


def test_the_ratio_is_of_biases_alone() -> None:
    """Against the autograd gradient of the loss."""
    target, batch = Target(mlp(), CrossEntropy()), TABLE.take(np.array([2]))
    loss = nn.functional.cross_entropy(target.model(batch.inputs), batch.labels)
    gradient = dict(
        zip(
            dict(target.model.named_parameters()),
            torch.autograd.grad(loss, list(target.model.parameters())),
            strict=True,
        )
    )
    shared = {name: g + 0.1 for name, g in gradient.items()}
    biases = torch.cat([gradient["0.bias"], gradient["2.bias"]])
    wanted = float(biases.norm() / (0.1 * len(biases) ** 0.5))
    found = perturbation_ratio(target, SharingProtocol(), batch, shared, torch.Generator())
    assert found == pytest.approx(wanted)
    weights = {name: g for name, g in shared.items() if "weight" in name}
    whole = torch.cat([gradient[name].flatten() for name in weights])
    found = perturbation_ratio(target, SharingProtocol(), batch, weights, torch.Generator())
    assert found == pytest.approx(float(whole.norm() / (0.1 * len(whole) ** 0.5)))


def test_clipping_alone_is_no_perturbation() -> None:
    clipped = outcome("dp:clip=0.01,sigma=0,per=record", iterations=1)
    assert np.isinf(clipped.ratios).all()
    noisy = outcome("dp:clip=0.01,sigma=0.001,per=release", iterations=1)
    assert (noisy.ratios < 10).all()  # B is at most 0.01, and 20 biases of noise some 0.0045


def test_real_targets_have_no_labels_to_recover() -> None:
    data = Records(torch.rand(1, 6, dtype=torch.float64), torch.rand(1, 4, dtype=torch.float64))
    target = Target(mlp(), MeanSquaredError())
    attack = Attack(load_method("dlg:iterations=1", {}, 1), 2, target.layers)
    found = attacked(target, SharingProtocol(), [data], attack, 0, Silent())
    assert found.membership is None
