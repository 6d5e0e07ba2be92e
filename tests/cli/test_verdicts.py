"""One screen has one verdict: FAILED and exit 1 belong together, and weakness passes nothing."""

import json
from pathlib import Path

import pytest
import torch
from command_line import run
from job_folders import chain, dp, nvflare_job
from safetensors.torch import save_file

from gradaudit.audits import audits
from gradaudit.judging import known_metrics
from gradaudit.models.building import load_model
from gradaudit.report import Report

SAMPLE = (
    *("-m", "sample_models/models.py:digits_cnn", "-d", "digits"),
    *("-c", "sample_models/digits/round-10.safetensors"),
)
WEAK = ("attack", "reconstruct", *SAMPLE, "--method", "dlg", "--iterations", "1", "--restarts", "1")
LIMITS = "rules: [{metric: attack.relative_error, min: 0.1}]\n"
SLANT = ("-a", "slant")
TABLE = ("-m", "zoo:mlp?inputs=10&classes=2", "-d", "diabetes")
BATCHES = ("--batches", "40", "--family", "logistic")
STRONG = ("attack", "reconstruct", *SAMPLE, "--method", "closed-form", "--batches", "2")


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


def test_a_single_audit_has_findings_and_no_verdict(tmp_path: Path) -> None:
    done = run(*STRONG, "-o", tmp_path / "r.json", "-o", tmp_path / "r.md")
    assert done.status == 0
    assert "MEASURED" in done.out
    assert "Records are reconstructed." in done.out
    assert not {"PASSED", "FAILED", "UNDECIDED"} & set(done.out.split())
    assert "FAILED" not in (tmp_path / "r.md").read_text()
    judged = run("gate", tmp_path / "r.json")
    assert (judged.status, "FAILED" in judged.out) == (1, True)


def test_a_policy_judges_a_single_audit(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(LIMITS)
    done = run(*STRONG, "--policy", policy)
    assert (done.status, "FAILED" in done.out) == (1, True)
    assert run(*STRONG, "--policy", policy, "--exit-zero").status == 0


def test_a_weak_attack_passes_nothing(tmp_path: Path) -> None:
    policy, report = tmp_path / "policy.yaml", tmp_path / "r.json"
    policy.write_text(LIMITS)
    outputs = [run(*WEAK, "-o", report, "-o", tmp_path / "r.md", "-o", tmp_path / "r.html")]
    rows = json.loads(report.read_text())["measurements"]
    assert {row["details"]["effort"] for row in rows if row["status"] == "measured"} == {"below"}
    outputs += [run(*WEAK, "--policy", policy), run("gate", report)]
    outputs += [run("gate", report, "--policy", policy), run("render", report, "-o", "-")]
    written = [(tmp_path / name).read_text() for name in ("r.md", "r.html")]
    for text in (*(each.out for each in outputs), *written):
        assert "PASSED" not in text
    strict = run("gate", report, "--policy", policy, "--strict")
    assert (strict.status, "PASSED" in strict.out) == (1, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("scan", "--quick"),
        ("scan", "--quick", "--audits", "attack"),
        STRONG,
        WEAK,
        ("attack", "labels", *SAMPLE),
        ("attack", "record", *SAMPLE, "--updates", "48", "--shadow", "200", "--candidates", "64"),
        ("sensitivity", *SAMPLE, "--samples", "8"),
        ("copa-metric", *SAMPLE),
        ("forward", *SAMPLE, "--samples", "64"),
        ("subspace", *SAMPLE, *SLANT, "--permutations", "20"),
        ("vinfo", *SAMPLE, *SLANT, *BATCHES, "--repeats", "2"),
        ("attack", "property", *SAMPLE, *SLANT, *BATCHES, "--trials", "100", "--repeats", "1"),
        ("attack", "distribution", *SAMPLE, *SLANT, *BATCHES, "--trials", "100", "--repeats", "1"),
        ("attack", "tracing", *SAMPLE, "--participants", "2", "--iterations", "2"),
        ("attack", "malicious-server", *SAMPLE),
        ("sweep", "attack", "reconstruct", *SAMPLE, "--method", "closed-form", "--batches", "1",
         "--over", "seed=0,1"),
        ("dp-audit", "-m", "zoo:mlp?inputs=10", "-d", "diabetes", "-a", "sex", "--mechanism",
         "dp:clip=1,sigma=1", "--trials", "200", "--restarts", "1", "--claimed-epsilon", "1"),
        ("floor", *TABLE, "--samples", "8",
         "--directions", "16", "--defense", "dp:clip=1,sigma=.1"),
        ("tradeoff", *TABLE, "--rounds", "1", "--defense", "prune:0.5|0.9"),
    ],
    ids=lambda command: " ".join(command[:3]),
)  # fmt: skip
def test_failed_is_printed_where_and_only_where_the_command_exits_with_1(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    done = run(*command, "-q", "-o", report := tmp_path / "r.json")
    assert done.status in (0, 1), done.err
    assert ("FAILED" in done.out) == (done.status == 1)
    judged = run("gate", report)
    assert judged.status == 1 or "FAILED" not in judged.out
    assert not (succeeded(report) and ("PASSED" in done.out or "PASSED" in judged.out))


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1e-6, 1e6], ids=["exceeded", "kept"])
def test_jobs_updates_and_plans_print_failed_where_they_exit_with_1(
    tmp_path: Path, limit: float
) -> None:
    policy, update = tmp_path / "policy.yaml", tmp_path / "update.safetensors"
    torch.manual_seed(0)
    model = load_model("zoo:mlp?inputs=10&classes=2")
    save_file({name: torch.randn_like(w) for name, w in model.named_parameters()}, update)
    rules = {
        "sensitivity.input_f_bounded_median": ("plan", *TABLE, "--quick"),
        "observe.norm": ("observe", *TABLE, "--update", update),
        "job.epsilon_client": (
            *("job", nvflare_job(tmp_path / "job", [chain(dp())])),
            *("--noise", "gaussian"),
        ),
    }
    for metric, command in rules.items():
        policy.write_text(f"rules: [{{metric: {metric}, max: {limit}}}]\n")
        done = run(*command, "--policy", policy, "-q")
        assert done.status in (0, 1), done.err
        assert ("FAILED" in done.out) == (done.status == 1)
        assert ("PASSED" in done.out) == (limit > 1), done.out
        assert run(*command, "--policy", policy, "-q", "--exit-zero").status == 0


def succeeded(report: Path) -> list[str]:
    """The attacks that the report shows to be beyond the limit of an error, from its rows alone."""
    known = known_metrics()
    beyond = []
    for row in Report.from_file(report).rows:
        metric = known[row.id]
        if row.value is not None and metric.error is not None and metric.cleared:
            low, high = row.interval or (row.value, row.value)
            lower = metric.riskier == "lower"
            if high < metric.error if lower else low > metric.error:
                beyond.append(row.id)
    return beyond


def test_an_attack_that_rebuilds_records_has_the_limit_of_an_error() -> None:
    for audit in audits().values():
        for metric in audit.metrics:
            if metric.cleared and metric.question == "records" and metric.warning is not None:
                assert metric.error is not None, metric.id
