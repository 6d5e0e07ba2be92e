import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dp_subject import subject
from pydantic import ValidationError
from subjects import one

from gradaudit.audits.dp_audit import DpAudit
from gradaudit.audits.dp_audit.law.theory import epsilon_gaussian
from gradaudit.cli.perform import claim_exceeded, claim_untested
from gradaudit.data import load_records
from gradaudit.defenses import parse_defense
from gradaudit.errors import AuditError, NotApplicable, UsageError
from gradaudit.formats.table import Table as TableFormat
from gradaudit.judging import gate, verdict
from gradaudit.models.building import load_model
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Target
from gradaudit.progress import Silent
from gradaudit.report import Measurement, Report
from gradaudit.run.runner import run
from gradaudit.subject import Subject

QUICK = {"trials": 400, "restarts": 2, "iterations": 6}
HONEST = "dp:clip=0.5,sigma=0.5"
SHARED = Path(os.environ.get("GRADAUDIT_SHARED", Path(__file__).parents[4] / "shared"))

MECHANISMS = '''
import torch

def clip(gradients, bound):
    return gradients / (gradients.norm(dim=1, keepdim=True) / bound).clamp(min=1)

def gaussian(per_release):
    """A mechanism from its noiseless sum and the deviation on it, with a batched form."""
    def mechanism(gradients, generator):
        return releases(gradients, 1, generator)[0]
    def releases(gradients, count, generator):
        mean, sigma = per_release(gradients)
        return mean + sigma * torch.randn(count, gradients.shape[1], generator=generator)
    mechanism.releases = releases
    return mechanism

CLIP, SIGMA = 0.5, 1.0

DEPTH, WIDTH = 5, 16
LAYERS = [11 * WIDTH, WIDTH] + [WIDTH * WIDTH, WIDTH] * (DEPTH - 1) + [WIDTH * 2, 2]

def by_layer(gradients):
    return torch.cat([clip(part, CLIP) for part in gradients.split(LAYERS, dim=1)], dim=1)

honest = gaussian(lambda g: (clip(g, CLIP).sum(0) / len(g), SIGMA / len(g)))
quiet = gaussian(lambda g: (clip(g, CLIP).sum(0) / len(g), SIGMA / 8 / len(g)))
unclipped = gaussian(lambda g: (g.sum(0) / len(g), SIGMA / len(g)))
layered = gaussian(lambda g: (by_layer(g).sum(0) / len(g), SIGMA / len(g)))
late = gaussian(lambda g: (clip(g.mean(0, keepdim=True), CLIP)[0], SIGMA / len(g)))

def seeded(gradients, generator):
    noise = torch.randn(gradients.shape[1], generator=torch.Generator().manual_seed(0))
    return (clip(gradients, CLIP).sum(0) + SIGMA * noise) / len(gradients)

def sign(gradients, generator):
    return gradients.mean(0).sign()

def constant(gradients, generator):
    return torch.ones(gradients.shape[1])

def broken(gradients, generator):
    return gradients

class Walk:
    """Noise that is carried on from step to step."""
    carried = 0
    def __call__(self, gradients, generator):
        fresh = torch.randn(gradients.shape[1], generator=generator)
        self.carried = 0.9 * self.carried + SIGMA * fresh
        return (clip(gradients, CLIP).sum(0) + self.carried) / len(gradients)

class Factorised:
    """Noise of a matrix factorisation: steps cancel part of what those before them added."""
    last = 0
    def __call__(self, gradients, generator):
        fresh = torch.randn(gradients.shape[1], generator=generator)
        noise, self.last = SIGMA * (fresh - 0.5 * self.last), fresh
        return (clip(gradients, CLIP).sum(0) + noise) / len(gradients)

walk, factorised = Walk(), Factorised()
'''


def measure(*attributes: str, seed: int = 0, **options: Any) -> list[Measurement]:
    audit = DpAudit(DpAudit.Options(**{**QUICK, **options}))
    return list(audit.run(subject(*attributes, seed=seed), Silent()))


def report(*attributes: str, depth: int = 1, width: int = 8, **options: Any) -> Report:
    audit = DpAudit(DpAudit.Options(**{**QUICK, **options}))
    return run(subject(*attributes, depth=depth, width=width), [audit])


@pytest.fixture(scope="module")
def honest() -> Report:
    """What is reported of an honest mechanism that is known, by its law alone."""
    return report("sex", mechanism=HONEST, trials=1000)


