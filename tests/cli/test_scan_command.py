"""``gradaudit scan``: what it chooses, plans, judges and refuses."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest
from fake_audit import Counting
from fake_command_line import only_counting, run

from gradaudit.cli.commands.scan import sample_folder
from gradaudit.judging import gate, passed, read_policy
from gradaudit.report import Report
from gradaudit.subject import Subject
from gradaudit.view.facts import warnings

__all__ = ["only_counting"]
pytestmark = pytest.mark.usefixtures("only_counting")

SUBJECT = ("-m", "zoo:mlp?inputs=10&hidden=3&classes=2", "-d", "diabetes", "--device", "cpu")


def counted(out: str) -> float | None:
    return Report.model_validate_json(out).select("counting.count", layer="fc1")[0].value


def test_without_arguments_it_audits_the_sample_model() -> None:
    done = run("scan", "-f", "json")
    assert (done.status, done.err) == (0, "")
    report = Report.model_validate_json(done.out)
    assert [layer.name for layer in report.target.layers] == ["conv1", "conv2", "fc1", "fc2"]
    (checkpoint,) = report.target.checkpoints
    assert Path(checkpoint.file).name == "round-10.safetensors"
    accuracy = report.data["accuracy"]
    assert isinstance(accuracy, dict)
    assert isinstance(accuracy["value"], float)
    assert accuracy["value"] > 0.95


def test_several_rounds_from_a_config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sample_folder().parent)
    done = run("scan", "--config", "sample_models/audit.yaml", "-f", "json")
    assert done.status == 0
    files = [checkpoint["file"] for checkpoint in json.loads(done.out)["target"]["checkpoints"]]
    assert [Path(file).stem for file in files] == ["round-01", "round-03", "round-10"]


@pytest.mark.slow
def test_presets_give_way_to_the_file(tmp_path: Path) -> None:
    config = tmp_path / "audit.yaml"
    config.write_text("quick: true\ncounting: {doubled: false}\n")
    scan = ("scan", *SUBJECT, "-f", "json")
    assert counted(run(*scan).out) == 60
    assert counted(run(*scan, "--quick").out) == 30
    assert counted(run(*scan, "--thorough").out) == 600
    assert counted(run(*scan, "--config", config).out) == 15
    assert counted(run(*scan, "--config", config, "--no-quick").out) == 30
    assert counted(run(*scan, "--config", config, "--no-quick", "--thorough").out) == 300


@pytest.mark.slow
def test_a_plain_scan_has_a_preset_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counting, "plain", {"scale": 2.0, "doubled": False})
    config = tmp_path / "audit.yaml"
    config.write_text("counting: {scale: 3.0}\n")
    scan = ("scan", *SUBJECT, "-f", "json")
    assert counted(run(*scan).out) == 60
    assert counted(run(*scan, "--config", config).out) == 90
    assert counted(run(*scan, "--quick").out) == 30
    assert counted(run(*scan, "--thorough").out) == 600
    assert counted(run("counting", *SUBJECT, "-f", "json").out) == 60


@pytest.mark.parametrize(
    ("named", "asked"), [((), ("slant",)), (("-a", "ink"), ("ink",))], ids=["none", "ink"]
)
def test_the_sample_has_an_attribute_unless_another_is_named(
    named: tuple[str, ...], asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, ...]] = []

    def gradients(audit: Counting, subject: Subject) -> float:
        seen.append(subject.attributes)
        return 0.0

    monkeypatch.setattr(Counting, "gradients", gradients)
    assert run("scan", *named, "--dry-run").status == 0
    assert set(seen) == {asked}


def test_a_dry_run_tells_the_plan_and_measures_nothing(tmp_path: Path) -> None:
    done = run("scan", *SUBJECT, "--dry-run", "-o", tmp_path / "r.json")
    assert done == (
        0,
        "zoo:mlp?inputs=10&hidden=3&classes=2 on 442 records:\n"
        "  counting: plain\n"
        "  together: less than a second on 1 usual core\n",
        "",
    )
    assert not list(tmp_path.iterdir())


def test_a_dry_run_refuses_a_width_as_the_scan_does(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("a,b,y\n" + "1,2,no\n3,5,yes\n" * 8, encoding="utf-8")
    words = ("scan", "-m", "zoo:mlp?inputs=3&hidden=3", "-d", f"csv:{table}?label=y")
    dry, real = run(*words, "--dry-run"), run(*words)
    assert dry.status == real.status == 3
    for done, records in ((dry, 8), (real, 16)):
        assert f"the model cannot be run on inputs of shape ({records}, 2)" in done.err
        assert "unexpected" not in done.err


def test_a_dry_run_says_why_an_audit_has_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def gradients(audit: Counting, subject: Subject) -> float:
        return float(bool(subject.attributes))

    monkeypatch.setattr(Counting, "gradients", gradients)
    words = "counting: nothing to do: name an attribute with -a; this data has sex\n"
    assert words in run("scan", *SUBJECT, "--dry-run").out


@pytest.mark.parametrize(("limit", "status"), [(60, 0), (59, 1)])
def test_a_policy_decides_the_status(limit: int, status: int, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"rules: [{{metric: counting.count, max: {limit}}}]\n")
    done = run("scan", *SUBJECT, "--policy", policy, "-f", "json", "-o", tmp_path / "r.json")
    assert done.status == status
    assert done.err == ("" if status == 0 else f"gradaudit: the report does not pass {policy}\n")
    assert done.out == (tmp_path / "r.json").read_text()


def test_an_audit_that_breaks_off_never_passes_a_policy(tmp_path: Path) -> None:
    (tmp_path / "audit.yaml").write_text("counting: {trouble: crash}\n")
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules: [{metric: counting.count, layers: fc1, max: 1000}]\n")
    done = run("scan", *SUBJECT, "--config", tmp_path / "audit.yaml", "--policy", policy)
    assert done.status == 3
    assert done.err.startswith("gradaudit: counting failed: RuntimeError: first line second")


@pytest.mark.slow
@pytest.mark.parametrize(("command", "module"), [("scan", "commands.scan"), ("counting", "audit")])
def test_what_takes_longer_than_the_budget_is_cut_short_and_fails_its_rule(
    command: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_command = import_module(f"gradaudit.cli.{module}")
    monkeypatch.setattr(of_command, "time_left", lambda seconds: lambda: seconds)
    config, policy = tmp_path / "audit.yaml", tmp_path / "policy.yaml"
    config.write_text("counting: {trouble: sleep}\n")
    policy.write_text("rules: [{metric: counting.count, max: 1000}]\n")
    done = run(command, *SUBJECT, "--config", config, "-f", "json", "--budget", "1s")
    assert (done.status, done.err) == (0, "")
    assert counted(done.out) == (30 if command == "scan" else 600)  # a scan is quick in a second
    report = Report.model_validate_json(done.out)
    assert report.select("counting.count", layer="output")[0].left_out
    judged = gate(report, read_policy(policy))
    assert {each.layer for each in judged.findings if each.says == "error"} == {"output"}
    warning = "not all was run: counting was cut short (a longer --budget runs more)"
    assert warning in warnings(report)


@pytest.mark.parametrize("command", [("scan",), ("counting", "--budget", "1m")])
def test_what_was_interrupted_leaves_an_incomplete_report_that_never_passes(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    config, policy = tmp_path / "audit.yaml", tmp_path / "policy.yaml"
    config.write_text("counting: {trouble: interrupt}\n")
    policy.write_text("rules: [{metric: counting.count, layers: fc1, max: 1000}]\n")
    done = run(*command, *SUBJECT, "--config", config, "-f", "json")
    assert (done.status, done.err) == (130, "gradaudit: interrupted\n")
    report = Report.model_validate_json(done.out)
    assert report.interrupted
    assert not passed(gate(report, read_policy(policy)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--budget", "soon"),
            "--budget: write a time with its unit, as 90s, 5m or 2h (got 'soon')",
        ),
        (("--quick", "--thorough"), "--quick and --thorough: choose one"),
        (
            ("--audits", "counting, countin"),
            "--audits countin: no such audit (did you mean 'counting'?); there are: counting",
        ),
        (("--policy", "no.yaml"), "no.yaml: cannot be read: No such file or directory"),
        (("--policy", "no.yaml", "--dry-run"), "no.yaml: cannot be read: No such file"),
        (("-o", "no/r.json", "--dry-run"), "no/r.json: the folder does not exist; make it first"),
        (("-m", "zoo:mlp"), "--data is needed"),
        (("-c", "x.pt"), "--model is needed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_requests(arguments: tuple[str, ...], message: str) -> None:
    done = run("scan", *arguments)
    assert (done.status, done.out) == (2, "")
    assert re.match(re.escape(f"gradaudit: {message}") + ".*\n$", done.err)


def test_the_report_says_what_was_done_to_a_checkpoint(tmp_path: Path) -> None:
    import torch

    weights = {
        "module.fc1.weight": torch.ones(3, 10, dtype=torch.bfloat16),
        "module.fc1.bias": torch.ones(3),
        "module.output.weight": torch.ones(2, 3),
        "module.output.bias": torch.ones(2),
    }
    torch.save({"state_dict": weights, "epoch": 3}, tmp_path / "c.ckpt")
    done = run("scan", *SUBJECT, "-c", tmp_path / "c.ckpt", "-f", "json")
    (checkpoint,) = Report.model_validate_json(done.out).target.checkpoints
    assert checkpoint.notes == [
        "state dict taken from 'state_dict'",
        "left aside: epoch",
        "prefix 'module.' stripped from the keys",
        "cast from bfloat16 to float32",
    ]
