"""What adversaries look at: every layer, the whole, and components of their own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from audits.attack_inference.people import people, subject

from gradaudit.audits.attack_inference.game import AttributeGame
from gradaudit.audits.attack_inference.observation import RoundObservation
from gradaudit.audits.attack_inference.split import Design, GameSplit
from gradaudit.defenses import parse_defense
from gradaudit.errors import UsageError
from gradaudit.games.splits import Batches
from gradaudit.sharing.context import Context, Stream
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.subject import defended_target
from tests.gradients.batches import batch_gradient

SETUP = Design(batch_size=4, shadow=120, batches=60, trials=30, private=100)


def observation(defense: str = "", reduce: str | None = None) -> tuple[RoundObservation, GameSplit]:
    records = people()
    audited = subject(records, "sex")
    sharing = SharingProtocol((parse_defense(defense),) if defense else ())
    split = AttributeGame("sex").split(records, SETUP, np.random.SeedSequence(1))
    return RoundObservation(audited.target, records, audited.layers, sharing, reduce=reduce), split


def test_features_are_the_batches_gradients() -> None:
    looked, split = observation()
    found = {scope: both for scope, *both in looked.features(split, adaptive=False)}
    assert list(found) == ["0", "2", None]
    for batch, row in ((split.own[3], 0), (split.observed.indices[3], 1)):
        rows = torch.from_numpy(batch)
        expected = batch_gradient(
            looked.target, looked.records.inputs[rows], looked.records.labels[rows], looked.layers
        )
        for layer, gradient in expected.items():
            np.testing.assert_allclose(found[layer][row][3], gradient, rtol=1e-4, atol=1e-6)
        whole = torch.cat(list(expected.values()))
        np.testing.assert_allclose(found[None][row][3], whole, rtol=1e-4, atol=1e-6)


def test_the_static_adversary_defends_nothing_and_the_adaptive_one_all() -> None:
    looked, split = observation("sign")
    static = {scope: both for scope, *both in looked.features(split, adaptive=False)}
    adaptive = {scope: both for scope, *both in looked.features(split, adaptive=True)}
    assert set(np.unique(adaptive[None][0])) <= {-1.0, 0.0, 1.0}
    assert set(np.unique(static[None][1])) <= {-1.0, 0.0, 1.0}
    assert len(np.unique(static[None][0])) > 100
    np.testing.assert_array_equal(static[None][1], adaptive[None][1])


def test_noise_is_fresh_in_every_round_and_for_every_batch() -> None:
    looked, split = observation("dp:clip=0.001,sigma=1,per=mean")
    first, again, other = (
        next(one.features(split, adaptive=True))[2]
        for one in (looked, looked, replace(looked, seed=5))
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.1
    own = next(looked.features(split, adaptive=True))[1]
    assert np.abs(np.corrcoef(first[:30].ravel(), own[:30].ravel())[0, 1]) < 0.1


def test_the_static_adversary_projects_on_components_of_his_own() -> None:
    """On what he computes himself and on what is released, they are the same ones."""
    plain, split = observation("dp:clip=1e9,sigma=0,per=mean", "none")
    reduced = replace(plain, reduce="pca:4")
    for (scope, own, released), (_, mine, theirs) in zip(
        plain.features(split, adaptive=False), reduced.features(split, adaptive=False), strict=True
    ):
        if scope is None:
            continue
        shadow = own[: len(split.shadow.labels)].astype(np.float64)
        centre = shadow.mean(axis=0)
        axes = np.linalg.svd(shadow - centre)[2][:4].T
        signs = np.sign(((own - centre) @ axes * mine).sum(axis=0))
        np.testing.assert_allclose((own - centre) @ axes * signs, mine, rtol=1e-2, atol=1e-3)
        np.testing.assert_allclose((released - centre) @ axes * signs, theirs, rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_the_adaptive_adversary_draws_a_private_part_of_his_own() -> None:
    """What he computes of a batch is not what the client releases of it."""
    records = people()
    audited = subject(records, "sex")
    spn = parse_defense("spn:bits=8,alpha=1")
    target = defended_target(audited.target, [spn], 0)
    before = {name: value.clone() for name, value in target.model.state_dict().items()}
    looked = RoundObservation(target, records, audited.layers, SharingProtocol((spn,)))
    split = AttributeGame("sex").split(records, SETUP, np.random.SeedSequence(1))
    same = replace(split, observed=Batches(split.own[:30], split.shadow.labels[:30]))
    first, again, other = (
        next(one.features(same, adaptive=True)) for one in (looked, looked, replace(looked, seed=5))
    )
    np.testing.assert_array_equal(first[1], again[1])
    assert np.abs(first[1][:30] - first[2]).max() > 1e-2
    assert np.abs(first[1] - other[1]).max() > 1e-2
    np.testing.assert_array_equal(first[2], other[2])
    static = next(looked.features(same, adaptive=False))
    assert np.abs(first[1] - static[1]).max() > 1e-2
    for name, value in target.model.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.slow
@pytest.mark.parametrize("reduce", [None, "pca:4"])
def test_other_clients_have_records_of_neither_side(reduce: str | None) -> None:
    """Where there are none the request is refused."""
    looked, split = observation("prune:0.5", reduce)
    mixed = replace(looked, sharing=replace(looked.sharing, others=2))
    drawn: list[set[int]] = []

    def client_rows(
        context: Context, clients: torch.Tensor, *rest: object, **named: object
    ) -> Stream:
        if clients.shape[1] == 3:
            drawn.append(set(clients[:, 1:].ravel().tolist()))
        return plain(context, clients, *rest, **named)  # type: ignore[arg-type]

    plain = Context.client_rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Context, "client_rows", client_rows)
        list(mixed.features(split, adaptive=False))
    theirs, owns = set(split.parts.test.tolist()), set(split.parts.shadow.tolist())
    assert any(each <= theirs for each in drawn)
    assert all(each <= theirs or each <= owns for each in drawn)
    none = replace(split.parts, test=np.zeros(0, dtype=np.int64))
    with pytest.raises(UsageError, match="--others 2: every record is the adversary's or is gues"):
        list(mixed.features(replace(split, parts=none), adaptive=False))


@pytest.mark.slow
def test_a_layer_too_large_for_the_memory_is_seen_in_part() -> None:
    looked, split = observation("dp:clip=1e9,sigma=0,per=mean", "pca:4")
    small = replace(looked, memory=64 * 5 * 20)
    same = replace(split, observed=Batches(split.own[:30], split.shadow.labels[:30]))
    for scope, own, released in small.features(same, adaptive=False):
        assert own.shape == (len(split.own), 8 if scope is None else 4)
        np.testing.assert_allclose(released, own[:30], rtol=1e-3, atol=1e-5)
        assert np.abs(own).max() > 0