@pytest.fixture(scope="module")
def mechanisms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("mechanisms") / "mine.py"
    file.write_text(MECHANISMS)
    return file


def test_every_metric_has_a_headline_and_the_report_is_whole(honest: Report) -> None:
    assert honest.measurements[0].metric == "epsilon_lower"
    headline = {row.metric for row in honest.measurements if not row.variant}
    assert headline == {metric.id for metric in DpAudit.metrics}
    by_key = {"untouched", "norm_ratio"}
    for row in honest.measurements:
        assert (row.details["unit"], "relation" in row.details) == ("record", True)
        assert (row.status == "skipped") == (row.layer is not None) == (row.metric in by_key)
    assert Report.model_validate_json(honest.to_json()) == honest
    assert claim_exceeded(honest) is None


def test_the_headline_says_what_it_rests_on(honest: Report) -> None:
    rows = honest.measurements
    lower = one(rows, "epsilon_lower")
    expected = {"unit": "record", "relation": "replace", "bound": "two-tailed guesses"}
    expected |= {"attribute": "sex", "record": "crafted", "batch": 1, "elements": 114}
    assert expected.items() <= lower.details.items()
    assert (lower.n, lower.confidence, sum(lower.details["releases"])) == (1000, 0.95, 2000)
    assert "proves no privacy" in lower.details["limits"]
    assert "claimed" not in lower.details
    histogram = lower.details["histogram"]
    assert [sum(histogram["null"]), sum(histogram["alternative"])] == lower.details["releases"]
    assert len(histogram["edges"]) == len(histogram["null"]) + 1
    assert lower.details["ceiling"] == one(rows, "epsilon_ceiling").value
    assert one(rows, "epsilon_point").details["is_a_bound"] is False
    pair, gap = one(rows, "epsilon_pair").value, one(rows, "canary_gap").value
    assert 0 < lower.value <= pair <= one(rows, "epsilon_theory").value
    assert pair == pytest.approx(epsilon_gaussian(gap / 0.5, 1e-5))
    kinds = {kind: one(rows, "canary_gap", record=kind).value for kind in KINDS}
    assert kinds["crafted"] == gap == max(kinds.values())


KINDS = ("random", "nearest", "crafted")


def test_hiding_a_layer_takes_it_out_and_choosing_what_to_report_does_not() -> None:
    first, last = subject("sex").layers
    audit = DpAudit(DpAudit.Options(**QUICK, mechanism=HONEST))

    def elements(**changed: Any) -> object:
        rows = list(audit.run(replace(subject("sex"), **changed), Silent()))
        return one(rows, "epsilon_lower").details["elements"]

    weights = [11 * 8 + 8, 8 * 2 + 2]
    assert elements(layers=(last,)) == sum(weights)
    assert elements(layers=(last,), hidden=(first.name,)) == weights[1]


def test_theory_is_that_of_the_paper_and_of_replacement() -> None:
    rows = measure("sex", mechanism="dp:clip=2,sigma=0.1", mode="exact")
    assert one(rows, "epsilon_theory").value == pytest.approx(969.65, abs=0.005)
    assert one(rows, "epsilon_theory", relation="remove").value == pytest.approx(284.39, abs=0.005)
    classical = one(rows, "epsilon_classical", relation="remove")
    assert classical.value == pytest.approx(96.90, abs=0.005)
    assert classical.details["in_range"] is False
    column = one(rows, "epsilon_classical", relation="remove", per="column")
    assert column.value == pytest.approx(96.90 / 5, abs=0.005)
    loud = measure("sex", mechanism="dp:clip=0.1,sigma=2", restarts=0, record="random")
    assert one(loud, "epsilon_classical", relation="remove").details["in_range"] is True


def test_companions_leave_dp_sgd_alone_and_help_noise_on_the_mean() -> None:
    def pair(per: str, companions: int) -> float:
        mechanism = f"{HONEST},per={per}"
        rows = measure("sex", mechanism=mechanism, companions=companions, mode="exact")
        value = one(rows, "epsilon_pair").value
        assert value is not None
        return value

    alone = pair("sum", 0)
    assert pair("sum", 3) == pytest.approx(alone)
    assert pair("mean", 3) < pair("record", 3) < alone
    rows = measure("sex", mechanism=f"{HONEST},per=mean", companions=3, mode="exact")
    mu = 2 * 0.5 / (4 * 0.5)
    assert one(rows, "epsilon_theory").value == pytest.approx(epsilon_gaussian(mu, 1e-5))


