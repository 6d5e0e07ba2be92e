"""Predictive families: finite, calibrated, blind to scale, and what their priors mean."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from gradaudit.audits.vinfo.v_information import macro_auroc
from gradaudit.errors import AuditError, UsageError
from gradaudit.families import families, family, log_loss, sizes, under_prior
from gradaudit.families.base import Projection, Scale, Training, normalised
from gradaudit.families.forest import BLOCKS, FittedForest, PaperForest, ceiling, norms
from gradaudit.report import LINEAR

NAMES = ("discriminant", "extra-trees", "forest", "logistic", "mlp", "norms", "prior")
UNIFORM = np.array([0.5, 0.5])


def gaussian(
    rows: int, shift: float, seed: int, columns: int = 1, classes: int = 2
) -> tuple[np.ndarray, np.ndarray]:
    """Classes 0, 1, … at 0, shift, … in the first column; the others are noise."""
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % classes
    features = rng.normal(size=(rows, columns))
    features[:, 0] += shift * labels
    return features, labels


def test_they_are_found_by_living_in_the_package() -> None:
    assert tuple(families()) == NAMES


@pytest.mark.parametrize("name", sorted(set(families()) - {"prior"}))
def test_those_that_say_they_are_linear_have_log_odds_that_are_and_no_others(name: str) -> None:
    features, labels = gaussian(200, 2.0, 0, columns=3)
    fitted = family(name).fit(features, labels, 2, 0)
    ends = np.random.default_rng(1).normal(size=(2, 50, 3))
    odds = [np.diff(fitted.log_probabilities(rows))[:, 0] for rows in (*ends, ends.mean(axis=0))]
    bent = np.abs((odds[0] + odds[1]) / 2 - odds[2]).max()
    assert (bent < 1e-6) == (sizes([name])[name] == LINEAR)


def test_an_unknown_one_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UsageError, match="tree: no such predictive family; there are: disc"):
        family("tree")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("shift", "columns", "classes"), [(0.5, 3, 2), (1000.0, 1, 2), (3.0, 40, 4)]
)
def test_log_probabilities_are_finite_and_sum_to_one(
    name: str, shift: float, columns: int, classes: int
) -> None:
    features, labels = gaussian(60, shift, 0, columns, classes)
    fitted = family(name).fit(features, labels, classes, 0)
    found = fitted.log_probabilities(gaussian(40, shift, 1, columns, classes)[0] * 3)
    assert found.shape == (40, classes)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_constant_features_leave_the_prior(name: str) -> None:
    labels = np.array([0, 0, 0, 1])
    fitted = family(name).fit(np.full((4, 2), 3.7e-9), labels, 2, 0)
    found = fitted.log_probabilities(np.full((1, 2), 1.0))
    np.testing.assert_allclose(np.exp(found), [[0.75, 0.25]], atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_fits_the_same_member(name: str) -> None:
    features, labels = gaussian(50, 1.0, 0, 5)
    first, again = (
        family(name).fit(features, labels, 2, np.random.SeedSequence(7)).log_probabilities(features)
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("unit", [1e-12, 1e-8, 1e8])
def test_the_unit_of_gradients_does_not_matter(name: str, unit: float) -> None:
    features, labels = gaussian(80, 1.5, 0, 4)
    unseen = gaussian(30, 1.5, 1, 4)[0]
    plain = family(name).fit(features, labels, 2, 3).log_probabilities(unseen)
    scaled = family(name).fit(features * unit, labels, 2, 3).log_probabilities(unseen * unit)
    np.testing.assert_allclose(np.exp(scaled), np.exp(plain), atol=0.03)
    if name != "prior":
        assert np.ptp(scaled) > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_the_prior_is_stated_and_trained_under(name: str) -> None:
    features = np.random.default_rng(0).normal(size=(400, 3))
    labels = (np.arange(400) % 10 == 0).astype(np.int64)
    own = family(name).fit(features, labels, 2, 0)
    np.testing.assert_allclose(own.prior, [0.9, 0.1])
    balanced = family(name).fit(features, labels, 2, 0, prior=UNIFORM)
    np.testing.assert_array_equal(balanced.prior, UNIFORM)
    unseen = np.random.default_rng(1).normal(size=(2000, 3))
    said = [np.exp(each.log_probabilities(unseen)[:, 1]).mean() for each in (own, balanced)]
    assert said[0] == pytest.approx(0.1, abs=0.05)
    assert said[1] == pytest.approx(0.5, abs=0.12)


def test_logistic_regression_finds_the_posterior_of_gaussian_classes() -> None:
    features, labels = gaussian(20_000, 1.0, 0)
    fitted = family("logistic").fit(features, labels, 2, 0)
    grid = np.linspace(-2, 3, 11)
    found = fitted.log_probabilities(grid[:, None])
    np.testing.assert_allclose(found[:, 1] - found[:, 0], grid - 0.5, atol=0.12)


def test_a_posterior_is_moved_to_another_prior_by_bayes() -> None:
    features, labels = gaussian(20_000, 1.0, 0)
    wanted = np.array([0.9, 0.1])
    fitted = family("logistic").fit(features, labels, 2, 0)
    moved = under_prior(fitted.log_probabilities(np.array([[0.5], [2.0]])), fitted.prior, wanted)
    expected = np.array([0.0, 1.5]) + np.log(0.1 / 0.9)
    np.testing.assert_allclose(moved[:, 1] - moved[:, 0], expected, atol=0.1)
    np.testing.assert_allclose(np.exp(moved).sum(axis=1), 1)


def test_wide_logistic_regression_is_the_penalised_one_on_all_columns() -> None:
    features, labels = gaussian(30, 2.0, 0, 300)
    standard = (features - features.mean(axis=0)) / features.std(axis=0) / np.sqrt(300)
    direct = LogisticRegression(C=10, tol=1e-10, max_iter=10_000).fit(standard, labels)
    found = family("logistic").fit(features, labels, 2, 0).log_probabilities(features)
    odds = direct.decision_function(standard)
    np.testing.assert_allclose(found[:, 1] - found[:, 0], odds, rtol=1e-2, atol=1e-2)


def test_the_network_finds_what_no_line_separates() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(600, 2))
    labels = (features[:, 0] * features[:, 1] > 0).astype(np.int64)
    train, test = slice(0, 400), slice(400, None)
    members = [family(n).fit(features[train], labels[train], 2, 0) for n in ("logistic", "mlp")]
    line, network = (log_loss(m.log_probabilities(features[test]), labels[test]) for m in members)
    assert line > 0.65
    assert network < 0.45


def test_a_forest_is_never_surer_than_laplace() -> None:
    features, labels = gaussian(100, 100.0, 0)
    fitted = family("forest").fit(features, labels, 2, 0)
    assert isinstance(fitted, FittedForest)
    assert fitted.votes(features).max() == 1
    np.testing.assert_allclose(np.exp(fitted.log_probabilities(features)).max(), 51 / 52)


@pytest.mark.parametrize("values", [2, 4])
def test_the_papers_softmax_has_a_ceiling(values: int) -> None:
    features, labels = gaussian(120, 100.0, 0, classes=values)
    forest = family("forest").fit(features, labels, values, 0)
    assert isinstance(forest, FittedForest)
    loss = log_loss(PaperForest(forest).log_probabilities(features), labels)
    np.testing.assert_allclose(np.log(values) - loss, ceiling(values), atol=1e-12)
    np.testing.assert_allclose(ceiling(2), np.log(2) - np.log(1 + np.exp(-1)))
    assert 0.379 < ceiling(2) < 0.381


@pytest.mark.parametrize(
    ("features", "labels", "classes", "words"),
    [
        ([[0.0], [0.0]], [0, 2], 3, "no row of class 1"),
        ([[0.0], [np.nan]], [0, 1], 2, "not finite"),
    ],
)
def test_rows_that_nothing_can_be_fitted_on_are_refused(
    features: list[list[float]], labels: list[int], classes: int, words: str
) -> None:
    with pytest.raises(AuditError, match=words):
        family("forest").fit(np.array(features), np.array(labels), classes, 0)


def test_scaling_leaves_out_what_is_constant_but_for_rounding() -> None:
    rng = np.random.default_rng(0)
    columns = [rng.normal(size=50) * 1e-9, 5e-9 + 1e-22 * rng.normal(size=50), np.zeros(50)]
    scale = Scale.of(np.stack(columns, axis=1))
    np.testing.assert_array_equal(scale.kept, [True, False, False])
    standard = scale(np.stack(columns, axis=1))
    np.testing.assert_allclose(standard.std(axis=0), 1)


def test_a_projection_keeps_the_inner_products_of_the_fitted_rows() -> None:
    features = np.random.default_rng(0).normal(size=(20, 90))
    projected = Projection.of(features)(features)
    standard = (features - features.mean(axis=0)) / features.std(axis=0)
    np.testing.assert_allclose(projected @ projected.T, standard @ standard.T / 90, atol=1e-9)
    assert projected.shape[1] == 19


def test_a_projection_takes_the_widest_directions_first() -> None:
    rng = np.random.default_rng(0)
    common = rng.normal(size=(200, 1))
    features = np.hstack([common + 0.1 * rng.normal(size=(200, 6)), rng.normal(size=(200, 2))])
    first = Projection.of(features)(features)[:, 0]
    assert abs(np.corrcoef(first, common[:, 0])[0, 1]) > 0.98


def test_scores_are_normalised_without_overflow() -> None:
    np.testing.assert_allclose(normalised(np.array([[1e4, 0.0]])), [[0, -1e4]])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prior", [(0.25, 0.25, 0.5), (0.6, 0.3, 0.1)])
def test_ordered_values_are_told_by_thresholds_under_the_prior(
    name: str, prior: tuple[float, ...]
) -> None:
    """Far apart every threshold is passed or not; where nothing varies the prior comes out."""
    features, labels = gaussian(90, 9.0, 0, 2, classes=3)
    more = np.cumsum(prior[::-1])[-2::-1]
    training = Training.of(features, labels, 3, np.array(prior))
    above = family(name).fit_ordered(training, np.random.default_rng(0))(features)
    if name == "prior":
        np.testing.assert_allclose(above, np.tile(more, (90, 1)))
    else:
        assert ((above > 0.5) == (labels[:, None] > np.arange(2))).mean() > 0.97
    flat = Training.of(np.ones((90, 2)), labels, 3, np.array(prior))
    blind = family(name).fit_ordered(flat, np.random.default_rng(0))(features[:4])
    np.testing.assert_allclose(blind, np.tile(more, (4, 1)))


def test_a_forest_of_one_threshold_votes_as_one_of_two_classes() -> None:
    features, labels = gaussian(80, 1.0, 0, 3)
    training = Training.of(features, labels, 2, UNIFORM)
    above = family("forest").fit_ordered(training, np.random.default_rng(5))(features)
    fitted = family("forest").fit_on(training, 5)
    np.testing.assert_allclose(above[:, 0], np.exp(fitted.log_probabilities(features))[:, 1])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", [name for name in families() if name != "prior"])
def test_rows_far_beyond_the_fitted_ones_have_finite_answers(name: str) -> None:
    """A unit that hardly reacts has gradients of 1e-30 in all rows but one that comes later."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(60, 5)).astype(np.float32)
    features[:, 2] *= 1e-30
    labels = (features[:, 0] > 0).astype(np.int64)
    later = features[:4].copy()
    later[0, 2] = 1e10
    found = family(name).fit(features, labels, 2, 0).log_probabilities(later)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1, rtol=1e-6)


