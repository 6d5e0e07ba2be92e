"""Plans for a real model, from the trial of one protection to what the command prints."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
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
from gradaudit.protection import trial
from gradaudit.protection.asking import needed, out_of_reach
from gradaudit.protection.costs import costs
from gradaudit.protection.guards import HIDE, OPEN, Guard, Protection, UndefendedUpdates
from gradaudit.protection.planner import Planner
from gradaudit.protection.protection_plan import framework_settings, options
from gradaudit.protection.trial import Bench, half_of, split_records, verdict_of
from gradaudit.report import Measurement, Report
from gradaudit.run.opening import open_subject
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
    rows = torch.stack([torch.cat([*each["fc1"].values()]) for each in updates.batches]).double()
    assert rows.shape[1] == updates.elements("fc1") == 10 * 8 + 8
    energy, count = float(rows.square().sum(dim=1).mean()), rows.shape[1]
    assert updates.lost("fc1", OPEN) == 0
    assert updates.lost("fc1", HIDE) == 1
    assert updates.lost("fc1", Guard("noise", 0.3)) == pytest.approx(
        0.09 * count / (energy + 0.09 * count), rel=1e-5
    )
    weight = torch.stack([each["fc1"]["fc1.weight"] for each in updates.batches]).double()
    bias = torch.stack([each["fc1"]["fc1.bias"] for each in updates.batches]).double()
    kept = sum(
        float(t.square().sort(dim=1, descending=True).values[:, :n].sum(dim=1).mean())
        for t, n in ((weight, 40), (bias, 4))
    )
    assert updates.lost("fc1", Guard("prune", 0.5)) == pytest.approx(1 - kept / energy, rel=1e-5)
    assert updates.mean_energy("fc1") == pytest.approx(
        float(rows.mean(dim=0).square().sum()), rel=1e-5
    )


def test_what_layers_weigh(subject: Subject, updates: UndefendedUpdates) -> None:
    sizes = {
        name: dict(kind().sizes(subject.target, subject.records, updates))
        for name, kind in costs().items()
    }
    parameters = {"fc1": 88.0, "fc2": 54.0, "output": 14.0}
    assert sizes["parameters"] == parameters
    assert sizes["bytes"] == {layer: 4 * count for layer, count in parameters.items()}
    assert sizes["flops"] == {"fc1": 160, "fc2": 96, "output": 24}
    assert sizes["accuracy"].keys() == parameters.keys()
    shares = costs()["parameters"]().weights(subject.target, subject.records, updates)
    assert shares["fc1"] == pytest.approx(88 / 156)


def test_parts_and_halves_share_no_user() -> None:
    users = np.repeat([f"u{n}" for n in range(20)], 5)
    records = Records(torch.arange(100.0)[:, None], torch.zeros(100, dtype=torch.long), users=users)
    parts = split_records(records, 2, seed=0)
    held = [set(part.users.tolist()) for part in parts if part.users is not None]
    assert [len(part) for part in parts] == [50, 25, 25]
    assert sum(map(len, held)) == len(set.union(*held)) == 20
    with pytest.raises(AuditError, match="too few"):
        split_records(records, 10, seed=0)
    halves = [half_of(records, 0, number) for number in range(2)]
    held = [set(half.users.tolist()) for half in halves if half.users is not None]
    assert [len(half) for half in halves] == [50, 50]
    assert [len(names) for names in held] == [10, 10]
    assert held[0] not in (held[1], set(users.tolist()) - held[1])


@pytest.mark.slow
def test_rows_of_layers_are_measured_once_for_each_guard(
    subject: Subject, updates: UndefendedUpdates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are those of a scan with the same options."""
    rules = policy({"metric": "sensitivity.label_f", "layers": "?*", "max": 1e9})
    bench = Bench(subject, [size_of("sensitivity", probes=8)], rules, updates)
    asked = []
    kind = type(bench.sizes[0].audit)
    measure = kind.run

    def counted(self: Any, subject: Subject, progress: Any) -> Any:
        asked.append([layer.name for layer in subject.layers])
        return measure(self, subject, progress)

    monkeypatch.setattr(kind, "run", counted)
    nothing = Protection.uniform(["fc1", "fc2", "output"])
    before = bench.judged(nothing)
    hidden = bench.judged(nothing.hiding(["fc2"]))
    assert asked == [["fc1", "fc2", "output"]]
    for layer in ("fc1", "output"):
        (old,), (new,) = (r.select("sensitivity.label_f", layer) for r in (before, hidden))
        assert old == new
    assert not hidden.select("sensitivity.label_f", "fc2")
    shares = policy({"metric": "sensitivity.label_f_share", "layers": "?*", "max": 1e9})
    again = replace(bench, policy=shares, _reports={}, _rows={})
    again.judged(nothing)
    again.judged(nothing.hiding(["fc2"]))
    assert asked[1:] == [["fc1", "fc2", "output"], ["fc1", "output"]]


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
    plan = planned(subject, rule)
    assert plan.protection.hidden == ("fc1",)
    assert plan.cost == plan.least == plan.prices["fc1"] == pytest.approx(88 / 156)
    assert plan.verdict.passed
    assert {layer.name for layer in plan.judged.target.layers} == {"fc2", "output"}
    costs = {name: cost for name, (_, cost) in plan.naive.items()}
    assert costs == pytest.approx({"first layers": 88 / 156, "last layers": 1.0})
    assert plan.cheapest_naive == ("first layers", pytest.approx(88 / 156))


