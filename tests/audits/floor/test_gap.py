"""The gap between floors and measured attacks: closed forms, and why there is none."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from audits.floor.dense import dense_covariance, gradient_of, network, released
from subjects import rows_by, subject_of
from torch import Tensor, nn

from gradaudit.audits.floor import Floor
from gradaudit.audits.floor.playing import AttackedRecords, sent
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.rate_distortion import least_share, nats_shown
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


def test_laplace_noise_is_that_of_a_laplace_law() -> None:
    subject, zeros = linear(), torch.zeros(1)
    view = FunctionalModel.of(subject.target, dtype=torch.float64)
    prior = GaussianPrior.fitted(subject.records.inputs)
    for law, variance, kurtosis in (("gaussian", 1.0, 3.0), ("laplace", 2.0, 6.0)):
        release = released(subject.layers, 1, 1.0, law)
        attacked = AttackedRecords([(view, 1)], prior, zeros, zeros, [release], 0)
        draws = torch.Generator().manual_seed(0)
        noise = attacked._noise(torch.zeros(60_000, 3), subject.layers, draws)
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


def exact(subject: Subject, sigma: float, *models: nn.Module) -> float:
    """The error of the posterior's mean over the prior's variance, by dense matrices."""
    prior = GaussianPrior.fitted(subject.records.inputs)
    precision = torch.linalg.inv(dense_covariance(prior))
    for model in models:
        slope = 2 / 3 * model.get_buffer("fixed").double()
        precision += slope.mT @ slope / sigma**2
    return float(torch.linalg.inv(precision).trace()) / prior.variance


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.05, 0.5])
def test_a_linear_update_leaves_no_gap(sigma: float) -> None:
    """The floor is the exact error, so the gap's interval holds zero; the ends are of one axis."""
    subject = linear(16)
    row = gaps(subject, sigma=sigma, attacked=128)[None]
    error, found = exact(subject, sigma, subject.target.model), numbers(row.details)
    assert found["floor"] == pytest.approx(error, rel=1e-6)
    assert row.interval is not None
    assert row.interval[0] <= 0 <= row.interval[1]
    low, high = found["attack_low"], found["attack_high"]
    assert low <= error <= high
    assert high - low < 0.35 * error
    assert row.interval[1] - row.interval[0] == pytest.approx(high - low)
    assert 0 < found["nats_shown"] < found["nats_most"]


@pytest.mark.slow
def test_updates_of_several_checkpoints_add_up() -> None:
    """Three rounds of two linear models, the newer with one more: the exact error of all three."""
    subject, older = linear(16), Shifted()
    older.get_buffer("fixed").mul_(torch.tensor([[2.0], [-1.0], [0.5]]))
    both = replace(subject, targets=(Target(older, MeanSquaredError()), *subject.targets))
    newer = subject.target.model
    error = exact(subject, 0.3, older, newer, newer)
    rows = rows_by(Floor)(both, sigma=0.3, rounds=3, attacked=64)
    assert all(not row.variant for row in rows)
    found = {row.metric: row for row in rows if row.layer is None}
    assert found["mse_share"].value == pytest.approx(error, rel=1e-6)
    ends = numbers(found["gap"].details)
    assert ends["attack_low"] <= error <= ends["attack_high"]
    newest = rows_by(Floor)(both, sigma=0.3, rounds=1, attacked=0)
    assert {str(row.variant) for row in newest} == {"{}", "{'round': 1}"}


def classes(kind: type[nn.Module] = nn.Tanh, apart: float = 0.0, **more: Any) -> Subject:
    """Records of two labels, whose means may be far apart, before a network of two layers."""
    labels, generator = torch.arange(90) % 2, torch.Generator().manual_seed(0)
    inputs = torch.randn(90, 4, generator=generator) + apart * labels[:, None]
    records = Records(inputs, labels, classes=("a", "b"))
    model = network(4, 3, 2, kind=kind).float()
    return subject_of(Target(model, CrossEntropy()), records, **{"samples": 8, **more})


@pytest.mark.slow
def test_where_there_is_no_floor_or_no_attack_the_gap_says_why() -> None:
    rows = gaps(classes(nn.ReLU), sigma=0.3, attacked=4)
    assert (rows["0"].reason or "").startswith("no floor: ReLU 1 has a kink")
    assert rows["2"].status == "measured"
    unplayed = gaps(classes(nn.ReLU), sigma=0.3, attacked=0)
    assert "--attacked 16" in (unplayed["2"].reason or "")


def test_what_is_attacked_is_what_leaves() -> None:
    """Clipped together, averaged over the batch and over the noise's deviation, by autograd."""
    model = network(4, 3, 2)
    layers, view = (
        layers_of(model, with_bias=True),
        FunctionalModel.of(Target(model, CrossEntropy())),
    )
    record, label = torch.linspace(-1, 1, 4, dtype=torch.float64), torch.tensor(1)
    whole = gradient_of(model)(record, label)
    own = whole[-layers[1].parameters :] / (4 * 0.5)
    for clip, shrunk in ((None, 1.0), (0.1, 0.1 / float(whole.norm())), (1e9, 1.0)):
        update = sent(view, [layers[1]], [released(layers, 4, 0.5, clip=clip)])
        torch.testing.assert_close(update(record, label, torch.zeros(0)), own * shrunk)


@pytest.mark.slow
def test_floors_and_attacks_are_about_the_means_of_labels() -> None:
    subject = classes(apart=4.0, samples=64)
    row = gaps(subject, sigma=0.5, attacked=16, prior="by-label")[None]
    assert row.interval is not None
    assert row.interval[0] <= 0.02
    found = numbers(row.details)
    assert 0 < found["floor"] < 1
    assert found["prior_variance"] < GaussianPrior.fitted(subject.records.inputs).variance / 2
    with pytest.raises(NotApplicable, match="no classes"):
        gaps(linear(), sigma=0.5, prior="by-label")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "attacked"), [("gaussian", 4), ("laplace", 0)])
def test_rounds_with_fresh_noise_tell_as_much_as_their_mean(kind: str, attacked: int) -> None:
    """Four updates at one checkpoint: every number is that of one under half the noise."""
    noises = [parse_defense(f"dp:clip=1,sigma={sigma},noise={kind}") for sigma in (0.4, 0.2)]
    four, half = (
        rows_by(Floor)(classes(defenses=(noise,), show=("0",)), attacked=attacked, rounds=rounds)
        for rounds, noise in zip((4, 1), noises, strict=True)
    )
    assert {row.metric for row in four} == {"mse_share", "nats", "rero", "gap"}
    for one, other in zip(four, half, strict=True):
        assert one.details["updates"] == 4
        if kind == "gaussian" or one.metric in ("mse_share", "nats"):
            assert one.value == pytest.approx(other.value, rel=1e-6)


def numbers(details: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among a row's details."""
    return {name: one for name, one in details.items() if isinstance(one, float)}
