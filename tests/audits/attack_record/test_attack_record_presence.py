"""Projections against explicit covariances, the score's law, intervals, and a null."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.special import ndtr, ndtri
from subjects import one, rows_by, seeded, subject_of
from torch import Tensor, nn

from gradaudit.audits.attack_record import AttackRecord
from gradaudit.audits.attack_record.likelihood_ratio import (
    CandidatePairs,
    InnerProducts,
    Placed,
    PresenceScores,
)
from gradaudit.audits.attack_record.pair_scores import PairScores, RepeatedGames
from gradaudit.audits.attack_record.record_game import RecordGame, alike, pairs_of, sets_of
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.subject import Subject

WIDTH = 6
QUICK: dict[str, Any] = {"updates": 16, "shadow": 80, "candidates": 32, "repeats": 4}
ALONE = RepeatedGames(1, 1)
"""One game: its interval is that of its pairs."""
rows_of = rows_by(AttackRecord, **QUICK)


def people(count: int = 400, seed: int = 0) -> Records:
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, WIDTH, generator=draws)
    return Records(inputs, torch.randint(3, (count,), generator=draws), ("a", "b", "c"))


def network(hidden: int = 24) -> nn.Module:
    with seeded():
        return nn.Sequential(nn.Linear(WIDTH, hidden), nn.Tanh(), nn.Linear(hidden, 3)).eval()


def subject(**settings: Any) -> Subject:
    return subject_of(network(), people(), **settings)


def game(options: dict[str, Any], **settings: Any) -> RecordGame:
    given = AttackRecord.Options.model_validate({**QUICK, **options})
    return RecordGame.of(given, subject(**settings))


def gradient(indices: np.ndarray[Any, Any], layer: str) -> Tensor:
    """Of the mean loss of these records, by plain autograd in double precision."""
    model, records = network().double(), people()
    weight = model.get_parameter(f"{layer}.weight")
    outputs = model(records.inputs[indices].double())
    loss = nn.functional.cross_entropy(outputs, records.labels[indices])
    return torch.autograd.grad(loss, weight)[0].flatten()


def test_projections_are_those_of_an_explicit_covariance() -> None:
    played = game({"batch_size": 4})
    layer, products, _ = next(iter(played.products()))
    fit = torch.stack([gradient(np.array([i]), layer.name) for i in played.sets.fit])
    own = torch.stack([gradient(np.array([i]), layer.name) for i in played.candidates])
    batches = np.concatenate([played.shadow, played.attacked])
    updates = torch.stack([gradient(batch, layer.name) for batch in batches])
    x, d, u = (rows - fit.mean(dim=0) for rows in (fit, own, updates))
    identity = torch.eye(x.shape[1], dtype=torch.float64)
    for ridge in (0.01, 1.0, math.inf):
        removed = identity
        if not math.isinf(ridge):
            shrunk = ridge * float(torch.trace(x @ x.T)) / len(x)
            removed = shrunk * torch.linalg.inv(x.T @ x + shrunk * identity)
        projected, lengths = products.projections(ridge)
        expected = (d @ removed @ u.T).numpy()
        scale = float(np.abs(expected).max())
        assert np.allclose(projected, expected, rtol=0, atol=1e-5 * scale)
        assert np.allclose(lengths, ((d @ removed) * d).sum(dim=1).numpy(), rtol=1e-4)


def test_the_whole_updates_products_are_the_sums_of_its_layers() -> None:
    played = game({"batch_size": 2})
    both = [products for _, products, _ in played.products()]
    names = [layer.name for layer in played.layers]

    def whole(indices: np.ndarray[Any, Any]) -> Tensor:
        return torch.cat([gradient(indices, name) for name in names])

    mean = torch.stack([whole(played.sets.fit[[i]]) for i in range(len(played.sets.fit))]).mean(0)
    place = int(np.searchsorted(played.candidates, played.attacked[0, 0]))
    own, one_row, another = (
        whole(rows) - mean
        for rows in (played.attacked[0, :1], played.attacked[0], played.shadow[0])
    )
    across = (both[0] + both[1]).across
    assert float(across[place, len(played.shadow)]) == pytest.approx(float(own @ one_row), rel=1e-4)
    assert float(across[place, 0]) == pytest.approx(float(own @ another), rel=1e-3, abs=1e-6)


def test_auroc_is_that_of_two_normal_laws_whose_means_are_apart() -> None:
    """With δ² = dᵀ Σ⁻¹ d / k it is Φ(δ/√2), as k grows."""
    width, k, updates, count = 30, 40, 300, 200
    draws = np.random.default_rng(0)
    root = np.diag(np.exp(draws.normal(size=width)))
    shadow = draws.normal(size=(600, width)) @ root
    unit = draws.normal(size=(2 * count, width))
    candidates = math.sqrt(width) * unit / np.linalg.norm(unit, axis=1, keepdims=True) @ root
    rows = np.tile(np.arange(count), 2 * updates // count * 2)[: 2 * updates]
    others = draws.normal(size=(2 * updates, width)) @ root / math.sqrt(k)
    inside = np.arange(2 * updates) % 2 == 0
    rows[updates:] += count
    seen = others + np.where(inside[:, None], (candidates[rows] - others) / k, 0)
    products = InnerProducts.of(
        *(torch.from_numpy(x) for x in (shadow, candidates, seen, np.zeros(width)))
    )
    pairs = [
        CandidatePairs(np.arange(updates) + first, rows[first : first + updates], inside[:updates])
        for first in (0, updates)
    ]
    members = np.zeros((2 * count, updates), bool)
    members[rows[:updates][inside[:updates]], np.flatnonzero(inside[:updates])] = True
    scores = PresenceScores.chosen(products, Placed(*pairs, updates, members, 1 / k))
    rates = PairScores(scores.scores[pairs[1].records, pairs[1].updates], pairs[1])
    told = ALONE.score([rates.auroc()])
    truth = float(ndtr(math.sqrt(width / k) / math.sqrt(2)))
    assert told.interval[0] < truth < told.interval[1]
    assert abs(told.value - truth) < 0.05
    assert told.value > 0.65


@pytest.mark.parametrize(
    ("records", "outside", "share", "shift"),
    [(90, 40, 0.01, 1.0), (300, 125, 0.001, 2.0)],
)
def test_the_intervals_hold_the_truth(
    records: int, outside: int, share: float, shift: float
) -> None:
    """Normal scores, of which a part is the record's, a part the update's: of 200."""
    draws, hits, high, studies = np.random.default_rng(1), 0, 0, 200
    truth = float(ndtr(shift / math.sqrt(2)))
    every = np.arange(records)
    for _ in range(studies):
        batches = np.stack([draws.permutation(records)[:20] for _ in range(24)])
        pairs = pairs_of(batches, every, every, outside, int(draws.integers(1 << 31)))
        parts = (draws.normal(size=records)[pairs.records], draws.normal(size=24)[pairs.updates])
        own = draws.normal(size=len(pairs.records))
        scores = math.sqrt(0.2) * parts[0] + math.sqrt(0.1) * parts[1] + math.sqrt(0.7) * own
        told = PairScores(scores + shift * pairs.inside, pairs)
        low, top = ALONE.score([told.auroc()]).interval
        hits += low <= truth <= top
        at = told.at(share)
        assert at is not None
        rate = ALONE.within([at])
        high += rate.interval[0] <= ndtr(shift + ndtri(share)) <= rate.interval[1]
    assert hits >= 0.93 * studies
    assert high >= 0.93 * studies


def test_too_few_outside_say_nothing_of_rare_false_positives() -> None:
    pairs = CandidatePairs(np.zeros(60, np.int64), np.arange(60), np.arange(60) < 10)
    told = PairScores(np.arange(60.0), pairs)
    assert told.at(0.01) is None
    assert told.at(0.1) is not None


def test_records_are_told_and_those_of_another_update_are_not() -> None:
    rows = rows_of(subject(), batch_size=4, updates=24, candidates=40)
    for layer in ("0", "2", None):
        row = one(rows, "record_auroc", layer)
        assert row.value is not None
        assert row.value > 0.9
        low, high = row.details["permuted"]["interval"]  # type: ignore[misc, index, call-overload]
        assert low <= 0.5 <= high  # type: ignore[operator]
    assert 0.8 < float(one(rows, "record_auroc", "2").details["variance"]) < 1.4  # type: ignore[arg-type]
    assert one(rows_of(subject(), batch_size=1), "record_auroc").value == 1


@pytest.mark.parametrize(
    ("options", "defense"),
    [
        ({"algorithm": "fedavg", "local_steps": 3, "rate": 0.5, "local_batch": 2}, None),
        ({"others": 1}, None),
        ({}, "sign"),
        ({}, "dp:clip=1,sigma=0.001,per=record"),
    ],
)
def test_records_are_told_in_other_settings(options: dict[str, Any], defense: str | None) -> None:
    defenses = (parse_defense(defense),) if defense else ()
    rows = rows_of(subject(defenses=defenses), batch_size=4, **options)
    interval = one(rows, "record_auroc").interval
    assert interval is not None
    assert interval[0] > 0.6


def test_much_noise_hides_a_record() -> None:
    noisy = subject(defenses=(parse_defense("dp:clip=1,sigma=100"),))
    rows = rows_of(noisy, batch_size=4)
    interval = one(rows, "record_auroc").interval
    assert interval is not None
    assert interval[0] < 0.5 < interval[1] + 0.03
    assert one(rows, "record_certified", "0").value == 0


def test_no_record_or_user_is_in_two_sets() -> None:
    users = np.array([str(i // 4) for i in range(400)])
    owned = replace(subject(), records=replace(people(), users=users))
    options = AttackRecord.Options(batch_size=4, given=(0, 7))
    sets = sets_of(owned, options, fitted=100)
    held = [{users[i] for i in part} for part in (sets.fit, sets.choose, sets.score)]
    assert not (held[0] & held[1] | held[0] & held[2] | held[1] & held[2])
    assert {0, 7} <= set(sets.score.tolist())


def test_copies_of_a_record_in_a_batch_are_not_outside_of_it() -> None:
    records = people(10)
    records.inputs[7], records.labels[7] = records.inputs[2], records.labels[2]
    pairs = pairs_of(np.array([[2, 3]]), np.arange(10), alike(records), 10, 0)
    assert set(pairs.records[~pairs.inside].tolist()) == {0, 1, 4, 5, 6, 8, 9}


def test_records_asked_about_in_a_captured_update_have_small_p_values(tmp_path: Path) -> None:
    batch, path = np.array([5, 6, 7, 8]), tmp_path / "update.safetensors"
    model, records = network(), people()
    loss = nn.functional.cross_entropy(model(records.inputs[batch]), records.labels[batch])
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    save_file(gradients, path)
    rows = rows_of(subject(), batch_size=4, update=str(path), given=[5, 30])
    there, absent = (one(rows, "record_p_value", None, record=n) for n in (5, 30))
    assert (there.value or 0) < 0.05 < (absent.value or 0)
    for number, certified in ((5, True), (30, False)):
        row = one(rows, "record_p_value", "0", record=number)
        assert row.details["certified"] is certified
    assert one(rows, "record_auroc").status == "skipped"
    scored = rows_of(subject(), batch_size=4, update=str(path), records=[5, 6, 7, 8])
    assert one(scored, "record_certified", "0").value == 1


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"batch_size": 300}, NotApplicable, "lower --batch-size"),
        ({"given": [400]}, UsageError, "record 400: the data has 400"),
        ({"records": [1, 2]}, UsageError, "names 2 records, and 4 are behind"),
        ({"reduce": "pca:50"}, UsageError, "--reduce"),
    ],
)
def test_wrong_settings_are_refused_with_what_to_do(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        rows_of(subject(), **{"batch_size": 4, **options})


def test_a_void_span_says_why() -> None:
    rows = rows_of(subject(), batch_size=8)
    assert "void: 8 vectors" in str(one(rows, "record_certified", "0").reason)
    assert "3 outputs" in str(one(rows, "record_certified", "2").reason)


def test_a_wide_layer_certifies_its_records_and_no_other() -> None:
    wide = subject_of(network(64), replace(people(), inputs=torch.randn(400, WIDTH)))
    rows = rows_of(wide, batch_size=4)
    row = one(rows, "record_certified", "0")
    assert row.value == 1
    assert row.details["false"] == 0
    assert one(rows, "record_false", "0").n == 16 * 32
