"""Privacy against accuracy as an audit: rows, headlines, curves, bad requests."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audits.attack_inference.people import people
from audits.attack_inference.people import subject as of_people
from subjects import one, rows_by, subject_of
from torch import nn

from gradaudit.audits.tradeoff import Tradeoff, TradeoffOptions
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.models.losses import MeanSquaredError
from gradaudit.report import Measurement
from gradaudit.subject import Subject
from tests.attacks.reconstruction.scenes import mlp
from tests.command_line import run

NOISE = "dp:clip=1e6,sigma=0.001|10,per=release"
SMALL: dict[str, Any] = {
    "iterations": 2,
    "rounds": 80,
    "clients": 2,
    "batches": 5,
    "weights": "initial",
    "learning_rate": 1,
}


def table(records: int = 60) -> Records:
    """Four classes around means of their own in [0, 1]."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(records) % 4
    means = torch.rand(4, 6, generator=generator, dtype=torch.float64)
    noise = 0.1 * torch.rand(records, 6, generator=generator, dtype=torch.float64)
    return Records((means[labels] + noise) / 1.1, labels)


def subject(data: Records | None = None, model: nn.Module | None = None, **more: Any) -> Subject:
    return subject_of(model or mlp(), data or table(), **more)


tradeoff = rows_by(Tradeoff, **SMALL)


@pytest.fixture(scope="module")
def noisy() -> list[Measurement]:
    return tradeoff(subject(), defense=(NOISE,))


def view(game: str, **more: Any) -> dict[str, Any]:
    return {"mechanism": NOISE, "game": game, "batch_size": 1, "weights": "initial", **more}


def test_cap_is_that_of_the_points_that_stand_beside_it(noisy: list[Measurement]) -> None:
    for game in ("reconstruct", "membership", "tracing"):
        accuracies = [
            one(noisy, "accuracy", mechanism=NOISE, setting=f"dp.sigma={sigma}").value
            for sigma in ("0.001", "10")
        ]
        distances = [
            one(noisy, "distance", **view(game, setting=f"dp.sigma={sigma}")).value
            for sigma in ("0.001", "10")
        ]
        row = one(noisy, "cap", **view(game))
        assert row.value == pytest.approx(np.multiply(accuracies, distances).mean())
        assert row.interval is not None
        assert row.interval[0] <= row.value <= row.interval[1]
        assert row.n == 5


def test_noise_costs_accuracy_and_buys_distance(noisy: list[Measurement]) -> None:
    points: Any = one(noisy, "cap", **view("reconstruct")).details["points"]
    little, much = points
    assert little["accuracy"] > 0.8 > 0.6 > much["accuracy"]
    assert little["distance"] < 0.4 < much["distance"]
    assert little["position"] > 1 > much["position"]


def test_the_papers_cap_has_no_limit_and_is_of_reconstruction(noisy: list[Measurement]) -> None:
    clipped, raw = (one(noisy, m, **view("reconstruct")) for m in ("cap", "cap_paper"))
    assert raw.value is not None
    assert raw.value >= (clipped.value or 0)
    for game in ("membership", "tracing"):
        assert one(noisy, "cap_paper", **view(game)).status == "skipped"


def test_the_headline_is_the_first_view_and_the_grid_is_part_of_it(
    noisy: list[Measurement],
) -> None:
    head = one(noisy, "cap")
    assert head.value == one(noisy, "cap", **view("reconstruct")).value
    assert head.details["headline_of"] == view("reconstruct")
    assert head.details["grid"] == [{"dp.sigma": "0.001"}, {"dp.sigma": "10"}]
    assert one(noisy, "accuracy").value == one(noisy, "accuracy", mechanism=NOISE).value
    keys = [row.key for row in noisy]
    assert len(set(keys)) == len(keys)


@pytest.mark.processes
def test_the_same_seed_gives_the_same_rows_by_any_workers_and_another_others() -> None:
    options: dict[str, Any] = {"batches": 2, "participants": 2, "iterations": 1, "rounds": 3}
    first, together, other = (
        tradeoff(subject(**settings), defense=(NOISE,), **options)
        for settings in ({"seed": 1}, {"seed": 1, "jobs": 2}, {"seed": 2})
    )
    assert first == together
    assert [row.value for row in first] != [row.value for row in other]


