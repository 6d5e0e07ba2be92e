"""Features of many batches against plain autograd, batch by batch, in float64."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import plain_updates as plain
import pytest
import torch
from cases import CASES, Case
from pydantic import ValidationError
from scipy.stats import kstest

from gradaudit.audits.sharing_options import SharingOptions
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.models.target import Layer, Target, layers_of
from gradaudit.sharing.interceptor import Interceptor
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.reduction import Reduction, parse_reduction, reduction_for
from gradaudit.sharing.share import Clients, share
from gradaudit.subject import defended_target

EXACT = {"rtol": 1e-8, "atol": 1e-11}
BATCHES = np.array([[0, 1], [1, 2], [2, 2], [0, 2], [1, 0]])
CHOSEN = [case for case in CASES if case.id in ("mlp-tanh", "conv-strided", "layer-norm")]


def records_of(case: Case) -> Records:
    return Records(case.inputs, case.labels)


def interceptor(case: Case, *specs: str, bias: bool = False, memory: int = 1 << 30, **options):
    sharing = SharingProtocol(tuple(map(parse_defense, specs)), **options.pop("sharing", {}))
    target = case.target()
    layers = layers_of(target.model, with_bias=bias)
    return Interceptor(
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
def test_equal_plain_updates(case: Case, specs: tuple[str, ...]) -> None:
    """With biases in one model, weights alone in the others."""
    found = interceptor(case, *specs, bias=case is CHOSEN[0])
    wanted = expected(case, found.layers, BATCHES, WAYS[specs])
    for layer, features in found.features(BATCHES):
        np.testing.assert_allclose(features, wanted[layer.name], **EXACT)


def principal(rows: np.ndarray, fit: np.ndarray, count: int) -> np.ndarray:
    """Centred rows in the fit's principal axes, by a thin SVD; up to signs."""
    _, values, axes = np.linalg.svd(fit - fit.mean(axis=0), full_matrices=False)
    kept = min(count, int((values > 1e-6 * values[0]).sum()))
    return (rows - fit.mean(axis=0)) @ axes[:kept].T


@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_principal_components_are_those_of_a_thin_svd(case: Case) -> None:
    found = interceptor(case, reduce="pca:5")
    wanted = expected(case, found.layers, BATCHES, plain.mean)
    single = expected(case, found.layers, np.arange(3)[:, None], plain.mean)
    for layer, features in found.features(BATCHES, fit=np.arange(3)):
        correct = principal(wanted[layer.name], single[layer.name], 5)
        assert features.shape == correct.shape
        signs = np.sign((features.numpy() * correct).sum(axis=0))
        np.testing.assert_allclose(features, correct * signs, rtol=1e-6, atol=1e-8)


def test_components_that_do_not_fit_are_refused_with_the_remedy() -> None:
    found = interceptor(CHOSEN[0], reduce="pca:5", memory=1)
    with pytest.raises(NotApplicable, match=r"16 elements take .* use --reduce subset:10000"):
        list(found.features(BATCHES, fit=np.arange(3)))


BY_ID = {case.id: case for case in CASES}
MLP = BY_ID["mlp-tanh"]
PAIRS = np.array([[0, 1], [1, 1], [0, 0]])


def named(found: Interceptor, batches: np.ndarray = BATCHES, **options) -> dict[str, np.ndarray]:
    return {layer.name: rows.numpy() for layer, rows in found.features(batches, **options)}


def whole(found: Interceptor, batches: np.ndarray, **options) -> torch.Tensor:
    """All layers' features side by side."""
    return torch.cat([features for _, features in found.features(batches, **options)], dim=1)


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, rows in expected.items():
        np.testing.assert_allclose(found[name], rows, err_msg=name, **EXACT)


@pytest.mark.parametrize("name", ["text", "lstm", "attention", "own-parameters", "tied-weights"])
def test_any_model_s_updates_are_means_of_records(name: str) -> None:
    case = BY_ID[name]
    found = interceptor(case)
    assert found.note == ""
    assert_equal(named(found), expected(case, found.layers, BATCHES, plain.mean))


def test_max_pooling_takes_consecutive_elements() -> None:
    found = interceptor(MLP, reduce="maxpool:3")
    wanted = expected(MLP, found.layers, BATCHES, plain.mean)
    for layer, features in found.features(BATCHES):
        rows = wanted[layer.name]
        starts = range(0, rows.shape[1], 3)
        correct = np.stack([rows[:, start : start + 3].max(axis=1) for start in starts], axis=1)
        np.testing.assert_allclose(features, correct, **EXACT)


