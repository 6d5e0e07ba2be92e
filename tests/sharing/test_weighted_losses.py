"""Updates under losses that weigh records, Σ w g / Σ w, against plain autograd in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.errors import NotApplicable
from gradaudit.gradients.per_sample import per_sample_gradients
from gradaudit.models.custom_loss import CustomLoss
from gradaudit.models.losses import Loss
from gradaudit.models.target import Target, layers_of
from gradaudit.models.torch_losses import user_loss
from gradaudit.sharing.interceptor import Interceptor
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import share
from tests.gradients.batches import batch_gradient

WEIGHT = torch.tensor([0.1, 1.0, 4.0])
generator = torch.Generator().manual_seed(1)
INPUTS = torch.randn(9, 5, generator=generator, dtype=torch.float64)
LABELS = torch.tensor([1, 1, 0, 2, 2, 0, 1, 2, 0])
BATCHES = np.array([[0, 2, 3], [1, 4, 5], [2, 5, 8], [7, 0, 2]])
TIGHT = {"rtol": 1e-9, "atol": 1e-12}


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, WEIGHT.to(outputs))


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    pairs = outputs @ outputs.T
    return (pairs.logsumexp(1) - pairs.diagonal()).mean() + weighted(outputs, targets)


NATIVE = user_loss(nn.CrossEntropyLoss(weight=WEIGHT), "file.py:native")
LOSSES = {
    "native": (NATIVE, weighted),
    "smoothed": (
        user_loss(nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.2), "file.py:smoothed"),
        lambda o, t: F.cross_entropy(o, t, WEIGHT.to(o), label_smoothing=0.2),
    ),
    "undeclared": (CustomLoss(weighted, "file.py:weighted"), weighted),
    "contrastive": (CustomLoss(contrastive, "file.py:contrastive"), contrastive),
}
EVERY = pytest.mark.parametrize("name", LOSSES)


def target_of(loss: Loss) -> Target:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    return Target(model, loss)


def gradient(name: str, rows: np.ndarray) -> dict[str, Tensor]:
    """By autograd, of the loss as the user wrote it."""
    loss, function = LOSSES[name]
    model = target_of(loss).model
    torch.autograd.backward(function(model(INPUTS[rows]), LABELS[rows]))
    return {name: p.grad.flatten() for name, p in model.named_parameters()}


@EVERY
def test_a_batch_s_gradient(name: str) -> None:
    target, rows = target_of(LOSSES[name][0]), BATCHES[0]
    expected = gradient(name, rows)
    layers = layers_of(target.model)
    found = batch_gradient(target, INPUTS[rows], LABELS[rows], layers, dtype=torch.float64)
    for layer in layers:
        torch.testing.assert_close(found[layer.name], expected[layer.parameter_names[0]], **TIGHT)
    for algorithm in ("fedsgd", "fedavg"):
        sharing = SharingProtocol(algorithm=algorithm)
        shared = share(
            target, INPUTS[rows], LABELS[rows], sharing, torch.Generator(), dtype=torch.float64
        )
        for parameter, part in expected.items():
            torch.testing.assert_close(shared[parameter].flatten(), part, **TIGHT)


@EVERY
@pytest.mark.parametrize("memory", [1 << 30, 20_000])
@pytest.mark.parametrize("spec", [None, "sign", "dp:clip=0.1,sigma=0,per=release"])
def test_many_updates(name: str, spec: str | None, memory: int) -> None:
    target = target_of(LOSSES[name][0])
    layers = layers_of(target.model)
    chain = () if spec is None else (parse_defense(spec),)
    interceptor = Interceptor(
        target,
        Records(INPUTS, LABELS),
        layers,
        sharing=SharingProtocol(chain),
        dtype=torch.float64,
        memory=memory,
    )
    assert ("computed batch by batch" in interceptor.note) == (
        name in ("undeclared", "contrastive")
    )
    for layer, features in interceptor.features(BATCHES):
        for row, batch in zip(features, BATCHES, strict=True):
            whole = gradient(name, batch)
            expected = whole[layer.parameter_names[0]]
            if spec == "sign":
                expected = expected.sign()
            elif spec is not None:
                norm = torch.cat(list(whole.values())).norm()
                expected = expected * min(1.0, 0.1 / float(norm))
            torch.testing.assert_close(row, expected, **TIGHT)


def test_each_client_weighs_its_own_records() -> None:
    target = target_of(NATIVE)
    layers = layers_of(target.model)
    interceptor = Interceptor(
        target,
        Records(INPUTS, LABELS),
        layers,
        sharing=SharingProtocol(others=1),
        dtype=torch.float64,
    )
    only = np.array([6])
    for layer, features in interceptor.features(BATCHES, others=only):
        name = layer.parameter_names[0]
        other = gradient("native", np.array([6, 6, 6]))[name]
        for row, batch in zip(features, BATCHES, strict=True):
            torch.testing.assert_close(row, (gradient("native", batch)[name] + other) / 2, **TIGHT)


def test_a_weight_of_zero_leaves_a_record_out() -> None:
    loss = user_loss(nn.CrossEntropyLoss(ignore_index=1), "file.py:ignoring")
    target = target_of(loss)
    layers = layers_of(target.model)
    interceptor = Interceptor(target, Records(INPUTS, LABELS), layers, dtype=torch.float64)
    both, alone = (
        {layer.name: rows for layer, rows in interceptor.features(np.array(batch))}
        for batch in ([[0, 2]], [[2]])
    )
    for layer in layers:
        torch.testing.assert_close(both[layer.name], alone[layer.name], **TIGHT)


def test_records_of_a_coupling_loss_have_no_gradients_and_weighed_ones_are_not_clipped() -> None:
    target = target_of(LOSSES["undeclared"][0])
    with pytest.raises(NotApplicable, match=r"no gradients of their own: --loss file.py:weighted"):
        per_sample_gradients(target, INPUTS, LABELS, layers_of(target.model))
    clipping = SharingProtocol((parse_defense("dp:clip=1,sigma=0.1"),))
    with pytest.raises(NotApplicable, match="weighs them; use per=release"):
        share(replace(target, loss=NATIVE), INPUTS, LABELS, clipping, torch.Generator())
    even = user_loss(nn.CrossEntropyLoss(), "file.py:even")
    share(replace(target, loss=even), INPUTS, LABELS, clipping, torch.Generator())