def test_weights_sizes_mechanisms_insiders_and_repetitions_have_rows_of_their_own() -> None:
    rows = tradeoff(
        subject(),
        defense=("spn:bits=4,alpha=0.1",),
        against=("sign",),
        batch_size=(1, 2),
        weights=("trained", "initial"),
        iterations=1,
        rounds=1,
        batches=2,
        repeats=2,
        game="reconstruct",
        method="dlg:optimiser=adam",
    )
    spn = {
        (row.variant["batch_size"], row.variant["weights"], row.variant.get("knows"))
        for row in rows
        if row.metric == "cap" and row.variant.get("mechanism") == "spn:bits=4,alpha=0.1"
    }
    assert spn == {
        (size, weights, knows)
        for size in (1, 2)
        for weights in ("trained", "initial")
        for knows in (None, "private part")
    }
    assert one(rows, "cap").details["headline_of"] == {
        "mechanism": "spn:bits=4,alpha=0.1",
        "game": "reconstruct",
        "batch_size": 1,
        "weights": "trained",
    }
    other = one(rows, "cap", mechanism="sign", game="reconstruct", batch_size=2, weights="initial")
    assert other.n == 4
    assert not any("knows" in row.variant for row in rows if "sign" in row.variant.values())


def test_a_method_without_labels_skips_membership() -> None:
    rows = tradeoff(subject(), defense=("prune:0",), method="closed-form", rounds=1)
    variant = {**view("membership"), "mechanism": "prune:0"}
    row = one(rows, "cap", **variant)
    assert (row.status, row.reason) == (
        "skipped",
        "the method names no labels of these records, so there are none to compare",
    )


def test_training_that_diverges_fails_its_mechanism_alone() -> None:
    wild = "dp:clip=1e6,sigma=1e308,per=release"
    rows = tradeoff(
        subject(), defense=("sign",), against=(wild,), rounds=3, iterations=1, game="tracing"
    )
    assert one(rows, "cap").status == "measured"
    failed = one(rows, "cap", mechanism=wild)
    assert failed.status == "failed"
    assert "diverged" in (failed.reason or "")


def test_property_inference_against_accuracy(tmp_path: Path) -> None:
    path = tmp_path / "property.svg"
    noise = "dp:clip=1,sigma=0.001|10,per=release"
    rows = tradeoff(
        of_people(people(), "sex"),
        defense=(noise,),
        game="property",
        batch_size=(8,),
        rounds=2,
        shadow=200,
        shadow_batches=40,
        trials=60,
        learning_rate=0.1,
        curves=path,
    )
    base = {"mechanism": noise, "game": "property"}
    row = one(rows, "cap", **base)
    settings = [f"dp.sigma={sigma}" for sigma in ("0.001", "10")]
    accuracy = [one(rows, "accuracy", **base, setting=s).value for s in settings]
    advantage = [one(rows, "advantage", **base, setting=s).value for s in settings]
    assert row.value == pytest.approx(np.multiply(accuracy, 1 - np.array(advantage)).mean())
    assert row.interval is not None
    assert row.interval[0] < row.value < row.interval[1]
    assert advantage[0] > advantage[1]
    assert one(rows, "advantage", **base, setting=settings[0], adversary="static").interval
    assert one(rows, "auroc", **base, setting=settings[1]).status == "measured"
    assert one(rows, "cap_paper", **base).status == "skipped"
    assert "advantage" in path.read_text()


