"""vinfo --original: planted layers, rows of sets and thresholds, refusals, the command."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from subjects import one, rows_by, seeded
from torch import Tensor, nn

from gradaudit.audits.vinfo import Vinfo, VinfoOptions
from gradaudit.audits.vinfo.original import THRESHOLDS, ceiling, layer_sets
from gradaudit.cli.commands.scan import sample_folder
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target, choose_layers, hidden_layers
from gradaudit.report import Measurement
from gradaudit.subject import Subject
from tests.attacks.reconstruction.scenes import records
from tests.command_line import run

PICTURES = records(1, 8, 8, labels=[0, 1, 2, 1, 0, 2, 1, 0, 2])
QUICK: dict[str, Any] = {
    "original": True,
    "method": ("idlg",),
    "iterations": 1,
    "restarts": 3,
    "updates": 4,
    "guesses": 32,
}
BOTH = ("original_vinfo", "original_success")


class Branches(nn.Module):
    """One layer sees the picture, the next a constant, whose gradient says next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.picture = nn.Linear(64, 3, bias=False)
        self.constant = nn.Linear(4, 3, bias=False)
        nn.init.normal_(self.picture.weight, std=1e-3)
        nn.init.normal_(self.constant.weight)

    def forward(self, x: Tensor) -> Tensor:
        constant = self.constant(torch.ones(len(x), 4, dtype=x.dtype, device=x.device))
        outputs: Tensor = self.picture(x.flatten(1)) + constant
        return outputs


class Three(nn.Sequential):
    """Three layers, the first two of them wide enough."""

    def __init__(self) -> None:
        super().__init__(
            nn.Flatten(), nn.Linear(64, 8), nn.Sigmoid(), nn.Linear(8, 6), nn.Linear(6, 3)
        )


def subject(
    build: type[nn.Module] = Branches,
    data: Records = PICTURES,
    *,
    show: tuple[str, ...] = (),
    hide: tuple[str, ...] = (),
    targets: int = 1,
    **settings: Any,
) -> Subject:
    with seeded(0):
        target = Target(build().double(), CrossEntropy())
    layers = choose_layers(target.layers, show, hide)
    hidden = hidden_layers(target.layers, hide)
    return Subject((target,) * targets, data, layers, hidden=hidden, **settings)


rows_of = rows_by(Vinfo, **QUICK)
ONE: dict[str, Any] = {"together": (1,), "updates": 1, "restarts": 1, "guesses": 4}


@pytest.fixture(scope="module")
def plain() -> list[Measurement]:
    """Rows of single layers and of both together."""
    return rows_of(subject(), together=(1, 2))


def test_the_layer_that_sees_the_picture_has_all_and_the_other_has_nothing(
    plain: list[Measurement],
) -> None:
    seen = one(plain, "original_vinfo", "picture")
    assert seen.value == pytest.approx(ceiling(3), rel=0.1)
    assert seen.details["ceiling"] == pytest.approx(math.log(7))
    assert one(plain, "original_success", "picture").value == pytest.approx(1, abs=0.1)
    assert one(plain, "original_vinfo", None, layers="picture+constant").value == seen.value
    assert one(plain, "original_success", "constant").value == 0
    none = one(plain, "original_vinfo", "constant", threshold=0.8)
    assert str(none.reason).startswith("no success to compare")
    low = one(plain, "original_vinfo", "constant", threshold=0.05)
    assert low.value is not None
    assert low.value < 0.2


def test_hiding_all_but_an_uninformative_layer_leaves_nothing() -> None:
    rows = rows_of(subject(hide=("picture",)), together=(1,), restarts=16, guesses=256)
    assert {row.layer for row in rows} == {"constant"}
    assert one(rows, "original_success", "constant").value == 0
    levels = [one(rows, "original_vinfo", "constant", threshold=at) for at in THRESHOLDS]
    assert all((row.value or 0) < 0.15 for row in levels)


