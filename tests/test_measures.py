"""The exported measures: their doctests, independent values, and that audits call them."""

import doctest
import importlib
import inspect
import math
import sys
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from scipy import linalg, optimize, spatial, special, stats
from sklearn.metrics import roc_auc_score, roc_curve

from gradaudit import measures as m

DELTA = 1e-5


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("name", m.__all__)
def test_every_example_gives_what_it_shows(name: str) -> None:
    function = getattr(m, name)
    module = sys.modules[function.__module__]
    (example,) = doctest.DocTestFinder(recurse=False).find(function, name, globs=vars(module))
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0
    first, *_ = inspect.getdoc(function).splitlines()  # type: ignore[union-attr]
    assert len(first.split()) <= 12


def test_the_page_shows_every_measure() -> None:
    """``test_docs`` runs the snippets."""
    page = (Path(__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
    assert [name for name in m.__all__ if f"measures.{name}(" not in page] == []


CALLERS = {
    "activation_information": "audits.forward.measure:rows_of",
    "advantage": "audits.attack_inference.inference_rows:Scorer.scores",
    "auroc": "audits.vinfo.v_information:macro_auroc",
    "cap": "audits.tradeoff.attacking:cap_interval",
    "clopper_pearson": "audits.observe.certified:_certified",
    "copa_metric": "audits.copa_metric.measure:_c_row",
    "epsilon_gaussian": "audits.dp_audit.law.estimates:gaussian_bound",
    "epsilon_lower": "audits.dp_audit.law.decision:Decision.bound",
    "epsilon_one_run": "audits.dp_audit.one_run:one_run_rows",
    "epsilon_two_tailed": "audits.dp_audit.law.decision:Decision.bound",
    "fano_bound": "audits.attack_inference.inference_rows:ScoredRows._bound",
    "inversion_bound": "attacks.layerwise.fully_connected:under_noise",
    "invert_linear": "attacks.layerwise.recursion:unroll",
    "nadeau_bengio": "audits.vinfo.spread:RecordUse.interval",
    "permutation_p_value": "audits.subspace.comparing:PrincipalAngles.p_value",
    "psnr": "attacks.reconstruction.closeness:scores_of",
    "r_gap": "attacks.reconstruction.r_gap:LeastSquares.solve",
    "rank_deficiency": "ranks.copa_metric:_rank_of_use",
    "ssim": "attacks.reconstruction.closeness:scores_of",
    "subspace_distances": "audits.subspace.distances:SampleGroups.compared",
    "tpr_at_fpr": "audits.attack_record.pair_scores:PairScores._above",
    "v_information": "audits.vinfo.v_information:estimate",
    "van_trees": "audits.floor.van_trees:unit_numbers",
    "log_delta_gaussian": "audits.dp_audit.law.theory:mu_gaussian",
    "best_threshold": "audits.dp_audit.law.decision:pilot_threshold",
    "norms_of": "audits.sensitivity.jacobian_sensitivity:_norms_of",
    "Span": "audits.attack_text.span:span_check",
    "Tally": "audits.vinfo.original:reconstruction_information",
    "over_range": "audits.sensitivity.jacobian_sensitivity:label_sensitivity",
}
"""Where an audit or attack calls each measure, and where the last measures call what audits call.

``mu_gaussian`` inverts epsilon, ``pilot_threshold`` chooses as dp-audit does, sensitivities see
their Jacobians chunk by chunk, and spans and tallies are kept for several questions.
"""


def function_at(place: str) -> FunctionType:
    module, _, path = place.partition(":")
    value: Any = importlib.import_module(f"gradaudit.{module}")
    for name in path.split("."):
        value = getattr(value, name)
    assert isinstance(value, FunctionType)
    return value


def names_in(code: CodeType) -> set[str]:
    """Every name that a function's code reads, of comprehensions in it too."""
    inner = [names_in(each) for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*inner)


def test_audits_call_the_measures_themselves() -> None:
    derived = {
        "reconstruction_information",
        "span_check",
        "mu_gaussian",
        "pilot_threshold",
        "input_sensitivity",
        "label_sensitivity",
    }
    assert derived | set(m.__all__) <= derived | set(CALLERS)
    for name, place in CALLERS.items():
        caller = function_at(place)
        assert name in names_in(caller.__code__), place
        assert caller.__globals__[name] is getattr(m, name, caller.__globals__[name]), place


def upper(hits: int, trials: int, alpha: float) -> float:
    """Clopper and Pearson's limit by the binomial law, solved for the rate."""
    if hits == trials:
        return 1.0
    return float(optimize.brentq(lambda p: stats.binom.cdf(hits, trials, p) - alpha, 0, 1))


def test_clopper_pearson_is_that_of_scipy() -> None:
    for hits, trials in ((0, 7), (3, 40), (40, 40), (93, 100)):
        exact = stats.binomtest(hits, trials).proportion_ci(0.95, "exact")
        assert m.clopper_pearson(hits, trials) == pytest.approx((exact.low, exact.high), abs=1e-9)


@pytest.mark.parametrize("array", [np.asarray, torch.as_tensor])
def test_epsilon_lower_and_two_tailed_follow_from_binomial_laws(array: Any) -> None:
    null, alternative = rng().normal(size=900), rng().normal(1.5, size=800)
    found = m.epsilon_lower(array(null), array(alternative), 1.0, delta=DELTA, alpha=0.1)
    p = upper(int((null >= 1).sum()), 900, 0.05)
    q = upper(int((alternative < 1).sum()), 800, 0.05)
    expected = max(math.log((1 - DELTA - q) / p), math.log((1 - DELTA - p) / q))
    assert found.value == pytest.approx(expected, abs=1e-9)
    tails = m.epsilon_two_tailed(array(null), array(alternative), (-1.0, 2.0), delta=0, alpha=0.1)
    right = int((null < -1).sum() + (alternative >= 2).sum())
    made = right + int((null >= 2).sum() + (alternative < -1).sum())
    rate = optimize.brentq(lambda c: stats.binom.sf(right - 1, made, c) - 0.1, 1e-9, 1 - 1e-9)
    assert tails.value == pytest.approx(math.log(rate / (1 - rate)), abs=1e-7)


def test_a_pilot_chooses_a_threshold_as_good_as_the_laws_own() -> None:
    """Of N(0, 1) against N(2, 1) with 4,000 trials, by the expected numbers of errors."""
    pilots = rng().normal(size=(2, 2000)) + 2 * np.eye(2)[1][:, None]
    chosen = m.pilot_threshold(*pilots, 4000, delta=DELTA)

    def expected(threshold: float) -> float:
        p, q = stats.norm.sf(threshold), stats.norm.cdf(threshold - 2)
        limits = [special.betainccinv(4000 * r + 1, 4000 * (1 - r), 0.025) for r in (p, q)]
        return max(math.log(max(1 - DELTA - b, 1e-9) / a) for a, b in (limits, limits[::-1]))

    best = max(expected(threshold) for threshold in np.linspace(-4, 6, 2001))
    assert expected(chosen) > best - 0.1


def test_epsilon_one_run_inverts_the_binomial_tail_where_delta_is_almost_zero() -> None:
    """40 % of 400 canaries are guessed about, each right with a chance of e^ε/(1 + e^ε)."""
    included = rng().random(400) < 0.5
    scores = np.where(included, 1.0, -1.0) * rng().uniform(0.1, 1, size=400)
    scores[:40] *= -1
    plain, _ = m.epsilon_one_run(scores, included, delta=1e-15, alpha=0.05, unit="record")
    guesses = plain.guesses
    rate = optimize.brentq(
        lambda c: stats.binom.sf(guesses.right - 1, guesses.made, c) - 0.05, 0.5, 1 - 1e-9
    )
    assert plain.value == pytest.approx(math.log(rate / (1 - rate)), abs=1e-6)


@pytest.mark.parametrize("delta", [1e-10, DELTA, 0.1, 0.9])
def test_epsilon_gaussian_solves_its_equation_and_mu_gaussian_is_its_inverse(delta: float) -> None:
    """The equation in the densities' own terms; dp-accounting's value is compared elsewhere."""
    for mu in (2.5, 4.0):
        epsilon = m.epsilon_gaussian(mu, delta)
        beyond = epsilon / mu + mu / 2  # where the likelihood ratio is e^ε
        exact = stats.norm.sf(beyond - mu) - math.exp(epsilon) * stats.norm.sf(beyond)
        assert exact == pytest.approx(delta, rel=1e-6) if epsilon else exact <= delta
    for epsilon in (1e-3, 0.5, 5.0, 500.0):
        mu = m.mu_gaussian(epsilon, delta)
        assert m.epsilon_gaussian(mu, delta) == pytest.approx(epsilon, rel=1e-9)
    with pytest.raises(ValueError, match="0 < epsilon"):
        m.mu_gaussian(0.0, delta)


@pytest.mark.parametrize("array", [np.asarray, torch.as_tensor])
def test_rates_of_scores_are_scikit_learns(array: Any) -> None:
    positive = rng().random(500) < 0.4
    scores = rng().normal(size=500).round(1) + positive
    found = m.auroc(array(scores), array(positive))
    assert found.value == pytest.approx(roc_auc_score(positive, scores))
    false, true, _ = roc_curve(positive, scores, drop_intermediate=False)
    strict = m.tpr_at_fpr(array(scores), array(positive), 0.05)
    assert strict.rate == pytest.approx(true[false <= 0.05].max())
    assert strict.above.sum() == pytest.approx(strict.rate * positive.sum())
    assert m.advantage(0.9, 0.75) == pytest.approx((0.9 - 0.75) / 0.25)


@pytest.mark.parametrize(("shift", "counts"), [(0.0, (30, 60)), (1.0, (20, 20)), (2.5, (40, 25))])
def test_intervals_of_the_auroc_hold_it_as_often_as_they_say(
    shift: float, counts: tuple[int, int]
) -> None:
    generator, truth = rng(), stats.norm.cdf(shift / math.sqrt(2))
    positive = np.arange(sum(counts)) < counts[0]
    held = 0
    for _ in range(400):
        low, high = m.auroc(generator.normal(size=sum(counts)) + shift * positive, positive)[1]
        held += low <= truth <= high
    assert held / 400 >= 0.92


def test_fano_bound_solves_fanos_equation() -> None:
    prior, information = np.array([0.5, 0.3, 0.2]), 0.2
    advantage = m.fano_bound(information, prior)
    error = (1 - advantage) * (1 - 0.5)
    uncertainty = stats.entropy([error, 1 - error]) + error * math.log(2)
    assert uncertainty == pytest.approx(stats.entropy(prior) - information)


def test_subspace_distances_are_those_of_scipys_angles() -> None:
    first, second = (np.linalg.qr(rng().normal(size=(9, 3)) + k)[0] for k in range(2))
    angles = np.sort(linalg.subspace_angles(first, second))
    found = m.subspace_distances(torch.as_tensor(first), second)
    np.testing.assert_allclose(found.angles, angles, atol=1e-12)
    sines = np.sin(angles), np.sin(angles / 2)
    expected = (*map(np.linalg.norm, (angles, sines[0], 2 * sines[1])), angles.max())
    assert (found.grassmann, found.chordal, found.procrustes, found.asimov) == pytest.approx(
        expected
    )
    with pytest.raises(ValueError, match="orthonormal"):
        m.subspace_distances(first, 2 * second)


def test_the_p_value_of_permutations_is_that_of_scipy() -> None:
    sample = rng().normal(size=6) + np.arange(6) % 2
    groups = sample[1::2], sample[::2]
    exact = stats.permutation_test(groups, _gap, alternative="greater", n_resamples=np.inf)
    drawn = exact.null_distribution
    by_hand = (1 + (drawn >= _gap(*groups) - 1e-12).sum()) / (1 + len(drawn))
    assert m.permutation_p_value(_gap(*groups) - 1e-12, drawn) == pytest.approx(by_hand)


def _gap(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.mean(one) - np.mean(other))


def test_rank_deficiency_is_that_of_the_dense_system_of_autograd() -> None:
    """U's rows by autograd: the outputs' derivatives, and the weight gradient's."""
    layer = torch.nn.Conv2d(2, 2, 3, stride=2, padding=1, bias=False).double()
    x, delta = torch.randn(1, 2, 5, 5).double(), torch.randn(1, 2, 3, 3).double()
    by_output = torch.autograd.functional.jacobian(layer, x).reshape(-1, x.numel())

    def weight_gradient(record: torch.Tensor) -> torch.Tensor:
        loss = (layer(record) * delta).sum()
        return torch.autograd.grad(loss, layer.weight, create_graph=True)[0]

    by_weight = torch.autograd.functional.jacobian(weight_gradient, x).reshape(-1, x.numel())
    rank = int(torch.linalg.matrix_rank(torch.cat([by_output, by_weight])))
    found = m.rank_deficiency(layer, (2, 5, 5), delta[0])
    assert (found.value, found.rank.low, found.inputs) == (rank - 50, rank, 50)
    assert m.copa_metric([[rank], [4]], [50, 6]) == pytest.approx([(rank - 50) + 0.5 * (4 - 6)])


def test_r_gap_and_invert_linear_find_a_layers_input() -> None:
    weight, x, delta = rng().normal(size=(2, 4)), rng().normal(size=4), rng().normal(size=2)
    gradient = np.outer(delta, x)
    by_layer = m.invert_linear(torch.as_tensor(gradient), torch.as_tensor(delta))
    np.testing.assert_allclose(by_layer, x)
    system = np.kron(delta[:, None], np.eye(4))
    found = m.r_gap(weight, system, weight @ x, gradient.ravel())
    np.testing.assert_allclose(found.x, x, atol=1e-12)


def test_inversion_bound_holds_the_error_of_every_rows_solution() -> None:
    generator = rng()
    for _ in range(50):
        x, bias = generator.normal(size=5), generator.normal(size=3)
        noise = 0.02 * generator.normal(size=(3, 5)), 0.02 * generator.normal(size=3)
        weight = np.outer(bias, x)
        bound = m.inversion_bound(weight, bias, *noise)
        rows = (weight + noise[0]) / (bias + noise[1])[:, None]
        together = np.linalg.norm(rows - x) / np.linalg.norm(np.tile(x, (3, 1)))
        assert together <= bound.bound


def test_pictures_are_compared_as_scikit_image_does() -> None:
    metrics = pytest.importorskip("skimage.metrics")
    truth, other = rng().random((2, 3, 1, 20, 20))
    ratios, likenesses = m.psnr(truth, other), m.ssim(truth, other)
    for k in range(3):
        pair = truth[k, 0], other[k, 0]
        expected = metrics.peak_signal_noise_ratio(*pair, data_range=1)
        assert float(ratios[k]) == pytest.approx(expected)
        options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
        _, full = metrics.structural_similarity(*pair, data_range=1, full=True, **options)
        assert float(likenesses[k]) == pytest.approx(full[5:-5, 5:-5].mean(), abs=1e-6)


def test_cap_and_nadeau_bengio_are_their_formulas() -> None:
    accuracies, distances = rng().random((2, 4)), rng().random((2, 4, 6))
    by_hand = sum(
        a * d.mean() for a, d in zip(accuracies.ravel(), distances.reshape(8, 6), strict=True)
    )
    assert m.cap(accuracies, torch.as_tensor(distances)) == pytest.approx(by_hand / 8)
    values = rng().normal(size=7)
    low, high = m.nadeau_bengio(values, scored=30, fitted=70)
    half = stats.t.ppf(0.975, 6) * values.std(ddof=1) * math.sqrt(1 / 7 + 3 / 7)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half))


