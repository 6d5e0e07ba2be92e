"""Canary records in Opacus's steps: what they show of correct runs, and of ten faults of DP-SGD."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("opacus")
pytest.importorskip("dp_accounting")

from command_line import run as command
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer

from gradaudit.audits.dp_audit.law.one_run_bounds import epsilon_one_run
from gradaudit.audits.dp_audit.law.theory import epsilon_composed
from gradaudit.errors import UsageError
from gradaudit.federation.canaries import FILE, CanaryScores
from gradaudit.federation.record_canaries import RecordCanaries, _directions
from gradaudit.integrations.opacus import record_canaries
from gradaudit.report import Report

pytestmark = pytest.mark.slow
RECORDS, RATE, STEPS = 600, 0.1, 120
Batches = Callable[[np.random.Generator], np.ndarray]


def poisson(draws: np.random.Generator) -> np.ndarray:
    return np.flatnonzero(draws.random(RECORDS) < RATE)


def optimizer_of(
    model: nn.Module, kind: type[DPOptimizer] = DPOptimizer, **given: Any
) -> DPOptimizer:
    sgd = torch.optim.SGD(model.parameters(), lr=given.pop("lr", 0.1))
    declared = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": 1}
    return kind(sgd, **{**declared, **given})


@cache
def run(
    kind: type[DPOptimizer] = DPOptimizer,
    *,
    batches: Batches = poisson,
    sigma: float = 1.0,
    count: int = 800,
    passes: int = 1,
    rate: float = 0.1,
    steps: int = STEPS,
    seed: int = 0,
) -> CanaryScores:
    """A training with canaries; ``passes`` backward passes before each step."""
    generator, draws = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    torch.manual_seed(seed)
    inputs = torch.randn(RECORDS, 12, generator=generator)
    labels = torch.randint(0, 5, (RECORDS,), generator=generator)
    model = GradSampleModule(nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 5)))
    given = {"noise_multiplier": sigma, "expected_batch_size": RATE * RECORDS, "lr": rate}
    optimizer = optimizer_of(model, kind, generator=generator, **given)
    with RecordCanaries(optimizer, sampling_rate=RATE, count=count, seed=seed) as canaries:
        for _ in range(steps):
            optimizer.zero_grad()
            for _ in range(passes):
                taken = torch.from_numpy(batches(draws))
                nn.functional.cross_entropy(model(inputs[taken]), labels[taken]).backward()
            optimizer.step()
    return canaries.scores()


def bound(scores: CanaryScores) -> float:
    totals = scores.cosines.sum(axis=0)[:, 0]
    return epsilon_one_run(totals, scores.included, delta=1e-5, alpha=0.05, unit="record")[0].value


def suspicions(scores: CanaryScores) -> str:
    said = scores.facts["suspicions"]
    assert isinstance(said, list)
    return "; ".join(map(str, said))


def truth(sigma: float = 1.0, steps: int = STEPS) -> float:
    return epsilon_composed(sigma, steps, 1e-5, sampling_rate=RATE, relation="remove")


def test_a_correct_run_shows_a_share_of_its_epsilon_and_no_suspicion() -> None:
    scores = run()
    assert suspicions(scores) == ""
    assert truth() / 5 < bound(scores) < truth()
    assert scores.facts["noise_over_declared"] == pytest.approx(1, abs=0.02)
    assert abs(float(str(scores.facts["noise_correlation"]))) < 0.02


def test_a_run_with_much_noise_shows_nothing() -> None:
    assert bound(run(sigma=200.0)) < truth(200.0) + 0.05


def test_every_canary_has_unit_length_and_is_orthogonal_to_the_others() -> None:
    canaries = RecordCanaries(optimizer_of(nn.Linear(10, 7)), sampling_rate=0.5, count=9)
    flat = canaries._rows(np.ones(9, bool)).double()
    assert (flat @ flat.T).numpy() == pytest.approx(np.eye(9), abs=1e-6)
    assert (flat != 0).sum() == 77  # each number of the gradient is one canary's


def test_canaries_of_different_sets_agree_as_little_as_random_directions() -> None:
    places, values = _directions(np.random.default_rng(0), 2048, 1040)
    rows = np.zeros((2048, 1041))
    np.put_along_axis(rows, places, values, axis=1)
    first, second = rows[:1024, :1040], rows[1024:, :1040]
    assert np.abs(first @ first.T - np.eye(1024)).max() < 1e-12
    across = first @ second.T
    assert across.var() == pytest.approx(1 / 1040, rel=0.05)  # as of random directions
    assert np.abs(across).max() < 0.3


def test_more_canaries_show_a_third_of_the_epsilon() -> None:
    """Fresh directions in each step, which is why what canaries agree in does not add up."""
    scores = run(count=6000, steps=80)
    assert suspicions(scores) == ""
    assert truth(steps=80) / 3 < bound(scores) < truth(steps=80)


def test_the_steps_release_what_opacus_makes_of_records_and_canaries() -> None:
    """Without noise what is left of the known records' sum is the canaries that took part."""
    scores = run(sigma=0.0, steps=5, count=50)
    increments = scores.cosines[:, :, 0]
    low, high = increments.min(axis=1, keepdims=True), increments.max(axis=1, keepdims=True)
    assert np.all((np.abs(increments - low) < 1e-2) | (np.abs(increments - high) < 1e-2))
    took_part = increments > (low + high) / 2
    assert not took_part[:, ~scores.included].any()


