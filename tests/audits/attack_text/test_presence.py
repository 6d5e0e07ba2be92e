"""Evidence that a text was there, layer by layer: none of another batch's, all of the true."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from audits.attack_text.sentences import LENGTH, subject, view

from gradaudit.audits.attack_text.presence import Presence, Texts, mean_over, wins
from gradaudit.audits.attack_text.text_threat import TextThreat, texts_of
from gradaudit.core.statistics.intervals import clustered
from gradaudit.defenses import parse_defense
from gradaudit.sharing.protocol import SharingProtocol

MAPS = {f"blocks.{k}.{name}" for k in (0, 1) for name in ("qkv", "out", "wide", "narrow")}


def test_wins_are_the_share_of_decoys_with_more_and_ties_count_half() -> None:
    true = torch.tensor([1.0, 2.0])
    decoys = torch.tensor([[2.0, 1.0, 0.0, 3.0], [2.0, 2.0, 2.0, 2.0]])
    assert wins(true, decoys).tolist() == [0.625, 0.5]


def test_means_are_over_the_positions_that_are_filled() -> None:
    values = torch.tensor([[1.0, 3.0, 100.0], [7.0, 100.0, 100.0], [5.0, 5.0, 5.0]])
    assert mean_over(values, torch.tensor([2, 1, 0])).tolist() == [2, 7, 0]


@pytest.mark.parametrize(("causal", "tied"), [(True, False), (True, True), (False, False)])
def test_at_each_layer_the_texts_of_the_batch_have_the_least_evidence_against(
    causal: bool, tied: bool
) -> None:
    made, truth = view(3, causal=causal, tied=tied)
    whole = subject(causal=causal, tied=tied)
    pool = texts_of(whole.records)
    presence = Presence(made, whole.layers)
    evidence = presence.evidence(pool)
    assert set(evidence) >= {*MAPS, "words"}
    assert ("head" in evidence) == (causal and not tied)
    for layer, found in evidence.items():
        there, others = found[: len(truth)], found[len(truth) :]
        if not causal and layer == "blocks.1.narrow":  # one δ a text: the span of positions' sums
            assert there.mean() < others.mean()
        else:
            assert there.max() < others.min(), layer


def test_evidence_is_the_mean_energy_outside_the_span() -> None:
    made, _ = view(3)
    whole = subject()
    layer = "blocks.0.wide"
    ids = whole.records.inputs[5:7]
    found = Presence(made, whole.layers).evidence(Texts(ids, torch.tensor([LENGTH, 4])))[layer]
    rows = torch.linalg.svd(made.update[f"{layer}.weight"].double())[2][: 3 * (LENGTH - 1)]
    for number, inner in enumerate((LENGTH - 1, 3)):
        x = made.seen([f"{layer}.weight"], ids)[f"{layer}.weight"][number, :inner].double()
        outside = x - x @ rows.T @ rows
        expected = (outside.square().sum(1) / x.square().sum(1)).mean()
        assert float(found[number]) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("defenses", [(), ("dp:clip=1,sigma=0.05,per=release",)])
def test_texts_of_another_batch_are_told_from_decoys_by_chance_alone(
    defenses: tuple[str, ...],
) -> None:
    """Over 25 updates of two texts, the interval of each layer's AUROC holds ½, or nearly does."""
    whole = subject(records=120)
    sharing = SharingProtocol(defenses=tuple(map(parse_defense, defenses)))
    threat = TextThreat(whole.target, sharing, whole.layers)
    pool = texts_of(whole.records)
    shares: dict[str, list[float]] = {}
    for number in range(25):
        rows = np.array([2 * number, 2 * number + 1])
        made = threat.view(whole.records.take(rows), torch.Generator().manual_seed(number))
        other = np.random.default_rng(number).permutation(np.setdiff1d(np.arange(120), rows))[:18]
        evidence = Presence(made, whole.layers).evidence(
            Texts(pool.ids[other], pool.lengths[other])
        )
        for layer, found in evidence.items():
            won = wins(found[:2], found[2:].expand(2, -1))
            shares.setdefault(layer, []).append(float(won.mean()))
    assert set(shares) >= MAPS
    for layer, values in shares.items():
        level, (low, high) = clustered(np.array(values), np.ones(25))
        assert low - 0.02 < 0.5 < high + 0.02, layer
        assert abs(level - 0.5) < 0.12, layer


def test_a_layer_tells_nothing_that_is_void_or_not_shared() -> None:
    made, _ = view(3, hide=("blocks.0.qkv",))
    layers = subject().layers
    presence = Presence(made, layers)
    assert presence.span("blocks.0.qkv") is None
    assert "blocks.0.qkv" not in presence.evidence(texts_of(subject().records))
    void = Presence(replace(made, lengths=(LENGTH,) * 20), layers)
    assert void.span("blocks.1.qkv") is None