def test_the_value_of_one_record_follows_from_its_counts() -> None:
    rows = rows_of(subject(), together=(1,), updates=1, iterations=1, restarts=4, threshold=0.03)
    compared = 0
    for layer in ("picture", "constant"):
        for at in (0.03, *THRESHOLDS):
            value = one(rows, "original_vinfo", layer, threshold=at)
            rate = one(rows, "original_success", layer, threshold=at)
            assert rate.value is not None
            assert rate.n == 4
            guessed = rate.details["guessed"]
            assert isinstance(guessed, dict)
            hits, guesses = 4 * rate.value, 4 * float(str(guessed["success"]))
            if not hits and not guesses:
                assert str(value.reason).startswith("no success to compare")
                continue
            compared += 1
            assert value.value == pytest.approx(max(math.log((hits + 0.5) / (guesses + 0.5)), 0))
            assert value.interval is not None
            assert value.interval[0] == 0, "one update excludes next to nothing"
            assert value.interval[1] >= 0.94 * ceiling(4)
    assert compared > 3


@pytest.mark.parametrize("metric", BOTH)
@pytest.mark.parametrize("layer", ["picture", "constant"])
def test_every_threshold_is_a_variant_and_the_default_one_the_headline(
    plain: list[Measurement], metric: str, layer: str
) -> None:
    of = [row for row in plain if (row.metric, row.layer) == (metric, layer)]
    assert [row.variant.get("threshold") for row in of] == [None, *THRESHOLDS]
    headline = one(plain, metric, layer)
    assert headline.details["threshold"] == 0.5
    assert headline.value == one(plain, metric, layer, threshold=0.5).value
    rates = [row.value or 0 for row in of[1:]]
    assert metric == "original_vinfo" or rates == sorted(rates, reverse=True)


def test_intervals_permuted_records_and_what_the_attacker_knew(plain: list[Measurement]) -> None:
    row = one(plain, "original_vinfo", "picture")
    assert row.interval is not None
    assert row.interval[0] <= row.value <= row.interval[1]  # type: ignore[operator]
    assert row.n == 4
    assert row.details["permuted"]["success"] == 0  # type: ignore[index, call-overload]
    knowledge = row.details["knowledge"]
    assert isinstance(knowledge, dict)
    assert knowledge["layers"] == ["picture"]
    assert knowledge["labels"] == "known to idlg"
    few = one(rows_of(subject(), together=(1,), updates=2), "original_success", "picture")
    assert not few.imprecise
    assert few.interval is not None
    assert few.interval[1] - few.interval[0] > 0.8, "two updates exclude little"


def test_the_best_member_is_taken_and_named() -> None:
    rows = rows_of(
        subject(show=("picture",)),
        updates=1,
        together=(1,),
        method=("idlg:iterations=1,optimiser=adam,rate=1e-6", "dlg:iterations=4"),
    )
    row = one(rows, "original_vinfo", "picture")
    assert row.details["chosen"] == "dlg:iterations=4"
    members = row.details["members"]
    assert isinstance(members, dict)
    assert max(members, key=lambda name: float(str(members[name]))) == "dlg:iterations=4"


def test_an_attack_that_lacks_the_label_is_left_out_with_a_reason() -> None:
    untold: dict[str, Any] = {**ONE, "known_labels": False}
    rows = rows_of(subject(Three), method=("dlg", "idlg"), **untold)
    first = one(rows, "original_success", "1").details["refused"]
    assert isinstance(first, dict)
    assert "hidden" in str(first["idlg"])
    assert one(rows, "original_success", "4").details["refused"] == {}
    only = rows_of(subject(Three), **untold)
    assert one(only, "original_vinfo", "1").status == "skipped"


def test_sets_are_of_layers_that_follow_each_other() -> None:
    at = subject(Three)
    sets = layer_sets(at.layers, (1, 2, 3))
    names = ["+".join(layer.name for layer in own) for own in sets]
    assert names == ["1", "3", "4", "1+3", "3+4", "1+3+4"]
    apart = subject(Three, hide=("3",)).layers
    assert layer_sets(apart, (2,)) == []