def test_from_the_command_line_with_curves(tmp_path: Path) -> None:
    path = tmp_path / "ppc.svg"
    done = run(
        *("tradeoff", "-m", "zoo:mlp?hidden=8", "-d", "digits", "-f", "json", "-q"),
        *("--defense", "selective:0.5", "--defense", "dp:clip=1e6,sigma=0.01|1,per=release"),
        *("--rounds", 3, "--iterations", 1, "--game", "reconstruct,tracing", "--curves", path),
        *("--batches", 2, "--participants", 2, "--weights", "initial"),
    )
    assert done.status == 0, done.err
    report = json.loads(done.out)
    metrics = {row["metric"] for row in report["measurements"] if not row["variant"]}
    assert metrics == {"cap", "cap_paper", "accuracy", "distance"}
    text = path.read_text()
    assert "distance, tracing" in text
    assert "selective:0.5 then" in text


def test_without_a_defense_it_says_how_to_name_one() -> None:
    with pytest.raises(NotApplicable, match=r"name one, as in --defense 'dp:.*tradeoff:"):
        tradeoff(subject())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"defense": ("nothing:1|2",)}, "no such defense"),
        ({"against": (NOISE, NOISE)}, "named twice"),
        ({"defense": (NOISE + ",layers=conv*",)}, "no layer matches"),
        ({"defense": (NOISE,), "batches": 60, "participants": 2}, "are trained on"),
        ({"defense": (NOISE,), "batches": 2}, "--participants 5: each needs an update"),
        ({"defense": (NOISE,), "curves": Path("x.gif")}, "svg, .png, .pdf"),
        ({"defense": (NOISE,), "method": "dgl"}, "did you mean 'dlg'"),
        ({"defense": (NOISE,), "test_share": 0.001}, "no record is left to test on"),
        ({"defense": (NOISE,), "algorithm": "fedsdg"}, "fedsgd"),
    ],
)
def test_wrong_requests_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tradeoff(subject(), **options)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--game", "chess"), "there is no 'chess'"),
        (("--game", "property,tracing"), "is played alone"),
        (("--weights", "random"), "there is no 'random'"),
        (("--batch-size", "1", "--batch-size", "1"), "name each size once"),
        (("--curves", "ppc.txt"), "svg"),
        (("--participants", "1"), "--participants"),
    ],
)
def test_wrong_flags_are_refused(flags: tuple[str, ...], message: str) -> None:
    done = run("tradeoff", "-m", "zoo:mlp", "-d", "digits", "--defense", "prune:0.5|0.9", *flags)
    assert done.status == 2
    assert message in done.err


def test_hidden_layers_are_refused() -> None:
    with pytest.raises(UsageError, match="--hide: all layers are trained together"):
        tradeoff(subject(hidden=("0",)), defense=(NOISE,))


def test_property_needs_an_attribute_and_classes_an_accuracy() -> None:
    with pytest.raises(NotApplicable, match="--attribute"):
        tradeoff(of_people(people()), defense=(NOISE,), game="property")
    data = Records(torch.rand(40, 6, dtype=torch.float64), torch.rand(40, 4, dtype=torch.float64))
    with pytest.raises(NotApplicable, match="define no accuracy"):
        tradeoff(subject(data, loss=MeanSquaredError()), defense=(NOISE,), rounds=1)


def test_scan_skips_it_until_it_is_configured(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    common = ("scan", "-m", "zoo:mlp?hidden=8", "-d", "digits", "-q", "-o", report, "--audits")
    run(*common, "tradeoff")
    rows = json.loads(report.read_text())["measurements"] if report.exists() else []
    assert all(row["status"] == "skipped" for row in rows)
    assert rows
    config = tmp_path / "audit.yaml"
    config.write_text(
        "tradeoff: {defense: ['prune:0.5|0.9'], rounds: 2, iterations: 1, batches: 2, "
        "participants: 2, weights: [initial]}\n"
    )
    done = run(*common, "tradeoff", "--config", config)
    assert done.status == 0, done.err


def test_the_plan_counts_trainings_and_attacks() -> None:
    audit = Tradeoff(TradeoffOptions(defense=(NOISE,), iterations=10))
    fewer = Tradeoff(TradeoffOptions(defense=(NOISE,), iterations=10, batches=1, rounds=1))
    assert audit.gradients(subject()) > fewer.gradients(subject()) > 0
    assert Tradeoff(TradeoffOptions()).gradients(subject()) == 0
