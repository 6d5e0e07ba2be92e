"""Every command, policy and snippet that a page shows is one: what is printed can be typed."""

import re
import runpy
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from command_line import run
from job_folders import builtin, chain, nvflare_job, privacy_policy
from language_models import SENTENCES, folder_of
from late import Late
from report_builder import make_report, row
from safetensors.numpy import save_file

from gradaudit.cli import FAILED, build, listed_commands
from gradaudit.cli.help import examples_in
from gradaudit.cli.perform import GATE_FAILED
from gradaudit.core.user_code import import_torchvision
from gradaudit.errors import AuditError, UsageError
from gradaudit.executors.stopping import Stopped
from gradaudit.judging import Policy, gate
from gradaudit.observer.observer import Allowance
from gradaudit.protection.guards import Protection, UndefendedUpdates
from gradaudit.protection.planner import Plan, Planner
from gradaudit.report import Report
from gradaudit.run.survey import Survey

jobs, scripts = Late("nvflare.job_config.api"), Late("nvflare.job_config.script_runner")
ROOT = Path(__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("sample_models/*.md"),
    )
    if path.name != "CHANGELOG.md"
}
CONTRIBUTED = ("gradient-norm", "blank", "quantize", "parity", ".csv", ".tsv", "rounding")
"""Parts of recipes, which ``test_contributing`` and ``test_plugin`` install and run."""
STAND_INS = {"MODEL": "sample_models/models.py:diabetes_mlp", "DATA": "diabetes"}
LINES = re.compile(r"^ {4,}(gradaudit (?:.*\\\n)*.*)$", re.MULTILINE)
SPOKEN = re.compile(r"`gradaudit ([a-z][a-z-]*)")


def commands() -> Iterator[Any]:
    for page, text in PAGES.items():
        for line in LINES.findall(text):
            words = line.replace("\\\n", " ")
            if page != "docs/tutorial.md" and not any(name in words for name in CONTRIBUTED):
                yield pytest.param(words, id=f"{page}: {' '.join(words.split())[:60]}")


def helped() -> Iterator[Any]:
    for command in listed_commands():
        for line in examples_in(command.text or ""):
            yield pytest.param(line, id=f"help: {line[:60]}")


def unquoted(line: str) -> str:
    """What of a command line stands in no quotes, without its comment."""
    return re.sub(r"'[^']*'|\"[^\"]*\"| #.*", "", line)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has whatever the pages speak of."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "sample_models").symlink_to(ROOT / "sample_models")
    (folder / "FILE.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def forward(self, x): return super().forward(x[:, :3])\n"
        "def factory(): return Net(nn.Linear(3, 2))\n"
    )
    digits = ROOT / "sample_models" / "digits" / "round-10.safetensors"
    kept = folder / "run" / "client-0"
    kept.mkdir(parents=True)
    (kept / "round-020.safetensors").write_bytes(digits.read_bytes())
    weights = {"0.weight": np.ones((2, 3), "f4"), "0.bias": np.zeros(2, "f4")}
    later = {name: array + 0.01 for name, array in weights.items()}
    save_file(weights, folder / "weights.safetensors")
    for name, state in (("old", weights), ("new", later)):
        save_file(state, folder / f"{name}.safetensors")
        np.savez(folder / f"{name}.npz", *state.values())
    save_file(later, folder / "update.safetensors")
    (folder / "federation.yaml").write_text("clients: 4\nrecords: 4\nbatch-size: 2\n")
    rows = [f"{i % 2},{'fm'[i % 2]},{i},{i * i % 7}" for i in range(24)]
    for name in ("table.csv", "adult.csv"):
        (folder / name).write_text("\n".join(["income,sex,age,hours", *rows]))
    patients = [",".join([*"abcdef", "outcome"]), *(f"0,1,2,3,4,{i},{i % 3}" for i in range(24))]
    (folder / "patients.csv").write_text("\n".join(patients))
    folder_of(folder / "DIR", "GPT2LMHeadModel")
    (folder / "FILE.csv").write_text("\n".join(["COL", *SENTENCES]))
    nvflare_job(folder / "JOB", [chain(builtin("svt_privacy.SVTPrivacy"))])
    privacy_policy(folder / "privacy.json", {"open": []}, "open")
    pictures = np.random.default_rng(0).random((12, 3, 32, 32), "f4")
    np.savez(folder / "pictures.npz", x=pictures, y=np.arange(12) % 10)
    (folder / "policy.yaml").write_text(policies("README.md")[0])
    (folder / "floor.yaml").write_text(policies("docs/plans.md")[1])
    (folder / "audit.yaml").write_text(
        "model: sample_models/models.py:digits_cnn\ndata: digits\nsamples: 16\n"
    )
    (folder / "reports").mkdir(exist_ok=True)
    for name in ("1.json", "2.json"):
        canned().save(folder / "reports" / name)
    for name in ("report.json", "old.json", "new.json"):
        (folder / name).write_text(canned().to_json())
    gate(canned(), folder / "policy.yaml").save(folder / "judged.json")
    return folder