def test_composition_stands_beside_one_step() -> None:
    rows = measure("sex", mechanism=HONEST, steps=9, mode="exact")
    composed = one(rows, "epsilon_theory", steps=9, sampling_rate=1.0)
    assert composed.value == pytest.approx(epsilon_gaussian(2 * 3, 1e-5))


def test_the_same_seed_gives_the_same_report(mechanisms: Path) -> None:
    given = {"mechanism": f"{mechanisms}:honest", "restarts": 0, "record": "random"}
    first, again, other = (measure("sex", seed=seed, **given) for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("attribute", "options", "error", "message"),
    [
        ("sex", {}, NotApplicable, "no mechanism is configured.*--mechanism"),
        ("", {"mechanism": HONEST}, NotApplicable, "no private attribute is named.*--attribute"),
        ("income", {"mechanism": HONEST}, NotApplicable, "'income' is not a column"),
        *(
            ("sex", {"mechanism": mechanism}, UsageError, message)
            for mechanism, message in (
                ("dp:clip=1", "no sigma"),
                ("prune:0.5", "no mechanism 'prune'; there are: dp,"),
            )
        ),
        *(
            ("sex", {"mechanism": HONEST, **options}, UsageError, message)
            for options, message in (
                ({"canaries": "run"}, "--mode one-run"),
                ({"record": "99"}, "--record 99"),
                ({"companions": 60}, "--companions 60"),
                ({"clip": 1.0}, "leave --clip out"),
                ({"relation": "remove"}, "whose promise for a removed record is reported anyway"),
            )
        ),
        *(
            ("sex", {"mechanism": f"{HONEST},noise=laplace{more}", **options}, UsageError, message)
            for more, options, message in (
                ("", {"mode": "exact"}, "--mode implementation"),
                ("", {"steps": 9}, "--steps"),
                (",per=record", {"companions": 2}, "no simple law"),
            )
        ),
    ],
)
def test_what_cannot_be_done_is_told(
    attribute: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        measure(*([attribute] if attribute else []), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"name": "broken", "relation": "replace"}, AuditError, "a released gradient of shape"),
        ({"companions": 0}, UsageError, "give --companions too"),
        ({"replacement": "uniform"}, UsageError, "a removed record has no other value"),
    ],
)
def test_what_a_mechanism_from_a_file_cannot_do_is_told(
    mechanisms: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    given = {"name": "honest", "companions": 2, "relation": "remove", **options}
    with pytest.raises(error, match=message):
        measure("sex", mechanism=f"{mechanisms}:{given.pop('name')}", **given)


def test_a_mechanism_from_a_file_has_bounds_and_no_theory(mechanisms: Path) -> None:
    rows = measure("sex", mechanism=f"{mechanisms}:honest", clip=0.5)
    skipped = {row.metric: row.reason for row in rows if row.status == "skipped"}
    assert set(skipped) == {
        "epsilon_theory",
        "epsilon_classical",
        "epsilon_pair",
        "epsilon_lower_gaussian",
        "mu_lower",
        "untouched",
        "norm_ratio",
    }
    assert "not known" in skipped["epsilon_pair"]
    assert one(rows, "epsilon_lower").details["pilots"] == 200
    assert one(rows, "canary_gap").details["measured_by"] == "releases with common noise"

    def declared(trials: int) -> Measurement:
        mine = {"mechanism": f"{mechanisms}:honest", "clip": 0.5, "noise": "gaussian"}
        return one(measure("sex", trials=trials, restarts=0, record="random", **mine), "mu_lower")

    assert declared(1000).status == "measured"
    reason = str(declared(999).reason)
    assert "999 releases" in reason
    assert "1000 are needed" in reason


CLAIM = epsilon_gaussian(2 * 0.5 / 1.0, 1e-5)
"""What an honest mechanism of CLIP and SIGMA promises."""
HARD = {"trials": 3000, "domain": "free", "restarts": 2, "iterations": 16}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("quiet", {"trials": 400}),
        ("unclipped", {"trials": 1000}),
        ("layered", {"trials": 1500}),
        ("late", {"trials": 2000, "companions": 7}),
        ("seeded", {"trials": 1000}),
    ],
)
def test_faulty_mechanisms_are_caught(mechanisms: Path, name: str, options: dict[str, Any]) -> None:
    mechanism = {"mechanism": f"{mechanisms}:{name}", "claimed_epsilon": CLAIM}
    found = report("sex", depth=5, width=16, **{**HARD, **mechanism, **options})
    verdict = claim_exceeded(found)
    assert verdict is not None
    assert "claimed was 4.377" in verdict
    (lower,) = found.select("dp-audit.epsilon_lower", variant={})
    assert not lower.infinite, "of a mechanism from a file no number of releases shows that"


