"""The audit: what it skips and why, what it puts into rows, and that no attacker beats it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from subjects import rows_by, subject_of
from torch import nn

from gradaudit.audits.floor import Floor, FloorOptions, measure
from gradaudit.audits.floor.noisy_update import shared_layers
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.errors import NotApplicable
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.models.torch_losses import WeightedCrossEntropy
from gradaudit.report import Measurement
from gradaudit.subject import Subject

SIZE = 4


def defended(
    *defenses: str, activation: nn.Module | None = None, samples: int | None = 8, **more: Any
) -> Subject:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(SIZE, 6), activation or nn.Tanh(), nn.Linear(6, 3))
    target = Target(model, CrossEntropy())
    generator = torch.Generator().manual_seed(0)
    records = Records(
        torch.randn(50, SIZE, generator=generator), torch.arange(50) % 3, classes=("a", "b", "c")
    )
    parsed = tuple(map(parse_defense, defenses))
    return subject_of(target, records, samples=samples, defenses=parsed, **more)


def rows_of(subject: Subject, **options: Any) -> dict[tuple[str, str | None], Measurement]:
    found = rows_by(Floor)(subject, **options)
    return {(row.metric, row.layer): row for row in found}


@pytest.mark.slow
def test_every_layer_and_the_model_have_rows() -> None:
    rows = rows_of(defended("dp:clip=1,sigma=0.3", samples=64))
    assert set(rows) == {(m, x) for m in ("mse_share", "nats", "rero") for x in ("0", "2", None)}
    for (metric, _), row in rows.items():
        assert row.status == "measured"
        assert row.value is not None
        if metric != "rero":
            assert (row.n, row.interval) == (64, None)
            assert row.confidence == pytest.approx(0.975)
            assert isinstance(estimate := row.details["estimate"], float)
            assert (row.value - estimate) * (1 if metric == "nats" else -1) > 0  # the safe end
    values = {key: row.value or 0.0 for key, row in rows.items()}
    assert values["mse_share", None] < min(values["mse_share", "0"], values["mse_share", "2"]) < 1
    assert values["nats", None] > max(values["nats", "0"], values["nats", "2"]) > 0


def test_without_noise_or_with_it_in_part() -> None:
    for subject in (defended(), defended("sign")):
        for call in (rows_of, lambda subject: measure.gradients(Floor(FloorOptions()), subject)):
            with pytest.raises(NotApplicable, match="no noise: nothing bounds an attacker"):
                call(subject)
    rows = rows_of(defended("dp:clip=1,sigma=0.3,layers=2"))
    assert rows["mse_share", "2"].status == "measured"
    assert (rows["mse_share", "0"].reason or "").startswith("no noise")
    assert (rows["rero", None].reason or "").startswith("0: no noise")


def test_noise_too_small_for_a_number_has_a_reason() -> None:
    rows = rows_of(defended("dp:clip=1,sigma=1e-300"))
    assert {row.status for (metric, _), row in rows.items() if metric != "rero"} == {"failed"}
    assert rows["rero", None].value == 1


def test_a_kink_leaves_no_floor_to_what_is_before_it_or_clipped_with_that() -> None:
    plain = rows_of(defended(activation=nn.ReLU()), sigma=0.3)
    clipped = rows_of(defended("dp:clip=1,sigma=0.3", activation=nn.ReLU()))
    assert plain["mse_share", "2"].status == "measured"
    assert "ReLU 1 has a kink" in why_not(plain["nats", "0"])
    assert "0: ReLU 1" in why_not(plain["nats", None])
    assert why_not(clipped["nats", "2"]).startswith("is clipped together with 0: ReLU")
    assert clipped["rero", None].status == "measured"


def why_not(row: Measurement) -> str:
    assert row.status == "skipped"
    return row.reason or ""


@pytest.mark.parametrize(
    ("defense", "options", "why"),
    [
        ("dp:clip=1,sigma=0.3,per=release", {"batch_size": 4}, "clips the batch as a whole"),
        ("dp:clip=1,sigma=0.3,per=release", {"local_steps": 2, "rate": 0.1}, "local steps"),
        ("dp:clip=1,sigma=0.3,noise=laplace", {}, "under Gaussian noise alone"),
    ],
)
def test_updates_that_are_no_mean_under_gaussian_noise_are_refused(
    defense: str, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(NotApplicable, match=why):
        rows_of(defended(defense), **options)


def test_records_that_weigh_differently_have_a_floor_alone() -> None:
    weighted = defended("dp:clip=1,sigma=0.3")
    loss = WeightedCrossEntropy(
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])), "weighted"
    )
    weighted = replace(weighted, targets=(replace(weighted.target, loss=loss),))
    assert rows_of(weighted)["mse_share", "0"].status == "measured"
    with pytest.raises(NotApplicable, match="the loss weighs records"):
        rows_of(weighted, batch_size=2)


@pytest.mark.slow
def test_hidden_layers_tell_nothing_and_stay_out_of_the_norm() -> None:
    seen = rows_of(defended("dp:clip=1,sigma=0.3", samples=64))
    hidden = defended("dp:clip=1,sigma=0.3", samples=64, hidden=("0",))
    hidden = Subject(**{**vars(hidden), "layers": hidden.layers[1:]})
    rows = rows_of(hidden)
    assert [
        layer.parameter_names for layer in shared_layers(hidden.target, hidden.layers, ("0",))
    ] == [("2.weight", "2.bias")]
    assert rows["mse_share", None].value == rows["mse_share", "2"].value
    assert (rows["mse_share", None].value or 0) > (seen["mse_share", None].value or 1)


@pytest.mark.slow
def test_small_models_draw_more_records_unless_told_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "_MOST_DRAWS", 70)
    assert rows_of(defended(samples=None), sigma=0.3)["mse_share", None].n == 70
    wide = defended(samples=None)
    wide.target.model[0] = nn.Linear(SIZE, 100_000)  # type: ignore[operator]
    count = measure.gradients(Floor(FloorOptions(sigma=0.3)), wide)
    assert count == 2 * SIZE * 64