@pytest.mark.slow
def test_a_plan_is_found_where_the_first_measurement_took_all_the_time(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began at 0 and was done at 10; trials that take no time follow until one passes."""
    rule = {"metric": "sensitivity.input_f_bounded", "layers": "?*", "max": 1.0}
    ticks = itertools.chain([0.0], itertools.repeat(10.0))
    monkeypatch.setattr(trial, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    plan = planned(subject, rule, left=lambda: -1.0)
    assert plan.protection.hidden == ("fc1",)
    guards = [guard for trial in plan.trials for guard in set(trial.protection.guards)]
    assert {guard.kind for guard in guards} == {"open", "hide"}
    ticks = itertools.chain([0.0, 10.0], itertools.repeat(20.0))
    assert not planned(subject, rule, left=lambda: -1.0).verdict.passed


def told_by_whole_updates(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Protection], float]:
    """Let trials find the AUROC of the best attacker on a whole update, and return that law.

    Of an update under Gaussian noise against none it is Φ(μ/√2), with μ² the sum over layers of the
    squared norm over the noise's variance.
    """
    template = Bench(
        subject, [size_of("sensitivity", probes=8)], policy(), UndefendedUpdates.of(subject)
    )
    open_report = template.judged(Protection.uniform(["fc1", "fc2", "output"]))
    updates = template.updates

    def auroc(protection: Protection) -> float:
        shared = [(layer, guard) for layer, guard in protection if guard != HIDE]
        if any(guard.kind != "noise" for _, guard in shared):
            return 1.0
        sizes = (updates.elements(n) * (updates.size(n) / g.amount) ** 2 for n, g in shared)
        return float(ndtr(np.sqrt(sum(sizes) / 2)))

    def judged(self: Bench, protection: Protection, seconds: float | None = None) -> Report:
        value = auroc(protection)
        row = Measurement(
            audit="attack", metric="auroc", value=value, interval=(value, value), confidence=0.95
        )
        kept = [layer for layer in open_report.target.layers if layer.name in protection.shared]
        target = open_report.target.model_copy(update={"layers": kept})
        report = open_report.model_copy(update={"measurements": [row], "target": target})
        return gate(report, self.policy)

    monkeypatch.setattr(Bench, "judged", judged)
    return auroc


@pytest.mark.slow
def test_noise_goes_up_until_the_policy_passes(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise of DP-SGD is √n times the updates' deviation: 12.5 times it for 156 elements."""
    auroc = told_by_whole_updates(subject, monkeypatch)
    plan = planned(subject, {"metric": "attack.auroc", "layers": "", "max": 0.75})
    assert plan.verdict.passed
    assert plan.protection.shared
    assert 0.72 < auroc(plan.protection) <= 0.75
    assert not any(
        auroc(trial.protection) <= 0.75
        for trial in plan.trials
        if max(guard.amount for guard in trial.protection.guards) < 10 * plan.updates.scale
        and not trial.protection.hidden
    ), "which the first levels do not reach"
    assert plan.least <= plan.cost < 1


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0.6, 0.9])
def test_a_plan_is_found_though_there_is_time_for_nothing(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, limit: float
) -> None:
    """The utmost noise is tried whatever the time."""
    auroc = told_by_whole_updates(subject, monkeypatch)
    rule = {"metric": "attack.auroc", "layers": "", "max": limit}
    plan = planned(subject, rule, left=lambda: -1e9)
    assert plan.verdict.passed
    assert auroc(plan.protection) <= limit


