"""The audit: what it skips and why, what it puts into rows, and that no attacker beats it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audits.floor.dense import dense_covariance
from subjects import rows_by, subject_of
from torch import nn

from gradaudit.audits.floor import Floor, FloorOptions, measure
from gradaudit.audits.floor.noisy_update import shared_layers
from gradaudit.audits.floor.prior import GaussianPrior, prior_of_file
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
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
    found = rows_by(Floor)(subject, **{"attacked": 0, **options})
    return {(row.metric, row.layer): row for row in found if row.metric != "gap"}


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
        for call in (rows_of, lambda subject: measure.cost(Floor(FloorOptions()), subject)):
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


@pytest.mark.slow
def test_a_kink_leaves_the_law_s_floor_to_what_is_before_it_or_clipped_with_that() -> None:
    """Of eight records no law is told, so that the reasons stand alone."""
    for samples in (8, 64):
        kinked = {"activation": nn.ReLU(), "samples": samples}
        plain = rows_of(defended(**kinked), sigma=0.3)
        clipped = rows_of(defended("dp:clip=1,sigma=0.3", **kinked))
        assert plain["mse_share", "2"].status == "measured"
        assert "ReLU 1 has a kink" in why_not(plain["nats", "0"], samples)
        assert "0: ReLU 1" in why_not(plain["nats", None], samples)
        said = why_not(clipped["nats", "2"], samples)
        assert said.startswith("is clipped together with 0: ReLU")
        assert clipped["rero", None].status == "measured"


def why_not(row: Measurement, samples: int) -> str:
    if samples < 16:
        assert row.status == "skipped"
        return row.reason or ""
    assert row.status == "measured"
    return str(row.details["by_law_alone"])


def test_a_layer_of_a_batch_that_is_clipped_as_a_whole_has_a_floor_of_its_own() -> None:
    """A clip that no update reaches changes nothing, and one that all do only raises floors."""
    plain = rows_of(defended(), sigma=0.3, batch_size=4)
    wide = rows_of(defended("dp:clip=1e6,sigma=0.3,per=release"), batch_size=4)
    tight = rows_of(defended("dp:clip=0.01,sigma=0.3,per=release"), batch_size=4)
    for (metric, layer), row in plain.items():
        if metric == "rero":
            continue
        assert wide[metric, layer].value == pytest.approx(row.value, rel=1e-9)
        assert row.value is not None
        gained = (tight[metric, layer].value or 0) - row.value
        assert gained * (1 if metric == "mse_share" else -1) > 0
    kinked = defended("dp:clip=1,sigma=0.3,per=release", activation=nn.ReLU())
    reason = rows_of(kinked, batch_size=4)["nats", "2"].reason or ""
    assert reason.startswith("is clipped together with 0: ReLU")


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


def test_a_prior_of_a_file(tmp_path: Path) -> None:
    """It is the law that was written, and every fault of a file is refused by its name."""
    file = tmp_path / "own.npz"
    fitted = GaussianPrior.fitted(defended().records.inputs)
    covariance = dense_covariance(fitted)
    np.savez(file, mean=fitted.mean.numpy(), covariance=covariance.numpy())
    given = prior_of_file(file, SIZE, 3)
    torch.testing.assert_close(given.mean, fitted.mean)
    torch.testing.assert_close(dense_covariance(given), covariance)
    assert rows_of(defended(), sigma=0.3, prior=str(file))["nats", None].details["directions"] == 4
    for arrays, told in (
        ({"mean": np.zeros(SIZE)}, "no array 'covariance'; it holds: mean"),
        ({"mean": np.zeros(3), "covariance": np.eye(3)}, r"records have 4 elements"),
        ({"mean": np.zeros(SIZE), "covariance": -np.eye(SIZE)}, "least eigenvalue"),
        ({"mean": np.zeros(SIZE), "covariance": np.triu(np.ones((SIZE, SIZE)))}, "not symmetric"),
        ({"mean": np.full(SIZE, np.nan), "covariance": np.eye(SIZE)}, "mean holds"),
    ):
        np.savez(file, **arrays)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=told):
            prior_of_file(file, SIZE, 3)
    with pytest.raises(UsageError, match="no such file"):
        rows_of(defended(), sigma=0.3, prior="nowhere.npz")


@pytest.mark.slow
def test_small_models_draw_more_records_unless_told_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "_MOST_DRAWS", 70)
    assert rows_of(defended(samples=None), sigma=0.3)["mse_share", None].n == 70
    wide = defended(samples=None)
    wide.target.model[0] = nn.Linear(SIZE, 100_000)  # type: ignore[operator]
    cost = measure.cost(Floor(FloorOptions(sigma=0.3, attacked=0)), wide)
    assert cost == wide.work(5 * SIZE * 64)
