"""Similarities of all restarts and of random reconstructions."""

import numpy as np
import pytest
import torch
from torch import Tensor

from gradaudit.attacks.reconstruction.attempts import (
    KINDS,
    expect_pictures,
    guesses,
    similarities,
    ssim_of,
)
from gradaudit.attacks.reconstruction.base import (
    AttackerView,
    Candidates,
    Execution,
    Reconstruction,
    ReconstructionOptions,
)
from gradaudit.attacks.reconstruction.closeness import ssim
from gradaudit.attacks.reconstruction.observing import AttackedBatch, ThreatModel
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.sharing.protocol import SharingProtocol
from tests.attacks.reconstruction.scenes import cnn, records

PICTURES = records(1, 6, 6, labels=[0, 1, 2, 1, 0, 2])


class Planted(Reconstruction[ReconstructionOptions]):
    """Hands in given records; remembers what labels it was told."""

    name = "planted"
    summary = ""

    def __init__(self, made: list[Tensor | None], diverged: list[bool]) -> None:
        super().__init__(ReconstructionOptions(), restarts=len(diverged))
        self.made = iter(made)
        self.diverged = torch.tensor(diverged)
        self.told: list[Tensor | None] = []

    def run(self, view: AttackerView, execution: Execution) -> Candidates:
        self.told.append(view.labels)
        inputs = next(self.made)
        if inputs is None:
            raise NotApplicable("nothing to say")
        return Candidates(inputs, None, torch.zeros(self.starts), self.diverged)


def observed(size: int = 1, count: int = 2) -> list[AttackedBatch]:
    target = Target(cnn(), CrossEntropy())
    threat = ThreatModel(target, SharingProtocol(), target.layers, known_labels=True)
    rows = np.arange(size * count).reshape(count, size)
    return [threat.observed(PICTURES.take(row), torch.Generator()) for row in rows]


def test_every_restart_is_scored_whatever_the_attacker_thinks_of_it() -> None:
    seen = observed()
    noise = torch.rand(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    made: list[Tensor | None] = [
        torch.stack([each.records, each.records * 0 + noise, each.records]) for each in seen
    ]
    found = similarities({"planted": Planted(made, [False, False, True])}, seen, Execution())
    assert found.own.shape == (1, 2, 1, 3)
    assert found.own[0, :, 0, 0] == pytest.approx([1, 1])
    for update, each in enumerate(seen):
        expected = float(ssim(each.records, noise.expand(each.records.shape))[0])
        assert found.own[0, update, 0, 1] == pytest.approx(expected)
    assert np.isnan(found.own[..., 2]).all()
    assert found.failed == [2]
    assert found.others is not None
    swapped = float(ssim(seen[1].records, seen[0].records)[0])
    assert found.others[0, 0, 0, 0] == pytest.approx(swapped)


def test_one_update_has_no_other_records() -> None:
    seen = observed(count=1)
    attack = Planted([seen[0].records[None]], [False])
    assert similarities({"planted": attack}, seen, Execution()).others is None


def test_records_of_a_batch_are_compared_with_what_stands_for_them() -> None:
    truth = PICTURES.inputs[:3]
    assert ssim_of(truth, truth[[2, 0, 1]][None]) == pytest.approx(np.ones((3, 1)))


def test_an_update_that_an_attack_says_nothing_about_counts_as_failures() -> None:
    seen = observed()
    attack = Planted([None, torch.stack([seen[1].records] * 2)], [False, False])
    found = similarities({"planted": attack}, seen, Execution())
    assert np.isnan(found.own[0, 0]).all()
    assert found.own[0, 1] == pytest.approx(np.ones((1, 2)))


def test_an_attack_that_says_nothing_at_all_is_refused_with_its_reason() -> None:
    seen = observed()
    mute, able = Planted([None, None], [False]), Planted([s.records[None] for s in seen], [False])
    found = similarities({"mute": mute, "able": able}, seen, Execution())
    assert found.members == ("able",)
    assert found.refused == {"mute": "nothing to say"}
    with pytest.raises(NotApplicable, match="mute: nothing to say"):
        similarities({"mute": Planted([None, None], [False])}, seen, Execution())


def test_an_attack_that_searches_labels_is_not_told_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = observed()
    told = Planted([s.records[None] for s in seen], [False])
    similarities({"planted": told}, seen, Execution())
    assert all(labels is not None for labels in told.told)
    monkeypatch.setattr(Planted, "searches_labels", True)
    searching = Planted([s.records[None] for s in seen], [False])
    similarities({"searching": searching}, seen, Execution())
    assert searching.told == [None, None]


def test_guesses_are_scored_alike_and_depend_on_the_seed_alone() -> None:
    seen = observed()
    first, again, other = (guesses(seen, 50, seed) for seed in (0, 0, 1))
    assert first.shape == (len(KINDS), 2, 1, 50)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert (np.abs(first) <= 1).all()


def test_a_blank_guess_has_the_similarity_of_a_constant() -> None:
    # of a constant c against x, SSIM is the luminance term times C2 / (var x + C2)
    seen = observed(count=1)
    flat = Records(torch.full((1, 1, 6, 6), 0.4, dtype=torch.float64), torch.tensor([0]))
    seen = [AttackedBatch(seen[0].view, flat.inputs, flat.labels)]
    found = guesses(seen, 4000, 0)[KINDS.index("blank"), 0, 0]
    colours = np.linspace(0, 1, 100_001)
    expected = (2 * 0.4 * colours + 1e-4) / (0.4**2 + colours**2 + 1e-4)
    share = float((expected >= 0.8).mean())
    assert float((found >= 0.8).mean()) == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (records(6, labels=[0, 1]), "no pictures"),
        (Records(PICTURES.inputs * 2, PICTURES.labels), "no pictures in"),
        (records(4, 6, 6, labels=[0, 1]), "no pictures"),
        (records(1, 2, 6, labels=[0, 1]), "2×6 are too small"),
    ],
)
def test_what_ssim_cannot_compare_is_refused(given: Records, message: str) -> None:
    with pytest.raises(NotApplicable, match=message):
        expect_pictures(given)