def canned() -> Report:
    """A report that the policy of the README passes."""
    return make_report(
        row("attack.record_auroc", "fc1", 0.52, interval=(0.5, 0.54), details={"effort": "quick"}),
        row("sensitivity.input_f_bounded_share", "conv1", 0.2, interval=(0.1, 0.3)),
        row("vinfo.vinfo", "fc1", 0.2, interval=(0.1, 0.3)),
    )


def swept() -> Report:
    """A report of a sweep."""
    report = make_report(
        *(
            row(metric, "fc1", value, variant={"s": s}, interval=(0.1, 1))
            for metric in ("vinfo.auroc", "vinfo.vinfo")
            for s, value in ((0.1, 0.8), (1, 0.6))
        )
    )
    more = {"audits": {"vinfo": {}}, "sweep": {"s": ["0.1", "1"]}}
    return report.model_copy(update={"provenance": {**report.provenance, **more}})


def nothing_to_do() -> Plan:
    """A plan that protects nothing, and passes."""
    return Plan(
        protection=Protection(("fc1",)),
        cost=0.0,
        naive={},
        judged=gate(canned()),
        failed=(),
        trials=1,
        out_of_time=False,
        rounds=1,
        prices={"fc1": 1.0},
        updates=UndefendedUpdates(({"fc1": torch.ones(2)},)),
    )


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch, desk: Path) -> None:
    """All but the measuring itself, which the tests of the audits do."""
    monkeypatch.chdir(desk)
    (desk / "sweep.json").write_text(swept().to_json())  # as an example writes one over it
    monkeypatch.setattr("gradaudit.run.runner.run", lambda *_, **__: canned())
    monkeypatch.setattr("gradaudit.run.training.train", lambda *_, **__: [])
    monkeypatch.setattr(Planner, "__init__", lambda *_, **__: None)
    monkeypatch.setattr(Planner, "plan", lambda _: nothing_to_do())
    monkeypatch.setattr(Survey, "go", lambda *_: None)
    monkeypatch.setattr(Survey, "report", lambda *_, **__: canned())


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("line", [*commands(), *helped()])
def test_what_a_page_shows_can_be_typed(
    line: str, desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *before, line = line.split(" | ")  # of a pipe, what its last command gets is a report
    _, *words = shlex.split(line, comments=True)
    if words[0] == "init":  # it wants a folder that has no configuration yet
        (tmp_path / "sample_models").symlink_to(ROOT / "sample_models")
        (tmp_path / "JOB").symlink_to(desk / "JOB")
        monkeypatch.chdir(tmp_path)
    given = run(*shlex.split(before[0])[1:]).out if before else ""
    done = run(*(STAND_INS.get(word, word) for word in words), given=given)
    # reports that the page judges may fail, and print FAILED then
    assert done.status == 0 or (done.status == GATE_FAILED and "FAILED" in done.out), done.err
    assert not re.search(r"[?*\[\](){}<>|&;~]", unquoted(line)), "a shell would take it apart"


WITHIN_A_LINE = re.compile(r"`(gradaudit [^`]*)`")
ALTERNATIVES = re.compile(r"\b\w+(?:\|\w+)+\b")
"""As in ``schema report|policy``: one of them is to be typed."""


def test_what_a_sentence_shows_needs_no_more_quotes() -> None:
    for page, text in PAGES.items():
        for spoken in WITHIN_A_LINE.findall(text):
            words = ALTERNATIVES.sub("", unquoted(spoken))
            assert not re.search(r"[?*\[\](){}<>|&;~]", words), f"{page}: {spoken}"


def test_every_command_that_a_page_names_exists() -> None:
    app = build()
    known = {command.name for command in app.registered_commands}
    groups = {group.name for group in app.registered_groups}
    for page, text in PAGES.items():
        for spoken in SPOKEN.findall(text):
            assert spoken in known | groups, f"{page}: gradaudit {spoken}"


def policies(page: str) -> list[str]:
    return [
        block
        for block in re.findall(r"```yaml\n(.*?)```", PAGES[page], re.DOTALL)
        if "rules:" in block
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if policies(page)])
def test_every_policy_that_a_page_shows_is_one(page: str) -> None:
    for block in policies(page):
        assert Policy.model_validate(yaml.safe_load(block)).rules


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_every_snippet_runs(page: str, monkeypatch: pytest.MonkeyPatch, desk: Path) -> None:
    monkeypatch.chdir(desk)
    model = runpy.run_path("sample_models/models.py")["digits_cnn"]()
    names = {"model": model, "inputs": torch.rand(6, 1, 8, 8), "labels": torch.arange(6)}
    names["torch"] = torch
    for block in re.findall(r"```python\n(.*?)```", PAGES[page], re.DOTALL):
        exec(block, names)
    assert isinstance(names["judged"], Report)


