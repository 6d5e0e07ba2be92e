"""The gap between floors and measured attacks: closed forms, and why there is none."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from subjects import rows_by, subject_of
from torch import Tensor, nn

from gradaudit.audits.floor import Floor
from gradaudit.audits.floor.playing import AttackedRecords, sent
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.rate_distortion import least_share, nats_shown
from gradaudit.audits.floor.release import Release
from gradaudit.data.records import Records
from gradaudit.defenses import parse_defense
from gradaudit.errors import NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.losses import CrossEntropy, MeanSquaredError
from gradaudit.models.target import Target, layers_of
from gradaudit.report import Measurement
from gradaudit.subject import Subject

SIZE = 5


class Shifted(nn.Module):
    """Wx + v with a fixed W: the gradient by v, 2 (Wx + v)/3, is linear in the record."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.register_buffer("fixed", torch.randn(3, SIZE, generator=generator))
        self.shift = nn.Linear(1, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        moved: Tensor = x @ self.get_buffer("fixed").mT + self.shift(torch.ones_like(x[:, :1]))
        return moved


def linear(samples: int = 8) -> Subject:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, SIZE, generator=generator) * torch.tensor([3.0, 2.0, 1.0, 1.0, 0.5])
    return subject_of(
        Target(Shifted(), MeanSquaredError()), Records(inputs, torch.zeros(60, 3)), samples=samples
    )


def gaps(subject: Subject, **options: Any) -> dict[str | None, Measurement]:
    return {row.layer: row for row in rows_by(Floor)(subject, **options) if row.metric == "gap"}


def bayes(subject: Subject, sigma: float) -> float:
    """The error of the posterior's mean over the prior's variance, by dense matrices."""
    prior = GaussianPrior.fitted(subject.records.inputs)
    covariance = prior.axes.mT @ torch.diag(prior.variances) @ prior.axes
    slope = 2 / 3 * subject.target.model.get_buffer("fixed").double()
    precision = torch.linalg.inv(covariance) + slope.mT @ slope / sigma**2
    return float(torch.linalg.inv(precision).trace()) / prior.variance


@pytest.mark.parametrize("sigma", [0.05, 0.5])
def test_a_linear_update_leaves_no_gap(sigma: float) -> None:
    """The floor is the exact error, so the gap's interval holds zero; the ends are of one axis."""
    exact = bayes(linear(), sigma)
    row = gaps(linear(64), sigma=sigma, attacked=128)[None]
    details = row.details
    assert details["floor"] == pytest.approx(exact, rel=1e-6)
    assert row.value is not None
    assert row.interval is not None
    assert row.interval[0] <= 0 <= row.interval[1]
    low, high = details["attack_low"], details["attack_high"]
    assert isinstance(low, float)
    assert isinstance(high, float)
    assert low <= exact <= high
    assert high - low < 0.35 * exact
    assert row.interval[1] - row.interval[0] == pytest.approx(high - low)
    nats, most = details["nats_shown"], details["nats_most"]
    assert isinstance(nats, float)
    assert isinstance(most, float)
    assert 0 < nats < most


def test_where_there_is_no_floor_or_no_attack_the_gap_says_why() -> None:
    torch.manual_seed(0)
    target = Target(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), CrossEntropy())
    records = Records(torch.randn(40, 4), torch.arange(40) % 2, classes=("a", "b"))
    rows = gaps(subject_of(target, records, samples=8), sigma=0.3, attacked=4)
    assert (rows["0"].reason or "").startswith("no floor: ReLU 1 has a kink")
    assert rows["2"].status == "measured"
    unplayed = gaps(subject_of(target, records, samples=8), sigma=0.3, attacked=0)
    assert "--attacked 16" in (unplayed["2"].reason or "")