def test_an_honest_mechanism_is_not_accused(mechanisms: Path) -> None:
    mechanism = {"mechanism": f"{mechanisms}:honest", "claimed_epsilon": CLAIM}
    found = report("sex", depth=5, width=16, **{**HARD, **mechanism, "trials": 1500})
    assert claim_exceeded(found) is None
    (lower,) = found.select("dp-audit.epsilon_lower", variant={})
    assert lower.details["exceeded"] is False
    assert 1 < lower.value < CLAIM


def test_equal_releases_of_a_file_give_the_bound_that_so_many_prove(mechanisms: Path) -> None:
    """They are no proof that nothing is drawn."""
    found = report("sex", mechanism=f"{mechanisms}:sign", claimed_epsilon=5, restarts=1)
    (lower,) = found.select("dp-audit.epsilon_lower", variant={})
    assert lower.value == lower.details["ceiling"] > 5
    assert lower.details["at_ceiling"] is True
    assert lower.confidence == 0.95
    assert str(claim_exceeded(found)).startswith("dp-audit: epsilon is at least")
    known = report("sex", mechanism="dp:clip=1,sigma=0", claimed_epsilon=100, restarts=1)
    assert claim_exceeded(known) == "dp-audit: epsilon is infinite, claimed was 100.0"


def test_a_pair_whose_releases_are_equal_leaves_the_claim_untested(mechanisms: Path) -> None:
    found = report("sex", mechanism=f"{mechanisms}:constant", claimed_epsilon=5, restarts=1)
    for metric in ("epsilon_lower", "epsilon_lower_gaussian", "mu_lower", "epsilon_point"):
        (row,) = found.select(f"dp-audit.{metric}", variant={})
        assert row.status == "skipped"
        assert str(row.reason).startswith("this pair cannot test the claim: releases with common")
    assert claim_exceeded(found) is None
    assert "this pair cannot test the claim" in str(claim_untested(found))


def test_a_record_is_removed_from_its_companions(mechanisms: Path) -> None:
    """The honest mechanism divides by the batch's size, which is no secret of replaced records."""
    given = {"mechanism": f"{mechanisms}:honest", "companions": 3, "trials": 1000, "restarts": 1}
    removed, replaced = (measure("sex", relation=how, **given) for how in ("remove", "replace"))
    assert one(removed, "epsilon_lower").value > 5 > one(replaced, "epsilon_lower").value
    for rows, how in ((removed, "remove"), (replaced, "replace")):
        assert one(rows, "epsilon_lower").details["relation"] == how
    assert one(removed, "canary_gap").details["alternative_value"] == "no record"


@pytest.mark.slow
def test_opacus_divided_by_the_number_of_records_exceeds_its_claim() -> None:
    """A removed record is the claim's relation, and opacus#571 what its absence reveals."""
    pytest.importorskip("opacus")
    given = {"companions": 3, "relation": "remove", "trials": 1000, "restarts": 1}
    fault = "opacus:clip=1,sigma=4,divisor=records"
    rows = measure(mechanism=fault, claimed_epsilon=1.35, **given)
    assert one(rows, "epsilon_lower").details["mechanism"] == fault
    lower, promise = one(rows, "epsilon_lower"), one(rows, "epsilon_theory")
    assert promise.details["relation"] == "remove"
    assert lower.value > 5 > 1.35 > promise.value
    assert lower.details["secret"] == "record's presence"
    assert lower.details["exceeded"] is True
    assert one(rows, "epsilon_pair").status == "skipped"


@pytest.mark.slow
def test_opacus_keeps_its_promise_for_a_removed_record() -> None:
    """``DPOptimizer`` divides by a constant, so the noise's scale reveals no count."""
    pytest.importorskip("opacus")
    given = {"companions": 3, "relation": "remove", "trials": 1000, "restarts": 1}
    rows = measure(mechanism="opacus:clip=1,sigma=1", **given)
    promise = one(rows, "epsilon_theory")
    assert 0 < one(rows, "epsilon_lower").value < promise.value
    assert one(rows, "epsilon_lower").details["mechanism"].endswith("divisor=expected")