@pytest.mark.parametrize("options", [{"reduce": "subset:5"}, {"sharing": {"elements": 5}}], ids=str)
@pytest.mark.parametrize("specs", [(), ("prune:0.5",)], ids=str)
def test_some_elements_are_the_same_ones_in_every_call(options: dict, specs: tuple) -> None:
    found = interceptor(MLP, *specs, **{**options})
    wanted = expected(MLP, found.layers, BATCHES, WAYS.get(specs, lambda e: halved(e)))
    columns = {}
    for name, rows in named(found).items():
        assert rows.shape == (5, 5)
        close = np.isclose(rows[:, :, None], wanted[name][:, None, :], **EXACT).all(axis=0)
        assert close.any(axis=1).all()
        columns[name] = rows
    assert_equal(named(interceptor(MLP, *specs, **{**options}), seed=5), columns)
    other = named(interceptor(MLP, *specs, seed=1, **{**options}))
    assert any(not np.allclose(other[name], rows) for name, rows in columns.items())


def halved(each: list[plain.Update]) -> plain.Update:
    return plain.prune(plain.mean(each), 0.5)


def test_a_fraction_of_each_layer_is_seen() -> None:
    found = interceptor(MLP, sharing={"fraction": 0.25})
    assert {n: rows.shape[1] for n, rows in named(found).items()} == {"0": 4, "2": 3}


@pytest.mark.parametrize("specs", [(), ("prune:0.5",)], ids=str)
def test_the_target_is_averaged_with_other_clients(specs: tuple[str, ...]) -> None:
    found = interceptor(MLP, *specs, sharing={"others": 3})
    make = halved if specs else plain.mean
    own = expected(MLP, found.layers, PAIRS, make)
    other = expected(MLP, found.layers, np.array([[2, 2]]), make)  # the one record that is left
    mixed = {name: (own[name] + 3 * other[name]) / 4 for name in own}
    assert_equal(named(found, PAIRS), mixed)
    assert_equal(named(found, PAIRS, others=np.array([2])), mixed)
    with pytest.raises(UsageError, match="--others 3: every record is in a target's batch"):
        named(found, BATCHES)


MANY = np.tile(PAIRS, (200, 1))
NOISY = [
    ("dp:clip=9,sigma=0.3", "none", 0.3 / 2),
    ("dp:clip=9,sigma=0.3,per=record", "pca:2", 0.3 / np.sqrt(2)),
    ("dp:clip=9,sigma=0.3,per=release", "none", 0.3),
    ("dp:clip=9,sigma=0.3,per=release", "pca:2", 0.3),
    ("dp:clip=9,sigma=0.3,per=mean", "subset:4", 0.3),
    ("selective:1 dp:clip=9,sigma=0.3,per=release", "none", 0.3),
    ("selective:1 dp:clip=9,sigma=0.3,per=release", "subset:4", 0.3),
]


@pytest.mark.parametrize(
    ("specs", "reduce", "scale", "others"),
    [*((*noisy, 3 * (place % 2)) for place, noisy in enumerate(NOISY)), (*NOISY[0], 3)],
)
def test_noise_on_features_has_its_law(specs: str, reduce: str, scale: float, others: int) -> None:
    options = {"reduce": reduce, "sharing": {"others": others}}
    fit = np.arange(3)
    noisy = named(interceptor(MLP, *specs.split(), **options), MANY, fit=fit)
    clean = named(interceptor(MLP, "dp:clip=9,sigma=0", **options), MANY, fit=fit)
    if "pca" in reduce and "release" in specs:  # fitted on other rows: batches
        clean = {name: rows.reshape(200, 3, -1).mean(0)[None] for name, rows in noisy.items()}
        clean = {name: np.tile(rows[0], (200, 1)) for name, rows in clean.items()}
    residuals = np.concatenate([(noisy[n] - clean[n]).ravel() for n in clean])
    assert kstest(residuals / (scale / np.sqrt(1 + others)), "norm").pvalue > 1e-3


