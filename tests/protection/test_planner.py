"""Plans for a real model, from the trial of one protection to what the command prints."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from command_line import run
from scipy.special import ndtr

from gradaudit.audits import audits
from gradaudit.audits.presets import Preset
from gradaudit.cli.commands.scan import choose_audits
from gradaudit.config import PlanSettings, SubjectSettings, settle
from gradaudit.data.records import Records
from gradaudit.errors import AuditError
from gradaudit.judging import Policy, default_policy_yaml, gate
from gradaudit.progress import Silent
from gradaudit.protection.asking import needed, out_of_reach
from gradaudit.protection.guards import Protection, UndefendedUpdates, prices
from gradaudit.protection.planner import Planner
from gradaudit.protection.protection_plan import framework_settings, options
from gradaudit.protection.trial import Bench, faults, gravest_layer, split_records
from gradaudit.report import Measurement, Report
from gradaudit.run.opening import open_subject
from gradaudit.run.runner import run as run_audits
from gradaudit.subject import Subject

MODEL = "zoo:mlp?inputs=10&hidden=8,6&classes=2"


@pytest.fixture(scope="module")
def subject() -> Subject:
    return open_subject(SubjectSettings(model=MODEL, data="diabetes", samples=12))


@pytest.fixture(scope="module")
def updates(subject: Subject) -> UndefendedUpdates:
    return UndefendedUpdates.of(subject)


def policy(*rules: dict[str, Any]) -> Policy:
    return Policy.model_validate({"name": "test", "rules": rules})


def size_of(audit: str, **given: Any) -> Preset:
    kind = audits()[audit]
    return Preset("quick", kind(settle(kind.Options, given, {})))


def test_what_a_guard_loses_of_a_layer(subject: Subject, updates: UndefendedUpdates) -> None:
    """Against the dense gradients of the same batches."""
    rows = torch.stack([each["fc1"] for each in updates.batches]).double()
    assert rows.shape[1] == updates.elements("fc1") == 10 * 8 + 8
    energy, count = float(rows.square().sum(dim=1).mean()), rows.shape[1]
    assert updates.lost("fc1", Protection(("fc1", "fc2"))) == 0
    assert updates.lost("fc1", Protection(("fc1", "fc2"), ("fc1",), 0.3)) == 1
    assert updates.lost("fc1", Protection(("fc1", "fc2"), ("fc2",), 0.3)) == pytest.approx(
        0.09 * count / (energy + 0.09 * count), rel=1e-5
    )


def test_what_layers_weigh(subject: Subject, updates: UndefendedUpdates) -> None:
    model = copy.deepcopy(subject.target.model)
    shares = {"fc1": 88 / 156, "fc2": 54 / 156, "output": 14 / 156}
    assert prices("parameters", model, updates) == pytest.approx(shares)
    assert prices("bytes", model, updates) == pytest.approx(shares)
    model.get_submodule("fc2").register_buffer("state", torch.zeros(156))
    assert prices("bytes", model, updates)["fc2"] == pytest.approx((54 + 156) / (2 * 156))


def test_parts_share_no_user() -> None:
    users = np.repeat([f"u{n}" for n in range(20)], 5)
    records = Records(torch.arange(100.0)[:, None], torch.zeros(100, dtype=torch.long), users=users)
    parts = split_records(records, 2, seed=0)
    held = [set(part.users.tolist()) for part in parts if part.users is not None]
    assert [len(part) for part in parts] == [50, 25, 25]
    assert sum(map(len, held)) == len(set.union(*held)) == 20
    with pytest.raises(AuditError, match="too few"):
        split_records(records, 10, seed=0)


def planned(
    subject: Subject, *rules: dict[str, Any], sizes: list[Preset] | None = None, **given: Any
) -> Any:
    sizes = sizes or [size_of("sensitivity", probes=8)]
    given = {"left": lambda: 1e9, "progress": Silent(), **given}
    return Planner(subject, sizes, policy(*rules), **given).plan()


@pytest.mark.slow
def test_it_hides_the_layers_that_are_beyond_and_no_other(subject: Subject) -> None:
    """The table's columns are unlike in size, so that the first layer follows its record most."""
    rule = {"metric": "sensitivity.input_f_bounded", "layers": "?*", "max": 1.0}
    plan = planned(subject, rule, means=())
    assert plan.protection.hidden == ("fc1",)
    assert plan.cost == plan.prices["fc1"] == pytest.approx(88 / 156)
    assert not plan.failed
    assert {layer.name for layer in plan.judged.target.layers} == {"fc2", "output"}
    assert plan.naive == pytest.approx({"first layers": 88 / 156})