def test_the_optimizer_is_left_as_it_was() -> None:
    optimizer = optimizer_of(GradSampleModule(nn.Linear(10, 7)))
    with RecordCanaries(optimizer, sampling_rate=0.5, count=9):
        assert "pre_step" in vars(optimizer)
    assert "pre_step" not in vars(optimizer)
    with pytest.raises(UsageError, match="1 to 77 canaries"):
        RecordCanaries(optimizer, sampling_rate=0.5, count=78)


class TooLittleNoise(DPOptimizer):  # type: ignore[misc]
    """Adds a third of the noise that the accountant counts."""

    def add_noise(self) -> None:
        declared, self.noise_multiplier = self.noise_multiplier, self.noise_multiplier / 3
        super().add_noise()
        self.noise_multiplier = declared


class NoClip(DPOptimizer):  # type: ignore[misc]
    """Sums gradients as they are."""

    def clip_and_accumulate(self) -> None:
        norm, self.max_grad_norm = self.max_grad_norm, 1e9
        super().clip_and_accumulate()
        self.max_grad_norm = norm


class ClipOfTheSum(NoClip):
    """Clips the sum of all gradients and none alone."""

    def clip_and_accumulate(self) -> None:
        super().clip_and_accumulate()
        norm = torch.cat([p.summed_grad.flatten() for p in self.params]).norm()
        for p in self.params:
            p.summed_grad *= min(1.0, self.max_grad_norm / float(norm))


class BySampledSize(DPOptimizer):  # type: ignore[misc]
    """Divides by the records that are in the batch."""

    def scale_grad(self) -> None:
        for p in self.params:
            p.grad /= max(1, len(self.grad_samples[0]))


class SameNoise(DPOptimizer):  # type: ignore[misc]
    """Seeds its noise anew in every step."""

    def add_noise(self) -> None:
        self.generator.manual_seed(7)
        super().add_noise()


class BareLayer(DPOptimizer):  # type: ignore[misc]
    """Adds no noise to the last layer."""

    def add_noise(self) -> None:
        super().add_noise()
        for p in self.params[2:]:
            p.grad = p.summed_grad.clone().view_as(p)


class AccumulatesTwice(DPOptimizer):  # type: ignore[misc]
    """Divides several passes' sum by the size of one batch."""

    def scale_grad(self) -> None:
        for p in self.params:
            p.grad /= self.expected_batch_size


class InVain(DPOptimizer):  # type: ignore[misc]
    """Steps without moving a parameter, as where the optimizer holds others than the model."""

    def step(self, closure: Any = None) -> None:
        self.pre_step()


class KeepsUnclippedState(DPOptimizer):  # type: ignore[misc]
    """Steps by a momentum of gradients as they are, besides what it releases."""

    def pre_step(self, closure: Any = None) -> Any:
        self.kept = [g.sum(dim=0) for g in self.grad_samples]
        return super().pre_step(closure)

    def step(self, closure: Any = None) -> Any:
        done = super().step(closure)
        with torch.no_grad():
            for p, raw in zip(self.params, self.kept, strict=True):
                p -= 1e-3 * raw.view_as(p)
        return done


def shuffled(draws: np.random.Generator) -> np.ndarray:
    return draws.permutation(RECORDS)[: int(RATE * RECORDS)]