def test_laplace_noise_is_added_before_the_components() -> None:
    noisy = interceptor(MLP, "dp:clip=9,sigma=0.3,noise=laplace,per=sum", reduce="pca:2")
    assert not any(map(noisy.linear, noisy.layers))
    assert interceptor(MLP, "dp:clip=9,sigma=0.3,noise=laplace").linear(noisy.layers[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "specs",
    [
        "dp:clip=0.3,sigma=0.1,per=record",
        "prune:0.5",
        "selective:0.4 dp:clip=1,sigma=1,per=release",
    ],
)
@pytest.mark.parametrize("reduce", ["none", "maxpool:3"])
def test_the_memory_changes_nothing(specs: str, reduce: str) -> None:
    options = {"reduce": reduce, "sharing": {"others": 1}}
    roomy = interceptor(MLP, *specs.split(), **options)
    tight = interceptor(MLP, *specs.split(), memory=1, **options)
    assert_equal(named(tight, PAIRS, seed=3), named(roomy, PAIRS, seed=3))
    again = whole(roomy, PAIRS, seed=3)
    assert torch.equal(again, whole(roomy, PAIRS, seed=3))


def test_layers_that_fit_the_memory_one_by_one_are_made_from_records_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Together they do not fit."""
    sized = interceptor(MLP, reduce="maxpool:3")
    engine = sized._context.engine
    assert engine is not None
    records = len(np.unique(BATCHES))
    sizes = [engine.bytes_of(each) * records for each in sized._context.parameters.values()]
    memory = max(sizes) + sum(sizes)
    assert max(sizes) <= memory // 2 < sum(sizes)
    tight = interceptor(MLP, reduce="maxpool:3", memory=memory)
    monkeypatch.setattr(Clients, "update", None)
    assert_equal(named(tight), named(sized))


def test_calls_with_one_fit_share_their_components() -> None:
    found = interceptor(MLP, reduce="pca:2")
    fit = np.arange(3)
    together = whole(found, BATCHES, fit=fit)
    apart = torch.cat([whole(found, BATCHES[:2], fit=fit), whole(found, BATCHES[2:], fit=fit)])
    torch.testing.assert_close(apart, together)
    assert whole(found, BATCHES[:1], fit=fit[:2]).shape == (1, 2)  # two rows have one axis


@pytest.mark.parametrize("specs", [(), ("prune:0.5",)], ids=str)
def test_coupled_records_are_computed_batch_by_batch(specs: tuple[str, ...]) -> None:
    case = BY_ID["batch-norm"]
    target = Target(case.make_model(), case.loss, mode="train")
    sharing = SharingProtocol(tuple(map(parse_defense, specs)))
    found = Interceptor(
        target, records_of(case), target.layers, sharing=sharing, dtype=torch.float64
    )
    assert found.note.startswith("updates are computed batch by batch: ")
    model = case.make_model().train()
    updates = [
        plain.gradient(model, case.loss, case.inputs[batch], case.labels[batch])
        for batch in torch.from_numpy(BATCHES)
    ]
    done = [plain.prune(update, 0.5) for update in updates] if specs else updates
    wanted = {
        layer.name: np.stack([plain.of_layer(update, layer) for update in done])
        for layer in found.layers
    }
    assert_equal(named(found), wanted)
    clipping = SharingProtocol((parse_defense("dp:clip=1,sigma=1"),))
    with pytest.raises(NotApplicable, match="use per=release or --mode eval"):
        Interceptor(target, records_of(case), target.layers, sharing=clipping)


def test_local_training_is_that_of_one_client() -> None:
    sharing = {"algorithm": "fedavg", "epochs": 3, "rate": 0.5}
    found = interceptor(MLP, sharing=sharing)
    assert found.note == "local training is run client by client"
    target, options = MLP.target(), SharingProtocol(**sharing)
    for index, batch in enumerate(torch.from_numpy(BATCHES)):
        alone = share(
            target,
            MLP.inputs[batch],
            MLP.labels[batch],
            options,
            torch.Generator(),
            dtype=torch.float64,
        )
        for name, rows in named(found).items():
            np.testing.assert_allclose(rows[index], alone[f"{name}.weight"].flatten(), **EXACT)


def test_a_hidden_layer_cannot_be_looked_at() -> None:
    with pytest.raises(UsageError, match="layer 2 is hidden, so nothing of it is shared"):
        interceptor(MLP, sharing={"hidden": ("2",)})


def test_large_layers_are_reduced_by_default() -> None:
    assert reduction_for(10_000, None) == Reduction()
    assert reduction_for(10_001, None) == Reduction("subset", 10_000)
    assert reduction_for(10_001, None, 1 << 28) == Reduction("subset", 2_000)
    assert reduction_for(10_000, None, 1 << 28) == Reduction()
    assert reduction_for(10_001, Reduction("maxpool", 3)) == Reduction("maxpool", 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pca:0", "write a positive whole number, as pca:50"),
        ("none:3", "none takes no number"),
        ("maxpol:3", "no such reduction (did you mean 'maxpool'?); there are: none, maxpool:3"),
    ],
)
def test_a_wrong_reduction_is_told_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_reduction(text)
    assert str(caught.value).startswith(f"--reduce {text}: {message}")
    with pytest.raises(ValidationError, match=re.escape(message)):
        SharingOptions(reduce=text)


def test_options_make_a_sharing() -> None:
    options = SharingOptions(others=2, elements=7, algorithm="fedavg", epochs=3, rate=0.2)
    found = options.sharing((parse_defense("sign"),), ("fc",))
    assert (found.others, found.elements, found.epochs, found.rate) == (2, 7, 3, 0.2)
    assert (found.algorithm, str(found.chain), found.hidden) == ("fedavg", "sign", ("fc",))


def test_a_defense_that_sleeps_in_eval_mode_is_told() -> None:
    case = CHOSEN[0]
    watched = interceptor(case, "dropout:0.5", "sign")
    assert watched.note == "dropout:0.5 does nothing in eval mode; use --mode train"
    assert interceptor(case, "sign").note == ""
    acting = SharingProtocol((parse_defense("dropout:0.5"),))
    target = defended_target(replace(case.target(), mode="train"), acting.defenses, 0)
    layers = layers_of(target.model)
    note = Interceptor(target, records_of(case), layers, sharing=acting).note
    assert note == "updates are computed batch by batch: the model draws random numbers"
