import gc
import itertools
import math
import os
import random
import secrets
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from dp_subject import clip, hypotheses

from gradaudit.dp.degenerate import (
    Verdict,
    _balance,
    _digest,
    _neighbours,
    _period,
    verdict_without_trials,
    watched_randomness,
)
from gradaudit.dp.hypotheses import Hypotheses
from gradaudit.dp.mechanisms import DefenseMechanism, FileMechanism, Mechanism
from gradaudit.dp.mechanisms.clipped_noise import ClippedNoise
from gradaudit.errors import AuditError

SEED = 3
ELEMENTS = 80


def from_file(function: object) -> FileMechanism:
    return FileMechanism(function, "f.py:m")  # type: ignore[arg-type]


def noise(generator: torch.Generator | None, *shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (ELEMENTS,)), generator=generator)


def honest(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return clip(gradients, 1).sum(0) + noise(generator)


def sign(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return gradients.sum(0).sign()


def constant(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.ones(ELEMENTS)


def own_seed(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return gradients.sum(0) + noise(torch.Generator().manual_seed(0))


def given_seed(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return gradients.sum(0) + noise(generator.manual_seed(7))


def global_seed(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    torch.default_generator.manual_seed(7)
    return gradients.sum(0) + noise(None)


def numpy_seed(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return gradients.sum(0) + torch.from_numpy(np.random.default_rng(0).normal(size=ELEMENTS))


def one_number(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return gradients.sum(0) + noise(generator, 1)


class RoundAgain:
    """Seeds by the number of the step, which comes round."""

    def __init__(self, period: int = 5, *, given: bool = False) -> None:
        self.step, self.period, self.given = 0, period, given

    def __call__(self, gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        self.step += 1
        seeded = generator if self.given else torch.Generator()
        return gradients.sum(0) + noise(seeded.manual_seed(self.step % self.period))


def coin(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Randomised response that nearly always tells the truth."""
    truth = gradients.sum(0).sign()
    return truth if torch.rand((), generator=generator) < 1 - 1e-6 else -truth


def sparse(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Signs of which a few are flipped now and then."""
    flips = torch.rand(ELEMENTS, generator=generator) < 0.02
    return torch.where(flips, -1.0, 1.0) * gradients.sum(0).sign()


def uneven(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A few elements far louder than the others."""
    loud = torch.ones(ELEMENTS)
    loud[:3] = 1e8
    return gradients.sum(0) + loud * noise(generator)


def empty_batch(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Poisson sampling that mostly leaves nothing to release."""
    return honest(gradients, generator) * float(torch.rand((), generator=generator) < 0.2)


@pytest.mark.parametrize(
    "function",
    [sign, own_seed, given_seed, global_seed, numpy_seed, one_number, RoundAgain()],
    ids=lambda function: getattr(function, "__name__", "round_again"),
)
def test_what_repeats_is_judged_infinite(function: object) -> None:
    verdict = verdict_without_trials(from_file(function), hypotheses(1.0, elements=ELEMENTS), SEED)
    assert verdict is not None
    assert verdict.epsilon == math.inf
    expected = "1000 of 1000 releases repeat bit for bit", "noise of 32 releases spans 1 of 80 dim"
    assert verdict.reason.removeprefix("the ").startswith(expected)


@pytest.mark.parametrize(("period", "repeats"), [(8, True), (9, False)])
def test_what_comes_round_within_half_of_the_looks_repeats(period: int, repeats: bool) -> None:
    """And the state of the generator with it."""
    mechanism = from_file(RoundAgain(period, given=True))
    verdict = verdict_without_trials(mechanism, hypotheses(1.0, elements=ELEMENTS), SEED)
    assert (verdict is not None) == repeats


@pytest.mark.parametrize("function", [honest, coin, sparse, empty_batch, uneven])
def test_what_is_random_is_not_judged(function: object) -> None:
    for seed in range(3):
        played = hypotheses(1.0, elements=ELEMENTS)
        assert verdict_without_trials(from_file(function), played, seed) is None


def loud_or_quiet(generator: torch.Generator) -> torch.Tensor:
    return torch.tensor(1e4 if torch.rand((), generator=generator) < 0.5 else 1.0)


def power_law(generator: torch.Generator) -> torch.Tensor:
    return torch.rand((), generator=generator).clamp(min=1e-6) ** -2


def far_apart(generator: torch.Generator) -> torch.Tensor:
    return 10.0 ** torch.randint(0, 20, (), generator=generator)


def student(generator: torch.Generator) -> torch.Tensor:
    """The scale that makes the multivariate Cauchy law of a normal vector."""
    return 1 / torch.randn((), generator=generator).abs()


@pytest.mark.parametrize("scale", [loud_or_quiet, power_law, far_apart, student])
@pytest.mark.parametrize("elements", [60, 400])
def test_a_common_random_scale_is_not_missing_noise(scale: object, elements: int) -> None:
    def scaled(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return gradients.sum(0) + scale(generator) * noise(generator, elements)  # type: ignore[operator]

    played = hypotheses(1.0, elements=elements)
    for seed in range(8):
        assert verdict_without_trials(from_file(scaled), played, seed) is None


@pytest.mark.parametrize("power", [-1.0, -2.0, -8.0])
def test_heavy_tails_in_each_element_are_not_missing_noise(power: float) -> None:
    def heavy(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        uniform = torch.rand(ELEMENTS, generator=generator, dtype=torch.float64).clamp(min=1e-4)
        return gradients.sum(0) + uniform**power * noise(generator).sign()

    played = hypotheses(1.0, elements=ELEMENTS)
    for seed in range(8):
        assert verdict_without_trials(from_file(heavy), played, seed) is None


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_missing_noise_is_seen_at_any_scale(scale: float) -> None:
    def plane(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        along = torch.linspace(-1, 1, ELEMENTS)
        return gradients.sum(0) + scale * (noise(generator, 1) + noise(generator, 1) * along)

    verdict = verdict_without_trials(from_file(plane), hypotheses(1.0, elements=ELEMENTS), SEED)
    assert verdict is not None
    assert (verdict.epsilon, "spans 2 of 80" in verdict.reason) == (math.inf, True)


@pytest.mark.parametrize(("elements", "told"), [(59, False), (60, True)])
def test_noise_is_missed_from_two_elements_a_difference_on(elements: int, told: bool) -> None:
    """Of 16 looks at either hypothesis there are 15 differences each."""

    def line(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return gradients.sum(0) + noise(generator, 1) * torch.linspace(1, 2, elements)

    verdict = verdict_without_trials(from_file(line), hypotheses(1.0, elements=elements), SEED)
    assert (verdict is not None) == told


@pytest.mark.parametrize(("noisy", "told"), [(72, False), (73, True)])
def test_noise_is_missed_only_where_most_elements_have_some(noisy: int, told: bool) -> None:
    """More than nine tenths of 80; the others stand still, as those of a sparse law may."""
    along = torch.linspace(1, 2, ELEMENTS) * (torch.arange(ELEMENTS) < noisy)

    def line(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return gradients.sum(0) + noise(generator, 1) * along

    verdict = verdict_without_trials(from_file(line), hypotheses(1.0, elements=ELEMENTS), SEED)
    assert (verdict is not None) == told


@pytest.mark.parametrize("scale", [None, loud_or_quiet, power_law, student])
def test_noise_along_the_gap_is_none_in_other_directions_but_hides_it(scale: object) -> None:
    """However rounding tilts the direction that is found."""
    played = hypotheses(1.0, elements=ELEMENTS)
    gap = (played.alternatives[0] - played.null).float()

    def along_the_gap(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        loud = scale(generator) if scale else 1  # type: ignore[operator]
        return gradients.sum(0) + loud * noise(generator, 1) * gap

    for seed in range(10):
        assert verdict_without_trials(from_file(along_the_gap), played, seed) is None


@pytest.mark.parametrize("faint", [1e-4, 1e-3])
def test_faint_noise_in_all_directions_is_noise(faint: float) -> None:
    """Above rounding, and far below that along a line."""

    def line(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        loud = noise(generator, 1) * torch.linspace(1, 2, ELEMENTS)
        return gradients.sum(0) + loud + faint * noise(generator)

    played = hypotheses(1.0, elements=ELEMENTS)
    assert verdict_without_trials(from_file(line), played, SEED) is None


@pytest.mark.parametrize(("often", "epsilon"), [(2, None), (1, 0.0)])
def test_releases_that_only_some_have_in_common_prove_nothing(
    often: int, epsilon: float | None
) -> None:
    """Under the alternative it alternates, under the null it is always the same, as one of both."""
    step = itertools.count()

    def blinking(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        far = bool(gradients.norm() > 0.5)
        return torch.full((ELEMENTS,), float(far and next(step) % often))

    played = hypotheses(1.0, elements=ELEMENTS)
    verdict = verdict_without_trials(from_file(blinking), played, SEED)
    assert (verdict.epsilon if verdict else None) == epsilon


KEPT = np.random.default_rng(5)
LIE = 1e-5
SOURCES = {
    "a generator of its file's": KEPT.random,
    "fresh generators": lambda: np.random.default_rng().random(),
    "secrets": lambda: secrets.randbelow(10**6) / 10**6,
    "the system": lambda: int.from_bytes(os.urandom(4)) / 2**32,
}


@pytest.mark.parametrize("draw", SOURCES.values(), ids=SOURCES)
def test_randomised_response_on_randomness_of_its_own_is_not_judged(
    draw: Callable[[], float],
) -> None:
    """Though it tells the truth in every release that is looked at: ε is 11.5."""

    def response(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        truth = gradients.sum(0).sign()
        return -truth if draw() < LIE else truth

    assert (
        verdict_without_trials(from_file(response), hypotheses(1.0, elements=ELEMENTS), SEED)
        is None
    )


def test_randomness_that_nobody_sees_shows_in_many_releases() -> None:
    """Each response draws from a generator that C code seeds, and lies in 2 % of releases."""

    def response(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        truth = gradients.sum(0).sign()
        return -truth if random.Random().random() < 0.02 else truth

    for seed in range(3):
        played = hypotheses(1.0, elements=ELEMENTS)
        assert verdict_without_trials(from_file(response), played, seed) is None


@pytest.mark.parametrize("elements", [1, 4, ELEMENTS])
@pytest.mark.parametrize("batched", [True, False])
def test_a_discrete_law_is_not_judged(elements: int, batched: bool) -> None:
    """Rounded noise of few elements, and choices among few vectors, are often released alike."""
    vectors = torch.randn(64, elements, generator=torch.Generator().manual_seed(1))

    def rounded(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return (gradients.sum(0) + 0.3 * noise(generator, elements)).round()

    def chosen(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return vectors[torch.randint(64, (), generator=generator)] + 0 * gradients.sum(0)

    for function in (rounded, chosen):
        if batched:
            function.releases = lambda gradients, count, generator, one=function: torch.stack(  # type: ignore[attr-defined]
                [one(gradients, generator) for _ in range(count)]
            )
        for seed in range(5):
            played = hypotheses(1.0, elements=elements)
            assert verdict_without_trials(from_file(function), played, seed) is None


@pytest.mark.parametrize("elements", [1, 3, 30, 31, 59, 60])
def test_fresh_noise_in_few_elements_is_not_judged(elements: int) -> None:
    def few(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return gradients.sum(0) + noise(generator, elements)

    for seed in range(3):
        played = hypotheses(1.0, elements=elements)
        assert verdict_without_trials(from_file(few), played, seed) is None


@pytest.mark.parametrize(("far", "epsilon"), [(1, 0), (2, math.inf)])
def test_every_alternative_of_what_repeats_is_compared(far: int, epsilon: float) -> None:
    """A release that only tells whether the record lies far off, as the second alternative may."""
    played = hypotheses(1.0, elements=ELEMENTS, values=far)

    def alarm(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return (gradients.sum(0).norm() > 1.5).expand(ELEMENTS).float()

    verdict = verdict_without_trials(from_file(alarm), played, SEED)
    assert verdict is not None
    assert verdict.epsilon == epsilon


def test_a_defense_releases_the_defended_mean() -> None:
    sizes = {"fc.weight": 60, "fc.bias": 20}
    played = hypotheses(1.0, elements=ELEMENTS, companions=3)
    batch = played.batch(played.null)
    mechanism = DefenseMechanism.parse("prune:0.9").laid_out(sizes)
    released = mechanism.release(batch, torch.Generator())
    mean = batch.mean(dim=0)
    for part, whole in zip(released.split([60, 20]), mean.split([60, 20]), strict=True):
        kept = part != 0
        assert kept.sum() == round(0.1 * len(part))
        torch.testing.assert_close(part[kept], whole[kept])
        assert whole[kept].abs().min() >= whole[~kept].abs().max()


def test_a_deterministic_defense_may_hide_a_pair() -> None:
    null = torch.linspace(-1, 1, 10, dtype=torch.float64)
    hidden = Hypotheses(null, 2 * null[None], torch.zeros(0, 10))
    shown = Hypotheses(null, -null[None], torch.zeros(0, 10))
    mechanism = DefenseMechanism.parse("sign").laid_out({"w.weight": 10})
    for played, epsilon in ((hidden, 0), (shown, math.inf)):
        verdict = verdict_without_trials(mechanism, played, SEED)
        assert verdict is not None
        assert verdict.epsilon == epsilon
        assert "deterministic" in verdict.reason


def test_a_release_that_ignores_the_gradient_gives_zero() -> None:
    verdict = verdict_without_trials(from_file(constant), hypotheses(1.0, elements=ELEMENTS), SEED)
    assert verdict is not None
    assert verdict.epsilon == 0


@pytest.mark.parametrize("mechanism", [from_file(honest), ClippedNoise(clip=1, sigma=1)])
def test_equal_gradients_give_zero(mechanism: Mechanism) -> None:
    verdict = verdict_without_trials(mechanism, hypotheses(0.0, elements=ELEMENTS), SEED)
    assert verdict is not None
    assert verdict.epsilon == 0
    assert "gradient is the same" in verdict.reason


def test_no_noise_gives_infinity() -> None:
    verdict = verdict_without_trials(
        ClippedNoise(clip=1, sigma=0), hypotheses(1.0, elements=ELEMENTS), SEED
    )
    assert verdict is not None
    assert verdict.epsilon == math.inf


def test_a_known_mechanism_with_noise_plays() -> None:
    assert (
        verdict_without_trials(
            ClippedNoise(clip=1, sigma=1), hypotheses(1.0, elements=ELEMENTS), SEED
        )
        is None
    )


def test_a_batched_form_that_repeats_its_noise_is_refused() -> None:
    def mechanism(gradients: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return honest(gradients, generator)

    mechanism.releases = lambda gradients, count, generator: honest(gradients, generator).expand(
        count, -1
    )
    with pytest.raises(AuditError, match="repeats one release within a batch"):
        verdict_without_trials(from_file(mechanism), hypotheses(1.0, elements=ELEMENTS), SEED)


class Holder:
    """Keeps generators where a class, a closure or a file may keep them."""

    def __init__(self) -> None:
        self.kept = np.random.default_rng(1)
        self.old = {"here": np.random.RandomState(2)}
        self.python = (random.Random(3),)
        self.torch = torch.Generator().manual_seed(4)


HOLDER = Holder()
DRAWS = {
    "torch": lambda: torch.rand(()),
    "numpy": lambda: np.random.rand(),  # noqa: NPY002
    "python": random.random,
    "an attribute": lambda: HOLDER.kept.random(),
    "a dictionary": lambda: HOLDER.old["here"].rand(),
    "a tuple": lambda: HOLDER.python[0].random(),
    "a generator of torch": lambda: torch.rand((), generator=HOLDER.torch),
    "fresh numpy": lambda: np.random.default_rng().random(),
    "secrets": lambda: secrets.randbelow(5),
    "the system": lambda: os.urandom(4),
    "random.SystemRandom": lambda: random.SystemRandom().random(),
}


@pytest.fixture
def whole_heap() -> Iterator[None]:
    """What was there before the first test is searched too."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("whole_heap")
def test_a_draw_from_anywhere_changes_the_state() -> None:
    given = torch.Generator()
    with watched_randomness(given) as state:
        assert state() == state()
        for name, draw in {**DRAWS, "given": lambda: torch.rand((), generator=given)}.items():
            before = state()
            draw()
            assert state() != before, name


def test_watching_leaves_the_sources_as_they_were() -> None:
    sources = os.urandom, random._urandom  # type: ignore[attr-defined]
    with watched_randomness(torch.Generator()):
        assert os.urandom is not sources[0]
    assert (os.urandom, random._urandom) == sources  # type: ignore[attr-defined]


def test_a_clip_that_hides_the_pair_gives_zero() -> None:
    null = torch.ones(4, dtype=torch.float64)
    hidden = Hypotheses(null, 2 * null[None], torch.zeros(0, 4))
    verdict = verdict_without_trials(ClippedNoise(clip=1, sigma=1), hidden, SEED)
    assert verdict == Verdict("the noiseless release is the same with either value", 0.0)


def test_elements_and_differences_are_brought_to_one_size() -> None:
    """A table of rank one in size: each element and each difference has a scale of its own."""
    signs = torch.tensor([[1.0, -1, 1, 1], [-1, -1, 1, -1], [1, 1, -1, 1]], dtype=torch.float64)
    by_row = torch.tensor([[1.0], [1e6], [1e-3]], dtype=torch.float64)
    by_element = torch.tensor([1.0, 1e4, 1e-5, 3.0], dtype=torch.float64)
    found = _balance(signs * by_row * by_element)
    torch.testing.assert_close(found[0] * found[1], by_row * by_element * 4**0.5)
    dead = _balance(torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64))
    assert dead[0].tolist() == [1.0, math.inf]


def test_neighbours_are_next_in_the_size_of_their_noise() -> None:
    centre = torch.tensor([10.0, -3.0], dtype=torch.float64)
    away = torch.tensor([[4.0, 0], [0, 1], [0, 0], [-2, 0], [0, -8]], dtype=torch.float64)
    before, after = _neighbours(centre + away)
    assert torch.equal(before, centre + away[[2, 1, 3, 0]])
    assert torch.equal(after, centre + away[[1, 3, 0, 4]])


@pytest.mark.parametrize(
    ("releases", "period"),
    [("aaaaaaaa", 1), ("abababab", 2), ("abcdefgh" * 2, 8), ("abcdefghi" * 2, None)],
)
def test_a_period_is_the_shortest_up_to_half_of_the_looks(
    releases: str, period: int | None
) -> None:
    assert _period([letter.encode() for letter in releases]) == period


def test_releases_are_told_apart_by_every_bit_but_the_sign_of_zero() -> None:
    release = torch.tensor([0.0, 1.0, -2.0])
    assert _digest(release) == _digest(torch.tensor([-0.0, 1.0, -2.0]).double())
    assert _digest(release) != _digest(release.nextafter(torch.tensor(math.inf)))
    assert _digest(release) != _digest(-release)