def scaled(rows: int, columns: int, larger: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian rows without a mean; those of class 1 are larger by a factor."""
    labels = np.arange(rows) % 2
    features = np.random.default_rng(seed).normal(size=(rows, columns))
    return features * np.where(labels, larger, 1.0)[:, None], labels


def test_norms_are_those_of_a_dense_computation() -> None:
    gradients = scaled(6, 100, 2.0, 0)[0].astype(np.float32)
    gradients[:, 7:19] = 0
    wide = gradients.astype(np.float64)
    length = np.linalg.norm(wide, axis=1)
    starts = [100 * block // BLOCKS for block in range(BLOCKS)]
    blocks = [np.linalg.norm(part, axis=1) for part in np.split(wide, starts[1:], axis=1)]
    with np.errstate(divide="ignore"):
        expected = np.log(
            [length, *(np.linalg.norm(wide, p, axis=1) / length for p in (1, 4, np.inf))]
        )
        of_blocks = np.log(np.array(blocks) / length)
    found = norms(gradients)
    np.testing.assert_allclose(found[:, :4], expected.T, rtol=1e-5, atol=1e-6)
    told = np.isfinite(of_blocks.T)
    np.testing.assert_allclose(found[:, 4:-1][told], of_blocks.T[told], rtol=1e-4, atol=1e-6)
    assert (found[:, 4:-1][~told] < -40).all()
    np.testing.assert_allclose(found[:, -1], 0.12)


def test_only_the_first_norm_changes_with_the_length() -> None:
    gradients = scaled(5, 40, 1.0, 1)[0]
    plain, longer = norms(gradients), norms(gradients * 1e-9)
    np.testing.assert_allclose(longer[:, 0] - plain[:, 0], np.log(1e-9), rtol=1e-12)
    np.testing.assert_allclose(longer[:, 1:], plain[:, 1:], atol=1e-12)


def test_a_gradient_of_zeros_and_short_ones_are_finite() -> None:
    assert np.isfinite(norms(np.zeros((2, 50), np.float32))).all()
    assert norms(np.ones((2, 3))).shape == (2, 3 + 5)


@pytest.mark.parametrize("columns", [30, 1000])
def test_a_scale_is_read_that_a_linear_reader_cannot_see(columns: int) -> None:
    features, labels = scaled(80, columns, 1.6, 0)
    unseen, truth = scaled(200, columns, 1.6, 1)
    areas = {}
    for name in ("norms", "logistic"):
        reads = family(name).reads
        member = family(name).fit(reads(features), labels, 2, 0)
        areas[name] = macro_auroc(member.log_probabilities(reads(unseen)), truth)
    assert areas["norms"] > 0.95
    assert areas["logistic"] < 0.65


def test_ordered_values_are_read_from_norms_too() -> None:
    labels = np.arange(120) % 3
    gradients = np.random.default_rng(0).normal(size=(120, 60)) * 2.0 ** labels[:, None]
    features = family("norms").reads(gradients)
    training = Training.of(features, labels, 3, np.full(3, 1 / 3))
    above = family("norms").fit_ordered(training, np.random.default_rng(1))(features)
    assert above.shape == (120, 2)
    assert (above[labels == 0].max(axis=0) < above[labels == 2].min(axis=0)).all()