def test_noise_that_is_too_small_exceeds_what_it_promises() -> None:
    scores = run(TooLittleNoise, count=800)
    assert bound(scores) > 0.9 * bound(run(sigma=1 / 3))
    assert "0.33" in suspicions(scores)
    assert bound(run(TooLittleNoise, sigma=3.0, count=1100)) > truth(3.0)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"kind": NoClip}, "times the declared noise"),
        ({"kind": ClipOfTheSum}, "times the declared noise"),
        ({"kind": BySampledSize}, "times the declared noise"),
        ({"kind": BareLayer}, "times the declared noise"),
        ({"kind": AccumulatesTwice, "passes": 2}, "times the declared noise"),
        ({"kind": SameNoise}, "two steps in a row have the same noise"),
        ({"batches": shuffled}, "differ less than those of Poisson sampling"),
        ({"kind": InVain}, "no parameter moved"),
    ],
    ids=lambda case: getattr(case.get("kind"), "__name__", "") if isinstance(case, dict) else "",
)
def test_a_fault_of_dp_sgd_is_suspected(made: dict[str, Any], said: str) -> None:
    assert said in suspicions(run(**made))


def test_gradients_that_are_not_clipped_are_beyond_any_promise() -> None:
    """Canaries are a hundred times as long as the clip: they stand out at once."""
    scores = run(NoClip, sigma=6.0)
    assert bound(scores) > truth(6.0)


def test_state_that_is_kept_beside_the_release_is_invisible() -> None:
    """What moves parameters past ``p.grad`` is seen by no canary; the docs say so."""
    assert suspicions(run(KeepsUnclippedState)) == ""


def test_passes_that_are_accumulated_as_opacus_does_are_no_fault() -> None:
    assert "times the declared noise" not in suspicions(run(passes=2))


TRAINED = ("dp-audit", "-m", "zoo:mlp?inputs=10&classes=2", "-d", "diabetes", "--mode", "one-run")
OPACUS = ("--mechanism", "opacus:clip=1,sigma=1", "--sampling-rate", "0.1")


def test_the_command_trains_a_model_and_bounds_the_epsilon_of_a_record(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    done = command(*TRAINED, *OPACUS, "--steps", "60", "--claimed-epsilon", "9", "-o", str(file))
    assert done.status == 0, done.err
    report = Report.from_file(file)
    (lower,) = report.select("dp-audit.epsilon_lower", variant={})
    (promise,) = report.select("dp-audit.epsilon_theory")
    assert (lower.details["unit"], lower.details["relation"]) == ("record", "remove")
    assert lower.value is not None
    assert promise.value is not None
    assert 0 < lower.value < promise.value
    assert promise.value == pytest.approx(truth(steps=60))
    assert "warning" not in lower.details


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (OPACUS, "--steps: say how many steps the run of --mode one-run has"),
        (("--mechanism", "dp:clip=1,sigma=1", "--steps", "9"), "trains with --mechanism opacus:"),
        (
            ("--mechanism", "opacus:clip=1,sigma=1,divisor=records", "--steps", "9"),
            "--mode one-run divides by a constant: leave divisor=records out",
        ),
        ((), "train here with --mechanism opacus:clip=C,sigma=S --steps T"),
    ],
)
def test_what_one_run_needs_is_said(words: tuple[str, ...], said: str) -> None:
    done = command(*TRAINED, *words)
    assert done.status == 2
    assert said in done.err


def test_a_bound_above_the_promise_is_warned_of(tmp_path: Path) -> None:
    scores = run(TooLittleNoise, sigma=3.0, count=1100)
    (tmp_path / FILE).write_bytes(scores.packed())
    done = command(*TRAINED, "--canaries", str(tmp_path), "-o", str(tmp_path / "report.json"))
    assert done.status == 0, done.err
    (lower,) = Report.from_file(tmp_path / "report.json").select(
        "dp-audit.epsilon_lower", variant={}
    )
    assert "the run promises an epsilon of 1.53, and exceeds it" in str(lower.details["warning"])


def test_a_users_own_loop_writes_scores_that_the_audit_reads(tmp_path: Path) -> None:
    model = GradSampleModule(nn.Linear(12, 5))
    optimizer = optimizer_of(model, expected_batch_size=10)
    inputs, labels = torch.randn(20, 12), torch.arange(20) % 5
    with record_canaries(optimizer, tmp_path / "run", sampling_rate=0.5, count=50):
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    scores = CanaryScores.read(tmp_path / "run")
    assert (tmp_path / "run" / FILE).is_file()
    assert (scores.unit, scores.cosines.shape) == ("record", (3, 50, 1))
    assert scores.facts["noise_multiplier"] == 1.0
