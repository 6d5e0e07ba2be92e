import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from gradaudit.audits.dp_audit.game.hypotheses import CommonNoise, releases_interleaved
from gradaudit.audits.dp_audit.mechanisms import (
    FileMechanism,
    Mechanism,
    finite,
    load_mechanism,
    mechanisms,
)
from gradaudit.audits.dp_audit.mechanisms.clipped_noise import ClippedNoise
from gradaudit.errors import AuditError, UsageError
from gradaudit.gradients.noise import _laplace, clipped, draw_noise

ELEMENTS = 37  # no whole group of the generator's
PLACES = ("record", "sum", "mean", "release")


def gradients(records: int, elements: int = ELEMENTS) -> torch.Tensor:
    scale = torch.linspace(0.1, 2, records)[:, None]
    return torch.randn(records, elements, generator=seeded(records)) * scale


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mean_by_definition(per_sample: torch.Tensor, clip: float, per: str) -> np.ndarray:
    rows = per_sample.double().numpy()
    if per == "release":
        mean = rows.mean(axis=0)
        return mean / max(1, np.linalg.norm(mean) / clip)
    return sum(row / max(1, np.linalg.norm(row) / clip) for row in rows) / len(rows)


def test_clipping_is_exact_and_leaves_small_gradients_alone() -> None:
    given = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[1.2, 1.6], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(clipped(given, 2.0), expected, rtol=1e-15, atol=0)
    assert torch.equal(clipped(given, math.inf), given)


@pytest.mark.parametrize("per", PLACES)
@pytest.mark.parametrize("records", [1, 5])
def test_noiseless_release_is_the_definition(per: str, records: int) -> None:
    given = gradients(records).double()
    mechanism = ClippedNoise(clip=1.5, sigma=0.7, per=per)
    expected = mean_by_definition(given, 1.5, per)
    np.testing.assert_allclose(mechanism.mean(given), expected, rtol=1e-12)
    variants = torch.stack([given[0], 3 * given[0], -given[0]])
    batched = mechanism.noiseless(variants, given[1:])
    for variant, found in zip(variants, batched, strict=True):
        whole = torch.cat([variant[None], given[1:]])
        np.testing.assert_allclose(found, mean_by_definition(whole, 1.5, per), rtol=1e-12)


@pytest.mark.parametrize(
    ("per", "noise", "records", "scale"),
    [
        ("sum", "gaussian", 4, 0.6 / 4),
        ("record", "gaussian", 4, 0.6 / 2),
        ("mean", "gaussian", 4, 0.6),
        ("release", "gaussian", 4, 0.6),
        ("record", "gaussian", 1, 0.6),
        ("sum", "laplace", 4, 0.6 / 4),
        ("release", "laplace", 4, 0.6),
        ("record", "laplace", 1, 0.6),
    ],
)
def test_noise_follows_its_law(per: str, noise: str, records: int, scale: float) -> None:
    given = gradients(records)
    mechanism = ClippedNoise(clip=1.5, sigma=0.6, noise=noise, per=per)
    released = mechanism.releases(given, 400, seeded(1)).double().numpy()
    residuals = (released - mean_by_definition(given, 1.5, per)) / scale
    law = {"gaussian": "norm", "laplace": "laplace"}[noise]
    assert kstest(residuals.ravel(), law).pvalue > 1e-3
    assert abs(np.corrcoef(residuals[:-1].ravel(), residuals[1:].ravel())[0, 1]) < 0.03
    assert mechanism.law(records).scale == pytest.approx(scale)


def test_batched_releases_are_single_ones_in_a_row() -> None:
    given = gradients(3)
    for noise in ("gaussian", "laplace"):
        mechanism = ClippedNoise(clip=1, sigma=1, noise=noise)
        together = mechanism.releases(given, 12, seeded())
        one = seeded()
        alone = [mechanism.release(given, one) for _ in range(12)]
        torch.testing.assert_close(together, torch.stack(alone), rtol=0, atol=0)


def test_laplace_noise_is_finite_and_fair() -> None:
    ends = torch.tensor([0.0, 0.5 - 2**-24, 0.5, 1 - 2**-24])
    found = _laplace(ends)
    assert found.isfinite().all()
    torch.testing.assert_close(found, -found.flip(0))


def test_noise_is_drawn_in_the_type_asked_for() -> None:
    like = torch.zeros(5, dtype=torch.float64)
    assert draw_noise("gaussian", like, 3, seeded()).dtype == torch.float64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp:clip=0,sigma=1", "clip=0"),
        ("dp:clip=1,sigma=-1", "sigma=-1"),
        ("dp:clip=1", "no sigma; write dp:clip=1,sigma=1"),
        ("dp:clip=1,sigma=1,per=batch", "per='batch' is not one of"),
        ("dp:clip=1,sigma=1,noize=laplace", "did you mean 'noise'"),
        ("dp:clip", "'clip' is no option"),
        ("opacs:clip=1,sigma=1", "did you mean 'opacus'"),
        ("dq:clip=1,sigma=1", "no mechanism 'dq'; there are: dp"),
        ("nowhere.py:mechanism", "cannot be read"),
    ],
)
def test_a_wrong_mechanism_is_told_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_mechanism(text)
    assert "\n" not in str(caught.value)


class Lapsum(Mechanism):
    """A mean with noise of a scale."""

    name = "lapsum"
    summary = "Noise of a scale."
    example = "lapsum:clip=1,scale=2"

    def __init__(self, clip: float, scale: float, rounds: int = 1) -> None:
        self.clip, self.scale, self.rounds = clip, scale, rounds

    def release(self, per_sample_gradients: torch.Tensor, generator: object) -> torch.Tensor:
        return per_sample_gradients.mean(dim=0)


