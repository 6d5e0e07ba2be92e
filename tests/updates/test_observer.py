"""Features of many batches against plain autograd, batch by batch, in float64."""

from collections.abc import Callable

import numpy as np
import plain_updates as plain
import pytest
import torch
from cases import CASES, Case

from gradaudit.defenses import parse_defense
from gradaudit.loading.records import Records
from gradaudit.target import Layer, layers_of
from gradaudit.updates.observer import Observer
from gradaudit.updates.sharing import Sharing

EXACT = {"rtol": 1e-8, "atol": 1e-11}
BATCHES = np.array([[0, 1], [1, 2], [2, 2], [0, 2], [1, 0]])
CHOSEN = [case for case in CASES if case.id in ("mlp-tanh", "conv-strided", "layer-norm")]


def records_of(case: Case) -> Records:
    return Records(case.inputs, case.labels)


def observer(case: Case, *specs: str, bias: bool = False, memory: int = 1 << 30, **options):
    sharing = Sharing(tuple(map(parse_defense, specs)), **options.pop("sharing", {}))
    target = case.target()
    layers = layers_of(target.model, with_bias=bias)
    return Observer(
        target,
        records_of(case),
        layers,
        sharing=sharing,
        dtype=torch.float64,
        memory=memory,
        **options,
    )


def expected(
    case: Case,
    layers: tuple[Layer, ...],
    batches: np.ndarray,
    make: Callable[[list[plain.Update]], plain.Update],
) -> dict[str, np.ndarray]:
    """Whole updates by layer, from the gradients of each batch's records."""
    model = case.make_model()
    each = [
        plain.gradient(model, case.loss, case.inputs[i : i + 1], case.labels[i : i + 1])
        for i in range(len(case.inputs))
    ]
    updates = [make([each[i] for i in batch]) for batch in batches]
    return {
        layer.name: np.stack([plain.of_layer(update, layer) for update in updates])
        for layer in layers
    }


WAYS: dict[tuple[str, ...], Callable[[list[plain.Update]], plain.Update]] = {
    (): plain.mean,
    ("dp:clip=0.3,sigma=0,per=record",): lambda each: plain.mean(
        [plain.clip(one, 0.3) for one in each]
    ),
    ("dp:clip=0.3,sigma=0,per=release",): lambda each: plain.clip(plain.mean(each), 0.3),
    ("prune:0.7",): lambda each: plain.prune(plain.mean(each), 0.7),
    ("selective:0.2",): lambda each: plain.selective(plain.mean(each), 0.2),
    ("selective:0.4", "dp:clip=0.2,sigma=0,per=release"): lambda each: plain.clip(
        plain.selective(plain.mean(each), 0.4), 0.2
    ),
    ("dp:clip=0.3,sigma=0", "prune:0.5"): lambda each: plain.prune(
        plain.mean([plain.clip(one, 0.3) for one in each]), 0.5
    ),
    ("sign",): lambda each: {n: np.sign(part) for n, part in plain.mean(each).items()},
}


@pytest.mark.parametrize("case", CHOSEN, ids=str)
@pytest.mark.parametrize("specs", WAYS, ids=" ".join)
@pytest.mark.parametrize("bias", [False, True], ids=["weights", "bias"])
def test_equal_plain_updates(case: Case, specs: tuple[str, ...], bias: bool) -> None:
    found = observer(case, *specs, bias=bias)
    wanted = expected(case, found.layers, BATCHES, WAYS[specs])
    for layer, features in found.features(BATCHES):
        np.testing.assert_allclose(features, wanted[layer.name], **EXACT)


def principal(rows: np.ndarray, fit: np.ndarray, count: int) -> np.ndarray:
    """Centred rows in the fit's principal axes, by a thin SVD; up to signs."""
    _, values, axes = np.linalg.svd(fit - fit.mean(axis=0), full_matrices=False)
    kept = min(count, int((values > 1e-6 * values[0]).sum()))
    return (rows - fit.mean(axis=0)) @ axes[:kept].T


@pytest.mark.parametrize("case", CHOSEN, ids=str)
@pytest.mark.parametrize("memory", [1 << 30, 1], ids=["roomy", "tight"])
def test_principal_components_are_those_of_a_thin_svd(case: Case, memory: int) -> None:
    found = observer(case, reduce="pca:5", memory=memory)
    wanted = expected(case, found.layers, BATCHES, plain.mean)
    single = expected(case, found.layers, np.arange(3)[:, None], plain.mean)
    for layer, features in found.features(BATCHES, fit=np.arange(3)):
        correct = principal(wanted[layer.name], single[layer.name], 5)
        assert features.shape == correct.shape
        signs = np.sign((features.numpy() * correct).sum(axis=0))
        np.testing.assert_allclose(features, correct * signs, rtol=1e-6, atol=1e-8)