@pytest.mark.slow
def test_where_no_noise_is_enough_only_sharing_nothing_passes(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    told_by_whole_updates(subject, monkeypatch)
    plan = planned(subject, {"metric": "attack.auroc", "layers": "", "max": 0.5})
    assert not plan.verdict.passed
    assert (plan.untried, plan.least) == (False, pytest.approx(1))
    noise = max(guard.amount for trial in plan.trials for guard in trial.protection.guards)
    assert noise == pytest.approx(10 * plan.updates.length, rel=0.01)


@pytest.mark.slow
def test_a_row_of_the_model_is_measured_anew_for_every_protection(
    subject: Subject, updates: UndefendedUpdates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers' rows alone would leave it out, or make it of the layers that are new."""
    rules = policy({"metric": "attack.auroc", "layers": "*", "max": 0.75})
    named = replace(subject, samples=None, attributes=("sex",))
    sizes = [size_of("attack property", batches=60, trials=40, repeats=2)]
    bench = Bench(named, sizes, rules, updates)
    everything = Protection.uniform(["fc1", "fc2", "output"])
    for protection in (everything, everything.hiding(["fc1"])):
        found = bench.judged(protection).select("attack.auroc")
        alone = Bench(named, sizes, rules, updates).judged(protection).select("attack.auroc")
        assert {row.layer for row in found} == {None, *protection.shared}
        assert [row.value for row in found] == [row.value for row in alone]


SMOOTH = "zoo:mlp?inputs=10&hidden=4&classes=2&activation=tanh"


@pytest.mark.slow
def test_noise_for_a_floor_passes_on_fresh_records_and_costs_less_than_uniform() -> None:
    """Beside a measured rule that asks for a layer to be hidden, all measured on other records."""
    subject = open_subject(SubjectSettings(model=SMOOTH, data="diabetes", samples=12))
    rules = (
        {"metric": "floor.mse_share", "layers": "", "min": 0.4},
        {"metric": "floor.nats", "layers": "output", "max": 2.0},
        {"metric": "sensitivity.label_f", "layers": "?*", "max": 1e9},
    )
    sizes = [size_of("sensitivity", probes=8), size_of("floor")]
    plan = planned(subject, *rules, sizes=sizes, strict=True)
    assert plan.verdict.passed
    assert "uniform noise" in plan.naive
    assert plan.cost <= min(cost for _, cost in plan.naive.values())
    (floor,) = (row for row in plan.judged.select("floor.mse_share") if row.layer is None)
    assert floor.number is not None
    assert 0.4 <= floor.number < 0.6
    assert {guard.kind for guard in plan.protection.guards} <= {"noise", "hide"}


def test_a_floor_without_noise_is_none(subject: Subject, updates: UndefendedUpdates) -> None:
    """A layer may lack it for another's sake, so nothing is said of which is to be protected."""
    rules = policy({"metric": "floor.mse_share", "layers": "*", "min": 0.5})
    bench = Bench(subject, [size_of("floor")], rules, updates)
    verdict = verdict_of(bench.judged(Protection.uniform(["fc1", "fc2", "output"])))
    assert verdict.whole
    assert not verdict.layers


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
    assert plan.verdict.passed
    assert plan.protection.hidden == ("fc1", "fc2")


def test_settings_name_what_is_hidden_and_blurred(
    subject: Subject, updates: UndefendedUpdates
) -> None:
    noise = Guard("noise", 0.25)
    protection = Protection(("fc1", "fc2", "output"), (HIDE, noise, OPEN))
    words = options(protection, updates)
    clip = 2 * max(float(torch.cat([*u["fc2"].values()]).norm()) for u in updates.batches)
    assert words == (f"--hide fc1 --defense dp:clip={clip:.3g},sigma=0.25,per=release,layers=fc2")
    settings: Any = framework_settings(protection, subject.target.model)
    assert settings["nvflare"]["exclude"]["args"] == {"exclude_vars": ["fc1.weight", "fc1.bias"]}
    assert settings["flower"] == {"exclude-vars": "fc1.weight,fc1.bias"}
    cut = Protection(("fc1", "fc2", "output"), (HIDE, Guard("prune", 0.9), Guard("prune", 0.9)))
    assert options(cut, updates) == "--hide fc1 --defense prune:0.9"


PLAN = ("plan", "-m", MODEL, "-d", "diabetes", "--samples", 12, "--quick", "-q")


@pytest.mark.slow
def test_the_command_writes_a_report_and_what_to_paste(tmp_path: Path) -> None:
    rules = tmp_path / "policy.yaml"
    rules.write_text("rules: [{metric: sensitivity.label_f_share, layers: '?*', max: 0.5}]")
    files = [tmp_path / "plan.json", tmp_path / "frontier.svg"]
    done = run(*PLAN, "--policy", rules, "-o", files[0], "--picture", files[1], width=80)
    assert done.status == 0, done.err
    assert "on fresh records, round 1: PASSED by" in done.out
    report = json.loads(files[0].read_text())
    (cost,) = (row for row in report["measurements"] if row["metric"] == "cost")
    (naive,) = (row for row in report["measurements"] if row["metric"] == "cost_naive")
    assert (cost["audit"], cost["unit"]) == ("plan", "parameters")
    assert cost["value"] <= naive["value"]
    assert files[1].read_text().startswith("<?xml")
    words = report["provenance"]["protection"]["options"]
    assert words == "" or words in " ".join(done.out.split())
    assert run("gate", files[0], "--policy", rules).status == 0
    assert run("render", files[0], "-o", tmp_path / "plan.html").status == 0


REFUSED: list[tuple[str, str, list[str]]] = [
    ("sensitivty.label_f", "no audit measures it", []),
    ("sensitivity.label_f", "no such cost", ["--cost", "money"]),
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
    assert "at least 100.0%" in done.out
    assert "only sharing nothing passes" in done.err
