import numpy as np
import pytest
from scipy.stats import f, nct, normaltest

from gradaudit.audits.dp_audit.law.estimates import gaussian_bound, mu_lower, noncentrality_lower
from gradaudit.audits.dp_audit.law.theory import epsilon_gaussian


@pytest.mark.parametrize(
    ("observed", "degrees"), [(2.0, 18), (-1.0, 38), (4.0, 198), (97.0, 1998), (317.0, 9998)]
)
def test_limit_inverts_the_noncentral_t(observed, degrees):
    limit = float(noncentrality_lower(observed, degrees, 0.05))
    assert nct.sf(observed, degrees, limit) == pytest.approx(0.05, rel=1e-6)


def test_limits_of_many_audits_at_once():
    null, alternative = np.random.default_rng(0).normal(size=(2, 5, 40))
    together = mu_lower(null, alternative + 2, alpha=0.05)
    each = [mu_lower(*pair, alpha=0.05) for pair in zip(null, alternative + 2, strict=True)]
    np.testing.assert_allclose(together, each, rtol=1e-12)


def test_bound_does_not_depend_on_location_and_scale():
    null, alternative = np.random.default_rng(1).normal(size=(2, 200))
    bound = mu_lower(null, alternative + 1, alpha=0.05)
    moved = mu_lower(3 + 0.01 * null, 3 + 0.01 * (alternative + 1), alpha=0.05)
    assert moved == pytest.approx(float(bound), rel=1e-9)


def test_bound_is_never_negative():
    null, alternative = np.random.default_rng(2).normal(size=(2, 100))
    assert mu_lower(null, alternative - 5, alpha=0.05) == 0


def test_epsilon_is_that_of_the_limit():
    null, alternative = np.random.default_rng(3).normal(size=(2, 1000))
    bound = gaussian_bound(null, alternative + 3, delta=1e-5, alpha=0.1)
    assert bound.mu == float(mu_lower(null, alternative + 3, alpha=0.1))
    assert bound.epsilon == epsilon_gaussian(bound.mu, 1e-5)
    assert bound.mu < bound.mu_estimate
    assert bound.mu_estimate == pytest.approx(3, abs=0.3)
    assert min(bound.normality_p, bound.equal_variance_p) > 0.01


def test_numbers_of_trials_may_be_unequal():
    rng = np.random.default_rng(4)
    null, alternative = rng.normal(size=150), rng.normal(size=100) + 2
    bound = float(mu_lower(null, alternative, alpha=0.05))
    spread = np.sqrt((149 * null.var(ddof=1) + 99 * alternative.var(ddof=1)) / 248)
    per_unit = (1 / 150 + 1 / 100) ** -0.5
    observed = (alternative.mean() - null.mean()) / spread * per_unit
    assert nct.sf(observed, 248, bound * per_unit) == pytest.approx(0.05, rel=1e-6)
    assert gaussian_bound(null, alternative, delta=1e-5, alpha=0.05).mu == bound


def test_power():
    null, alternative = np.random.default_rng(5).normal(size=(2, 100, 5000))
    epsilons = epsilon_gaussian(mu_lower(null, alternative + 6.4, alpha=0.05), 1e-5)
    assert epsilon_gaussian(6.4, 1e-5) == pytest.approx(47, abs=0.1)
    assert np.mean(epsilons) >= 44


def _releases(rng, mu, trials):
    null, alternative = rng.normal(size=(2, trials))
    return null, alternative + mu


@pytest.mark.slow
def test_checks_are_uniform_under_the_declared_law():
    rng = np.random.default_rng(6)
    bounds = [gaussian_bound(*_releases(rng, 2, 300), delta=1e-5) for _ in range(200)]
    for name in ("normality_p", "equal_variance_p"):
        rejected = np.mean([getattr(bound, name) < 0.05 for bound in bounds])
        assert rejected == pytest.approx(0.05, abs=0.035)


def test_checks_see_other_laws():
    rng = np.random.default_rng(7)
    laplace = gaussian_bound(*rng.laplace(size=(2, 1000)), delta=1e-5)
    assert laplace.normality_p < 1e-6
    null, alternative = _releases(rng, 1, 1000)
    assert gaussian_bound(null, 2 * alternative, delta=1e-5).equal_variance_p < 1e-6


@pytest.mark.parametrize(
    ("null", "alternative", "message"),
    [
        (np.zeros(19), np.ones(19), "at least 20 trials, not 19"),
        (np.zeros(30), np.ones(30), "vary from release to release"),
    ],
)
def test_refusals(null, alternative, message):
    with pytest.raises(ValueError, match=message):
        gaussian_bound(null, alternative, delta=1e-5)


def test_checks_and_estimate_are_the_textbooks():
    """Fisher's two-sided F test, K² of what is left of both means, the pooled deviation."""
    rng = np.random.default_rng(8)
    null, alternative = rng.normal(size=70), 1.2 * rng.normal(size=40) + 1
    for groups in ((null, alternative), (alternative, null)):
        bound = gaussian_bound(*groups, delta=1e-3, alpha=0.2)
        ratio = groups[1].var(ddof=1) / groups[0].var(ddof=1)
        tails = (
            f.cdf(ratio, len(groups[1]) - 1, len(groups[0]) - 1),
            f.sf(ratio, len(groups[1]) - 1, len(groups[0]) - 1),
        )
        assert bound.equal_variance_p == pytest.approx(2 * min(tails))
        left = np.concatenate([group - group.mean() for group in groups])
        assert bound.normality_p == pytest.approx(normaltest(left).pvalue)
        pooled = sum((group - group.mean()) @ (group - group.mean()) for group in groups) / 108
        gap = groups[1].mean() - groups[0].mean()
        assert bound.mu_estimate == pytest.approx(gap / np.sqrt(pooled))
    assert gaussian_bound(null[:20], alternative, delta=1e-3).mu >= 0