def test_every_epsilon_and_gap_says_what_it_is_of(honest: Report) -> None:
    """The pairs that were played, and the records of the batch that a theory is about."""
    counted = {
        row.metric: row.n
        for row in honest.measurements
        if row.status == "measured" and row.metric.startswith(("epsilon", "canary"))
    }
    assert counted["canary_gap"] == counted["epsilon_pair"] == 1
    assert counted["epsilon_theory"] == counted["epsilon_classical"] == 1
    assert None not in counted.values()


def test_a_removed_record_has_no_law_to_sample() -> None:
    pytest.importorskip("opacus")
    given = {"companions": 3, "relation": "remove", "mode": "exact"}
    with pytest.raises(UsageError, match="batches of two sizes have no common law"):
        measure(mechanism="opacus:clip=1,sigma=4", **given)


def test_a_claim_below_the_bound_is_exceeded_and_one_above_is_not() -> None:
    given = {"mechanism": "dp:clip=0.5,sigma=0.1", "restarts": 1}
    bound = one(measure("sex", **given), "epsilon_lower").value
    for claimed, exceeded in ((bound - 0.01, True), (bound + 0.01, False)):
        found = report("sex", **given, claimed_epsilon=claimed)
        of_trials = str(claim_exceeded(found)).startswith("dp-audit: epsilon is at least")
        assert of_trials is exceeded
        (lower,) = found.select("dp-audit.epsilon_lower", variant={})
        assert lower.details["exceeded"] is exceeded
        said = f"claim of {claimed:g} is {'' if exceeded else 'not '}exceeded"
        assert said in lower.details["remark"]
        assert ("proves no privacy" in lower.details["remark"]) is not exceeded


def test_what_a_number_is_not_is_said_in_the_table() -> None:
    shown = TableFormat().render(report("sex", mechanism="dp:clip=0.5,sigma=0.01", trials=1000))
    told = " ".join(shown.split())
    assert "dp-audit.epsilon_classical: out of range: proved only up to epsilon = 1" in told
    assert "dp-audit.epsilon_lower: no trial erred: epsilon is at least this." in told
    assert "on the same trials; no bound" in told
    assert "dp-audit.mu_lower: holds only if the noise is Gaussian" in told


def test_a_defense_beside_the_mechanism_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    audit = DpAudit(DpAudit.Options(**QUICK, mechanism=HONEST))
    list(audit.run(replace(subject("sex"), defenses=(parse_defense("prune:0.9"),)), Silent()))
    assert "without --defense prune" in caplog.text
    caplog.clear()
    list(audit.run(replace(subject("sex"), defenses=(parse_defense("dropout:p=0.5"),)), Silent()))
    assert not caplog.text


def test_a_promise_above_the_claim_is_said_first() -> None:
    """Though the trials cannot exceed it."""
    found = report("sex", mechanism="dp:clip=0.5,sigma=1", claimed_epsilon=4)
    (lower,) = found.select("dp-audit.epsilon_lower", variant={})
    assert (lower.details["theory_exceeds_claim"], lower.details["exceeded"]) == (True, False)
    promise = f"The mechanism promises epsilon {CLAIM:.4g}, more than the claim of 4. "
    assert str(lower.details["remark"]).startswith(promise)
    assert str(claim_exceeded(found)).startswith("dp-audit: epsilon by the law is")
    assert verdict(gate(found)) == "failed"
    shown = " ".join(TableFormat().render(found).split())
    remarks = shown[shown.index("dp-audit.epsilon_lower: ") :]
    assert remarks.startswith(f"dp-audit.epsilon_lower: {promise}")
    assert "dp-audit.epsilon_classical: " in remarks
    kept = report("sex", mechanism="dp:clip=0.5,sigma=1", claimed_epsilon=5)
    (lower,) = kept.select("dp-audit.epsilon_lower", variant={})
    assert lower.details["theory_exceeds_claim"] is False
    assert "promises" not in str(lower.details["remark"])
    pure = report("sex", mechanism="dp:clip=0.5,sigma=1,noise=laplace", claimed_epsilon=0.1)
    (lower,) = pure.select("dp-audit.epsilon_lower", variant={})
    assert "theory_exceeds_claim" not in lower.details  # it is at delta = 0, the claim is not