def test_activation_information_is_the_double_sum() -> None:
    points = rng().normal(size=(30, 4))
    distances = spatial.distance.squareform(spatial.distance.pdist(points, "sqeuclidean"))
    for alpha in (1.0, 4.0):
        kernels = np.exp(-distances / (2 * alpha * 0.5))
        expected = -np.log2(kernels.mean(axis=1)).mean()
        found = m.activation_information(torch.as_tensor(distances), 0.5, alpha)
        assert found.bits == pytest.approx(expected)


def test_sensitivities_are_the_norms_that_numpy_gives() -> None:
    jacobian, gradient = rng().normal(size=(5, 6, 3)), rng().normal(size=(5, 6))
    found = m.input_sensitivity(torch.as_tensor(jacobian))
    norms = np.array([[np.linalg.norm(j), np.abs(j).sum(), np.abs(j).max()] for j in jacobian])
    np.testing.assert_allclose(found, norms.mean(axis=0))
    ranges = gradient.max(axis=1) - gradient.min(axis=1)
    bounded = norms / ranges[:, None] / [math.sqrt(6), 6, 1]
    np.testing.assert_allclose(m.label_sensitivity(jacobian, gradient), bounded.mean(axis=0))
    still = np.concatenate([jacobian, np.zeros((1, 6, 3))])
    flat = np.concatenate([gradient, np.ones((1, 6))])
    of_still = m.label_sensitivity(still, flat)
    np.testing.assert_allclose(of_still, bounded.sum(axis=0) / 6)