def test_every_layer_and_every_size_has_a_row() -> None:
    rows = rows_of(subject(Three, hide=("3",)), **{**ONE, "together": (2,)})
    single = one(rows, "original_vinfo", "1")
    assert single.reason == "single layers are not attacked: --together 2"
    none = one(rows, "original_vinfo", None, layers="2 layers")
    assert none.reason == "no 2 consecutive layers of the model are shown"
    assert one(rows, "vinfo", "1").reason == "--original asks about the input alone"


def test_older_checkpoints_are_rounds_and_defenses_act() -> None:
    rows = rows_of(subject(targets=2, defenses=(parse_defense("dp:clip=1,sigma=10"),)), **ONE)
    assert {row.variant.get("round") for row in rows} == {None, 1}
    assert one(rows, "original_success", "picture", round=1).value == 0


def test_batches_are_scored_record_by_record() -> None:
    rows = rows_of(subject(), together=(1,), batch_size=2, updates=2, iterations=1)
    row = one(rows, "original_success", "picture")
    assert row.details["refused"] == {}
    assert row.n == 2 * 2 * 3


def test_the_same_seed_gives_the_same_rows() -> None:
    first, again, other = (rows_of(subject(seed=seed), **ONE) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_costs_follow_the_work() -> None:
    def passes(**options: Any) -> float:
        return Vinfo(VinfoOptions(**{**QUICK, **options})).gradients(subject())

    assert passes(restarts=6) == 2 * passes()
    assert passes(updates=8) == 2 * passes()
    assert passes(together=(1, 2)) == 1.5 * passes(together=(1,))
    assert Vinfo(VinfoOptions(**QUICK)).gradients(subject(data=records(6, labels=[0, 1]))) == 0


WRONG: list[tuple[str, object]] = [("together", (0,)), ("together", ()), ("threshold", 1.1)]
WRONG += [(name, 0) for name in ("restarts", "iterations", "updates", "guesses", "threshold")]


@pytest.mark.parametrize(("option", "value"), WRONG)
def test_wrong_options_are_refused(option: str, value: object) -> None:
    with pytest.raises(ValidationError, match=option):
        VinfoOptions(**{option: value})


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (("dgl",), "dgl: no such method"),
        (("dlg", "dlg"), "named twice"),
        (("closed-form",), "closed-form: is run once"),
        (("dlg:pace=3",), "unknown option 'pace'"),
    ],
)
def test_wrong_methods_are_refused(method: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rows_of(subject(), method=method)


def test_records_that_are_no_pictures_and_parts_of_updates_are_refused() -> None:
    with pytest.raises(NotApplicable, match=r"--original.*no pictures"):
        rows_of(subject(data=records(64, labels=[0, 1])))
    with pytest.raises(NotApplicable, match="leave out --fraction"):
        rows_of(subject(), fraction=0.5)


def test_the_command_reports_them(tmp_path: Path) -> None:
    images = PICTURES.inputs.numpy().astype(np.float32)
    path = tmp_path / "data.npz"
    np.savez(path, x=images, y=PICTURES.labels.numpy())
    model = f"{sample_folder() / 'models.py'}:digits_cnn"
    options = ("--original", "--method", "idlg", "--together", "1", "--restarts", "1")
    small = ("--iterations", "1", "--updates", "1", "--guesses", "4", "-f", "json")
    result = run("vinfo", "-m", model, "-d", f"npz:{path}?inputs=x&label=y", *options, *small)
    assert result.status == 0, result.err
    rows = json.loads(result.out)["measurements"]
    headline = [r for r in rows if r["metric"] == "original_success" and not r["variant"]]
    assert len(headline) == 4
    assert all(row["status"] == "measured" for row in headline)