def test_what_is_attacked_is_what_leaves() -> None:
    """Clipped together, averaged over the batch and over the noise's deviation, by autograd."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    view, layers = (
        FunctionalModel.of(Target(model, CrossEntropy())),
        layers_of(model, with_bias=True),
    )
    names = tuple(name for layer in layers for name in layer.parameter_names)
    record, label = torch.randn(4, dtype=torch.float64), torch.tensor(1)
    loss = nn.functional.cross_entropy(model(record[None]), label[None])
    parts = torch.autograd.grad(loss, list(model.parameters()))
    whole = torch.cat([part.flatten() for part in parts])
    for clip, shrunk in ((None, 1.0), (0.1, 0.1 / float(whole.norm())), (1e9, 1.0)):
        release = Release(names, 4, 0.5, clip=clip)
        found = sent(view, [layers[1]], [release])(record, label)
        expected = torch.cat([part.flatten() for part in parts[2:]]) * shrunk / (4 * 0.5)
        torch.testing.assert_close(found, expected)
    tied = Release(names, 4, 0.5, clip=1.0, of_records=False)
    with pytest.raises(NotApplicable, match="clipped as a whole"):
        sent(view, layers, [tied])


def test_laplace_noise_is_that_of_a_laplace_law() -> None:
    subject = linear()
    view = FunctionalModel.of(subject.target, dtype=torch.float64)
    (layer,) = subject.layers
    prior = GaussianPrior.fitted(subject.records.inputs)
    for law, kurtosis in (("gaussian", 3.0), ("laplace", 6.0)):
        release = Release(layer.parameter_names, 1, 1.0, law)  # type: ignore[arg-type]
        attacked = AttackedRecords([(view, 1)], prior, torch.zeros(1), torch.zeros(1), [release], 0)
        noise = attacked._noise(torch.zeros(60_000, 3), [layer], torch.Generator().manual_seed(0))
        variance = {"gaussian": 1.0, "laplace": 2.0}[law]
        assert float(noise.square().mean()) == pytest.approx(variance, rel=0.03)
        assert float((noise**4).mean()) == pytest.approx(kurtosis * variance**2, rel=0.1)


@pytest.mark.parametrize("spectrum", [[1.0], [4.0, 1.0, 0.25], [1.0, 0.0]])
def test_nats_and_errors_are_two_sides_of_the_rate_distortion_function(
    spectrum: list[float],
) -> None:
    variances = torch.tensor(spectrum, dtype=torch.float64)
    assert nats_shown(1.0, variances) == 0
    assert nats_shown(0.0, variances) == np.inf
    for share in (0.01, 0.2, 0.7, 0.99):
        nats = nats_shown(share, variances)
        assert least_share(nats, variances) == pytest.approx(share, rel=1e-9)
    one = torch.tensor([3.0], dtype=torch.float64)
    assert nats_shown(0.1, one) == pytest.approx(np.log(10) / 2)
    assert least_share(0.0, variances) == pytest.approx(1.0)


def test_no_channel_has_fewer_nats_than_its_error_shows() -> None:
    """Of z + σn: ½ Σ ln(1 + λ/σ²) nats, and the error Σ λ σ²/(λ + σ²)."""
    variances = torch.tensor([4.0, 1.0, 0.25], dtype=torch.float64)
    for sigma in (0.1, 1.0, 3.0):
        nats = float(torch.log1p(variances / sigma**2).sum()) / 2
        share = float((variances * sigma**2 / (variances + sigma**2)).sum() / variances.sum())
        assert nats_shown(share, variances) <= nats
        assert least_share(nats, variances) <= share


def test_a_prior_by_label_has_each_label_s_mean_and_their_common_covariance() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(6000) % 3
    means = torch.tensor([[4.0, 0.0], [0.0, 4.0], [-4.0, -4.0]])
    spread = torch.tensor([[1.0, 0.5], [0.0, 0.5]])
    inputs = means[labels] + torch.randn(6000, 2, generator=generator) @ spread
    prior = GaussianPrior.by_label(inputs, labels)
    for label in range(3):
        own = prior.centres(torch.tensor(label))
        torch.testing.assert_close(own, inputs[labels == label].double().mean(dim=0))
    drawn = prior.of_labels(prior.draw(6000, generator), labels)
    apart = drawn - prior.centres(labels)
    torch.testing.assert_close(
        apart.T @ apart / 6000, (spread.T @ spread).double(), atol=0.1, rtol=0
    )
    assert prior.variance == pytest.approx(1.5, rel=0.1)
    fitted = GaussianPrior.fitted(inputs)
    assert torch.equal(fitted.centres(labels), fitted.mean)
    assert fitted.variance > 15


def test_floors_and_attacks_are_about_the_means_of_labels() -> None:
    subject = classes()
    row = gaps(subject, sigma=0.5, attacked=64, prior="by-label")[None]
    assert row.interval is not None
    assert row.interval[0] <= 0.02
    floor, fitted = row.details["floor"], gaps(subject, sigma=0.5, attacked=4)[None].details
    assert isinstance(floor, float)
    assert 0 < floor < 1
    variance, whole = row.details["prior_variance"], fitted["prior_variance"]
    assert isinstance(variance, float)
    assert isinstance(whole, float)
    assert variance < whole / 2
    with pytest.raises(NotApplicable, match="no classes"):
        gaps(linear(), sigma=0.5, prior="by-label")


def classes() -> Subject:
    """Records whose means by label are far apart, before a network of one smooth layer."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 2
    inputs = torch.randn(90, 4, generator=generator) + 4.0 * labels[:, None]
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    records = Records(inputs, labels, classes=("a", "b"))
    return subject_of(Target(model, CrossEntropy()), records, samples=64)