def told_by_whole_updates(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Protection], float]:
    """Let trials find the AUROC of the best attacker on a whole update, and return that law.

    Of an update under Gaussian noise against none it is Φ(μ/√2), with μ² the sum over layers of the
    squared norm over the noise's variance.
    """
    updates = UndefendedUpdates.of(subject)
    open_report = run_audits(subject, [size_of("sensitivity", probes=8).audit])

    def auroc(protection: Protection) -> float:
        if not protection.noise:
            return 1.0
        shared = protection.shared
        norms = [np.mean([float(b[n].norm()) ** 2 for b in updates.batches]) for n in shared]
        return float(ndtr(np.sqrt(sum(norms) / protection.noise**2 / 2)))

    def judged(self: Bench, protection: Protection) -> Report:
        value = auroc(protection)
        row = Measurement(
            audit="attack", metric="auroc", value=value, interval=(value, value), confidence=0.95
        )
        return gate(open_report.model_copy(update={"measurements": [row]}), self.policy)

    monkeypatch.setattr(Bench, "judged", judged)
    return auroc


@pytest.mark.slow
def test_the_least_noise_that_passes_is_found(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    auroc = told_by_whole_updates(subject, monkeypatch)
    plan = planned(subject, {"metric": "attack.auroc", "layers": "", "max": 0.75})
    assert not plan.failed
    assert plan.protection.shared == ("fc1", "fc2", "output")
    assert 0.72 < auroc(plan.protection) <= 0.75
    assert 0 < plan.cost < 1
    assert plan.naive == {}


@pytest.mark.slow
def test_where_no_noise_is_enough_the_nearest_is_returned(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    told_by_whole_updates(subject, monkeypatch)
    rule = {"metric": "attack.auroc", "layers": "", "max": 0.5}
    plan = planned(subject, rule)
    assert plan.failed
    assert (plan.out_of_time, plan.rounds) == (False, 0)
    assert planned(subject, rule, left=lambda: -1.0).out_of_time


@pytest.mark.slow
def test_what_fails_on_fresh_records_is_protected_more(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise is doubled where half of the records need more of it than the other half."""
    auroc = told_by_whole_updates(subject, monkeypatch)
    judged, seen = Bench.judged, list[int]()

    def stricter(self: Bench, protection: Protection) -> Report:
        fresh = len(self.subject.records) < 150
        seen.extend([len(self.subject.records)] if fresh else [])
        limit = 0.65 if fresh else 0.75
        rules = policy({"metric": "attack.auroc", "layers": "", "max": limit})
        return judged(replace(self, policy=rules), protection)

    monkeypatch.setattr(Bench, "judged", stricter)
    plan = planned(subject, {"metric": "attack.auroc", "layers": "", "max": 0.75})
    assert not plan.failed
    assert (plan.rounds, len(seen)) == (2, 2)
    assert auroc(plan.protection) <= 0.65


SMOOTH = "zoo:mlp?inputs=10&hidden=4&classes=2&activation=tanh"


@pytest.mark.slow
def test_noise_for_a_floor_passes_on_fresh_records() -> None:
    subject = open_subject(SubjectSettings(model=SMOOTH, data="diabetes", samples=12))
    rules = (
        {"metric": "floor.mse_share", "layers": "", "min": 0.4},
        {"metric": "floor.nats", "layers": "output", "max": 2.0},
    )
    plan = planned(subject, *rules, sizes=[size_of("floor")], strict=True)
    assert not plan.failed
    (floor,) = (row for row in plan.judged.select("floor.mse_share") if row.layer is None)
    assert floor.number is not None
    assert floor.number >= 0.4
    assert plan.protection.noise > 0
    assert plan.protection.hidden == ()


def test_a_floor_without_noise_is_none(subject: Subject, updates: UndefendedUpdates) -> None:
    rules = policy({"metric": "floor.mse_share", "layers": "*", "min": 0.5})
    bench = Bench(subject, [size_of("floor")], rules, updates, strict=False, progress=Silent())
    protection = Protection(("fc1", "fc2", "output"))
    judged = bench.judged(protection)
    assert {finding.layer for finding in faults(judged)} == {None, "fc1", "fc2", "output"}
    assert gravest_layer(judged, protection) == "fc1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "defenses"), [("*", ()), ("", ("dp:clip=1,sigma=0.3,layers=output",))]
)
def test_what_lies_before_a_kink_is_hidden(layers: str, defenses: tuple[str, ...]) -> None:
    """Whether the noise is the plan's, or there already, with a clip by which all lack a floor."""
    subject = open_subject(
        SubjectSettings(model=MODEL, data="diabetes", samples=12, defense=defenses)
    )
    rule = {"metric": "floor.mse_share", "layers": layers, "min": 0.1}
    means = () if defenses else ("noise",)
    plan = planned(subject, rule, sizes=[size_of("floor")], means=means)
    assert not plan.failed
    assert plan.protection.hidden == ("fc1", "fc2")


def test_settings_name_what_is_hidden_and_blurred(
    subject: Subject, updates: UndefendedUpdates
) -> None:
    protection = Protection(("fc1", "fc2"), ("fc1",), 0.25)
    words = options(protection, updates)
    clip = 2 * max(float(u["fc2"].norm()) for u in updates.batches)
    assert words == (f"--hide fc1 --defense dp:clip={clip:.3g},sigma=0.25,per=release,layers=fc2")
    settings: Any = framework_settings(protection, subject.target.model)
    assert settings["nvflare"]["exclude"]["args"] == {"exclude_vars": ["fc1.weight", "fc1.bias"]}
    assert settings["flower"] == {"exclude-vars": "fc1.weight,fc1.bias"}


PLAN = ("plan", "-m", MODEL, "-d", "diabetes", "--samples", 12, "--quick", "-q")


@pytest.mark.slow
def test_the_command_writes_a_report_and_what_to_paste(tmp_path: Path) -> None:
    rules = tmp_path / "policy.yaml"
    rules.write_text("rules: [{metric: sensitivity.label_f_share, layers: '?*', max: 0.5}]")
    file = tmp_path / "plan.json"
    done = run(*PLAN, "--policy", rules, "-o", file, width=80)
    assert done.status == 0, done.err
    assert "on fresh records, round 1: PASSED by" in done.out
    report = json.loads(file.read_text())
    (cost,) = (row for row in report["measurements"] if row["metric"] == "cost")
    (naive,) = (row for row in report["measurements"] if row["metric"] == "cost_naive")
    assert (cost["audit"], cost["unit"]) == ("plan", "parameters")
    assert cost["value"] <= naive["value"]
    words = report["provenance"]["protection"]["options"]
    assert words == "" or words in " ".join(done.out.split())
    assert run("gate", file, "--policy", rules).status == 0
    assert run("render", file, "-o", tmp_path / "plan.html").status == 0


REFUSED: list[tuple[str, str, list[str]]] = [
    ("sensitivty.label_f", "no audit measures it", []),
    ("sensitivity.label_f", "did you mean 'fc1'", []),
]


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "message", "more"), REFUSED, ids=[m for _, m, _ in REFUSED])
def test_what_is_refused(metric: str, message: str, more: list[str], tmp_path: Path) -> None:
    rules = tmp_path / "policy.yaml"
    rules.write_text(f"rules: [{{metric: {metric}, layers: fc11, max: 1}}]")
    done = run(*PLAN, "--policy", rules, *more)
    assert done.status == 2
    assert message in done.err
    assert done.err.count("\n") == 1


@pytest.mark.slow
def test_rules_about_jobs_are_left_aside_with_a_remark(tmp_path: Path) -> None:
    rules = tmp_path / "policy.yaml"
    rules.write_text(
        "rules: [{metric: sensitivity.label_f, max: 1.0e9}, {metric: job.faults, max: 0.0}]"
    )
    done = run(*(word for word in PLAN if word != "-q"), "--policy", rules, "--budget", "60s")
    assert done.status == 0, done.err
    assert "policy.yaml: job.faults is left aside" in done.err
    assert "round 1: PASSED by policy.yaml" in done.out
    rules.write_text("rules: [{metric: job.faults, max: 0.0}]")
    alone = run(*PLAN, "--policy", rules)
    assert (alone.status, alone.err.count("no rule of level error")) == (2, 1)


def test_every_audit_of_a_plan_can_measure_the_printed_policy() -> None:
    settings = settle(PlanSettings, {}, {})
    read = Policy.model_validate(yaml.safe_load(default_policy_yaml()))
    ladders = choose_audits(settings, {})
    assert out_of_reach(read, ladders) == ()
    named = {sizes[-1].audit.reports_as() for sizes in needed(read, ladders)}
    assert {"vinfo", "sensitivity", "attack"} <= named


def test_a_policy_is_asked_for() -> None:
    done = run(*PLAN)
    assert (done.status, done.err.count("--policy is needed")) == (2, 1)


@pytest.mark.slow
def test_where_no_plan_passes_the_nearest_is_shown(tmp_path: Path) -> None:
    rules = tmp_path / "policy.yaml"
    rules.write_text("rules: [{metric: sensitivity.input_f, layers: '?*', max: 1.0e-12}]")
    done = run(*PLAN, "--policy", rules)
    assert done.status == 1
    assert "still beyond" in done.out
    assert "FAILED: no plan passes" in done.out
    assert "no plan was found that shares a layer" in done.err