def test_v_information_of_normal_features_is_their_integral() -> None:
    """Of N(±1, 1) with a logistic family, which holds the true posterior: .337 nats."""
    values = np.arange(6000) % 2
    features = rng().normal(size=(6000, 1)) + 2 * values[:, None] - 1
    found = m.v_information(torch.as_tensor(features), values, members=["logistic"])
    truth = math.log(2) - stats.norm(1).expect(lambda x: np.logaddexp(0, -2 * x))
    assert found.information == pytest.approx(truth, abs=0.03)
    assert found.auroc == pytest.approx(stats.norm.cdf(math.sqrt(2)), abs=0.02)
    nothing = m.v_information(rng().normal(size=(6000, 1)), values, members=["logistic"])
    assert nothing.information == pytest.approx(0, abs=0.01)


def test_what_came_in_lies_in_the_span_and_nothing_else_does() -> None:
    inputs, deltas = rng().normal(size=(4, 30)), rng().normal(size=(50, 4))
    others = rng().normal(size=(5, 30)) + 1
    found = m.span_check(deltas @ inputs, np.concatenate([inputs, others]), 4)
    projector = np.linalg.pinv(inputs) @ inputs
    exact = np.square(others - others @ projector).sum(axis=1) / np.square(others).sum(axis=1)
    np.testing.assert_allclose(found[4:], exact, rtol=1e-5)
    assert float(found[:4].max()) < 1e-9
    with pytest.raises(ValueError, match="fewer tokens"):
        m.span_check(deltas @ inputs, inputs, 25)


def test_reconstruction_information_is_the_best_attack_over_the_best_guess() -> None:
    ssim = rng().random((2, 3, 4, 5))
    guesses = rng().random((2, 3, 4, 40)) * 0.7
    logs = np.log(((ssim >= 0.6).sum(axis=-1) + 0.5) / 6).mean(axis=(1, 2))
    prior = np.log((5 * (guesses >= 0.6).mean(axis=-1) + 0.5) / 6).mean(axis=(1, 2))
    expected = max(0.0, logs.max() - prior.max())
    assert m.reconstruction_information(ssim, guesses, 0.6) == pytest.approx(expected)


@pytest.mark.parametrize(
    "call",
    [
        lambda: m.auroc([1.0, math.nan], [True, False]),
        lambda: m.auroc([1.0, 2.0], [True, True]),
        lambda: m.epsilon_lower([0.0, 1.0], [1.0, math.nan], 0.5, delta=DELTA),
        lambda: m.clopper_pearson(5, 3),
        lambda: m.fano_bound(-1.0, [0.5, 0.5]),
        lambda: m.fano_bound(math.nan, [0.5, 0.5]),
    ],
)
def test_senseless_input_is_refused(call: Any) -> None:
    with pytest.raises(ValueError, match="needs"):
        call()