@pytest.mark.slow
def test_every_snippet_of_a_federation_runs(monkeypatch: pytest.MonkeyPatch, desk: Path) -> None:
    """With the frameworks themselves; training is the reader's own."""
    import_torchvision("ops")
    monkeypatch.chdir(desk)
    page = "docs/federation.md"
    monkeypatch.setattr("gradaudit.observer.observer.read_policy", lambda _: policies_of(page)[0])
    monkeypatch.setattr(Allowance, "earn", lambda allowance, _: setattr(allowance, "left", 60.0))
    inputs, labels = torch.rand(6, 3), torch.arange(6) % 3
    model = torch.nn.Linear(3, 3)

    def train(trained: torch.nn.Module) -> None:
        torch.nn.functional.cross_entropy(trained(inputs), labels).backward()
        torch.optim.SGD(trained.parameters(), lr=0.1).step()

    names = {"model": model, "labels": labels, "train": train, "job": jobs.FedJob()}
    names["job"].to(scripts.ScriptRunner(script="FILE.py"), "site-1")
    for block in re.findall(r"```python\n(.*?)```", PAGES[page], re.DOTALL):
        exec(block, names)
    assert Report.from_file(desk / "reports" / "00002.json").findings
    assert (desk / "updates" / "00001.safetensors").exists()


def policies_of(page: str) -> list[Policy]:
    return [Policy.model_validate(yaml.safe_load(block)) for block in policies(page)]


def test_the_exit_statuses_are_those_of_the_code() -> None:
    stopped = {Stopped(number).status for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    failed = {GATE_FAILED, UsageError.exit_status, AuditError.exit_status, FAILED}
    for page in ("README.md", "docs/ci.md"):
        cells = re.findall(r"^\| ([\d, ]+) \|", PAGES[page], re.MULTILINE)
        documented = {int(status) for cell in cells for status in cell.split(",")}
        assert documented == {0} | failed | stopped


LIMITS = {"README.md": 1000, "SECURITY.md": 700, "CONTRIBUTING.md": 1200}


@pytest.mark.parametrize("page", LIMITS)
def test_a_first_page_is_short(page: str) -> None:
    assert len(PAGES[page].split()) <= LIMITS[page]