@pytest.mark.parametrize("name", ["walk", "factorised"])
def test_releases_that_depend_on_each_other_give_no_bound(mechanisms: Path, name: str) -> None:
    given = {"mechanism": f"{mechanisms}:{name}", "claimed_epsilon": 1, "noise": "gaussian"}
    found = report("sex", **given, restarts=0, record="random")
    for metric in ("epsilon_lower", "epsilon_lower_gaussian", "mu_lower", "epsilon_point"):
        row = one(found.measurements, metric)
        assert (row.status, "depend on each other" in str(row.reason)) == ("skipped", True)
    assert one(found.measurements, "canary_gap").status == "measured"
    assert claim_exceeded(found) is None
    assert "depend on each other" in str(claim_untested(found))


@pytest.mark.parametrize("claim", [math.inf, math.nan])
def test_a_claim_is_a_finite_number(claim: float) -> None:
    with pytest.raises(ValidationError):
        DpAudit.Options(claimed_epsilon=claim)


def test_a_mixture_of_values_is_weaker_than_the_worst() -> None:
    given = {"mechanism": "dp:clip=0.5,sigma=0.15", "trials": 2000}
    worst, uniform = (measure("job", **given, replacement=how) for how in ("worst", "uniform"))
    assert one(uniform, "epsilon_lower").value < one(worst, "epsilon_lower").value
    assert one(uniform, "epsilon_pair").value == one(worst, "epsilon_pair").value
    assert one(uniform, "epsilon_lower").details["alternative_value"] == "every other"
    assert "at random" in one(uniform, "mu_lower").reason


def test_several_attributes_are_played_and_corrected(honest: Report) -> None:
    alone = honest.measurements
    rows = measure("sex", "race", mechanism=HONEST, trials=1000)
    headline = one(rows, "epsilon_lower")
    each = [one(rows, "epsilon_lower", attribute=name) for name in ("sex", "race")]
    assert headline.value == max(row.value for row in each)
    assert headline.details["comparisons"] == 2
    assert one(rows, "epsilon_ceiling").value < one(alone, "epsilon_ceiling").value
    assert one(rows, "mu_lower", attribute="sex").value < one(alone, "mu_lower").value


def test_laplace_is_judged_by_its_own_law() -> None:
    rows = measure("sex", mechanism="dp:clip=0.5,sigma=0.5,noise=laplace")
    assert one(rows, "epsilon_pair").details["delta"] == 0
    assert one(rows, "epsilon_theory").value == pytest.approx(2 * 114**0.5)
    assert one(rows, "epsilon_lower").value < one(rows, "epsilon_pair").value
    assert "Gaussian" in one(rows, "epsilon_classical").reason
    assert "Gaussian" in one(rows, "mu_lower").reason


def test_a_mechanism_without_noise_hides_nothing() -> None:
    rows = measure("sex", mechanism="dp:clip=0.5,sigma=0")
    for metric in ("epsilon_lower", "epsilon_pair", "epsilon_theory", "epsilon_classical"):
        assert one(rows, metric).infinite, metric


def adult() -> Subject:
    file = SHARED / "data" / "adult.csv"
    if not file.exists():
        pytest.skip(f"Adult is not there: {file}")
    records = load_records(f"csv:{file}?label=income&scale=standard", attributes=("sex",))
    inputs = records.inputs.shape[1]
    model = load_model(f"zoo:mlp?inputs={inputs}&hidden=100&classes=2", seed=0)
    target = Target(model, CrossEntropy())
    return Subject((target,), records, target.layers, samples=64, attributes=("sex",))


def test_adult() -> None:
    """Li24's setting: a crafted record is told apart better than a random one (figure 7)."""
    audited = adult()

    def audit(**options: Any) -> list[Measurement]:
        options = {"mechanism": "dp:clip=2,sigma=0.4", "trials": 1000, "restarts": 1, **options}
        options = {"iterations": 15, "mode": "exact", **options}
        return list(DpAudit(DpAudit.Options(**options)).run(audited, Silent()))

    crafted, random = audit(), audit(record="random")
    assert one(crafted, "canary_gap").value > 1.3 * one(random, "canary_gap").value
    assert one(crafted, "epsilon_lower").value > 1.3 * one(random, "epsilon_lower").value
    assert one(crafted, "epsilon_lower").details["elements"] == 11_102
    distance = one(crafted, "epsilon_lower", statistic="distance").value
    assert distance < one(crafted, "epsilon_lower").value
    assert math.isclose(
        one(crafted, "canary_gap", record="random").value, one(random, "canary_gap").value
    )