def test_options_of_a_mechanism_are_the_parameters_of_its_constructor() -> None:
    made = Lapsum.parse("lapsum:scale=0.5,clip=2")
    assert (made.clip, made.scale, made.rounds) == (2.0, 0.5, 1)
    assert isinstance(made.clip, float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lapsum:clip=1", "no scale; write lapsum:clip=1,scale=2"),
        ("lapsum:clip=1,scale=1,sigma=2", "unknown option 'sigma'; it takes clip, scale, rounds"),
        ("lapsum:clip=1,scale=1,rounds=.5", r"option rounds='\.5' is not a whole number"),
    ],
)
def test_a_wrong_option_of_a_mechanism_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^--mechanism {text}: {message}"):
        Lapsum.parse(text)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_release_that_is_not_finite_is_counted(value: float) -> None:
    mechanism, batch = Lapsum.parse("lapsum:clip=2,scale=1"), gradients(2)
    releases = torch.zeros(3, ELEMENTS)
    assert finite(mechanism, [batch], releases) is releases
    releases[1, 4] = value
    told = r"--mechanism lapsum:clip=2,scale=1 \(test_mechanisms\.py, line \d+\): release 12 has a"
    with pytest.raises(AuditError, match=told):
        finite(mechanism, [batch], releases, before=10)
    assert finite(mechanism, [batch, batch / 0], releases) is releases  # the model has diverged


def test_releases_of_a_class_are_expected_to_be_finite() -> None:
    class Broken(Lapsum):
        def release(self, per_sample_gradients: torch.Tensor, generator: object) -> torch.Tensor:
            return per_sample_gradients.mean(dim=0) * math.nan

    mechanism, batch = Broken(1, 1), gradients(2)
    mechanism.description = "broken"
    with pytest.raises(AuditError, match="release 1 has a value that is not finite"):
        list(releases_interleaved(mechanism, [batch], np.zeros(4, int), seeded(), 1 << 20))
    with pytest.raises(AuditError, match="release 1 has a value that is not finite"):
        CommonNoise(mechanism, 0).of(batch)


def test_a_class_in_a_file_is_named_by_an_entry_point(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("class Own:\n    pass\n")
    with pytest.raises(UsageError, match=r"is a class, .* entry point .* gradaudit\.dp\.mech"):
        load_mechanism(f"{tmp_path}/own.py:Own")


def test_a_mechanism_is_read_from_its_spec() -> None:
    found = load_mechanism("dp:clip=2,sigma=0.1,noise=laplace,per=release")
    assert isinstance(found, ClippedNoise)
    assert (found.clip, found.sigma, found.noise, found.per) == (2, 0.1, "laplace", "release")
    assert {"dp", "opacus"} <= set(mechanisms())


def test_a_mechanism_from_a_file_works_on_its_own_copy(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "def mechanism(gradients, generator):\n"
        "    gradients.clamp_(-1, 1)\n"
        "    return gradients.sum(0) + torch.randn(gradients.shape[1], generator=generator)\n"
    )
    found = load_mechanism(f"{file}:mechanism", "gaussian")
    assert isinstance(found, FileMechanism)
    assert found.noise == "gaussian"
    given = 3 * gradients(2)
    before = given.clone()
    released = found.releases(given, 4, seeded())
    assert torch.equal(given, before)
    noise = torch.randn(ELEMENTS, generator=seeded())
    torch.testing.assert_close(released[0], before.clamp(-1, 1).sum(0) + noise)
    assert len(torch.unique(released, dim=0)) == 4


def test_a_batched_form_is_used_where_there_is_one() -> None:
    def single(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        raise AssertionError("the batched form is there")

    single.releases = lambda gradients, count, generator: gradients.sum(0).expand(count, -1)
    given = gradients(2)
    released = FileMechanism(single, "mine").releases(given, 3, seeded())
    assert torch.equal(released, given.sum(0).expand(3, -1))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda g, r: g, "returned \\(2, 37\\); a released gradient of shape \\(37,\\)"),
        (lambda g, r: 1.0, "returned <class 'float'>"),
        (lambda g, r: g.sum(0) / 0, "not finite"),
        (lambda g, r: g.nothing, "fails with AttributeError"),
    ],
)
def test_a_failing_mechanism_is_told_in_one_line(function: object, message: str) -> None:
    with pytest.raises(AuditError, match=message):
        FileMechanism(function, "f.py:m").release(gradients(2), seeded())  # type: ignore[arg-type]


@pytest.mark.slow
def test_opacus_releases_what_dp_sgd_defines() -> None:
    pytest.importorskip("opacus")
    mechanism = load_mechanism("opacus:clip=1.5,sigma=0.6").expecting(4)
    given = gradients(4)
    released = mechanism.releases(given, 400, seeded(2)).double().numpy()
    residuals = (released - mean_by_definition(given, 1.5, "sum")) / (0.6 / 4)
    assert kstest(residuals.ravel(), "norm").pvalue > 1e-3
    assert torch.equal(mechanism.release(given, seeded(3)), mechanism.release(given, seeded(3)))
    assert mechanism.foreign


def test_missing_opacus_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus.optimizers", None)
    with pytest.raises(UsageError, match=r"install gradaudit\[opacus\]"):
        load_mechanism("opacus:clip=1,sigma=1")