def test_rounds_with_fresh_noise_tell_as_much_as_their_mean() -> None:
    """Four updates at one checkpoint: every number is that of one under half the noise."""
    target = Target(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), CrossEntropy())
    generator = torch.Generator().manual_seed(0)
    records = Records(
        torch.randn(60, 4, generator=generator), torch.arange(60) % 2, classes=("a", "b")
    )
    clip = {"attacked": 8, "batch_size": 1}
    for kind in ("gaussian", "laplace"):
        four, half = (
            rows_by(Floor)(
                subject_of(
                    target,
                    records,
                    samples=16,
                    defenses=(parse_defense(f"dp:clip=1,sigma={sigma},noise={kind}"),),
                ),
                **clip,
                rounds=rounds,
            )
            for rounds, sigma in ((4, 0.4), (1, 0.2))
        )
        assert {row.metric for row in four} == {"mse_share", "nats", "rero", "gap"}
        for one, other in zip(four, half, strict=True):
            assert one.details["updates"] == 4
            if kind == "gaussian" or one.metric not in {"gap", "rero"}:
                assert one.value == pytest.approx(other.value, rel=1e-6)


def test_updates_of_several_checkpoints_add_up() -> None:
    """Three rounds of two linear models, the newer with one more: the exact error of all three."""
    subject, sigma = linear(64), 0.3
    older = Shifted()
    with torch.no_grad():
        older.get_buffer("fixed").mul_(torch.tensor([[2.0], [-1.0], [0.5]]))
    both = replace(subject, targets=(Target(older, MeanSquaredError()), *subject.targets))
    prior = GaussianPrior.fitted(subject.records.inputs)
    covariance = prior.axes.mT @ torch.diag(prior.variances) @ prior.axes
    precision = torch.linalg.inv(covariance)
    for target, count in zip(both.targets, (1, 2), strict=True):
        slope = 2 / 3 * target.model.get_buffer("fixed").double()
        precision += count * slope.mT @ slope / sigma**2
    exact = float(torch.linalg.inv(precision).trace()) / prior.variance
    rows = rows_by(Floor)(both, sigma=sigma, rounds=3, attacked=128)
    assert all(not row.variant for row in rows)
    found = {row.metric: row for row in rows if row.layer is None}
    assert found["mse_share"].value == pytest.approx(exact, rel=1e-6)
    ends = found["gap"].details["attack_low"], found["gap"].details["attack_high"]
    assert ends[0] <= exact <= ends[1]  # type: ignore[operator]
    newest = rows_by(Floor)(both, sigma=sigma, rounds=1, attacked=0)
    assert {str(row.variant) for row in newest} == {"{}", "{'round': 1}"}
