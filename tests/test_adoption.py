"""What others' tools read of the repository does what it says: workflow, action, hook, sdist."""

import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import HANGS, run
from packaging.requirements import Requirement
from report_builder import make_report, row

import gradaudit

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
CONFIG = "model: zoo:mlp?inputs=10&classes=2&hidden=3\ndata: diabetes\naudits: [forward]\n"
POLICY = "rules: [{metric: forward.fraction, max: 2}]\n"
MEASURED = "\n".join(["import sys", "from gradaudit.__main__ import main", "sys.exit(main())"])


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    """A folder as a workflow checks it out, with ``gradaudit`` as pip would install it."""
    (tmp_path / "bin").mkdir()
    put(tmp_path, "gradaudit", f"#!{sys.executable}\n{MEASURED}\n")
    put(tmp_path, "python", "#!/bin/sh\n")  # which pip is called by
    (tmp_path / "gradaudit.yaml").write_text(CONFIG)
    (tmp_path / "policy.yaml").write_text(POLICY)
    return tmp_path


def put(folder: Path, name: str, program: str) -> None:
    path = folder / "bin" / name
    path.write_text(program)
    path.chmod(0o755)


def shell(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a step as GitHub runs those of ``shell: bash``."""
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
            "GITHUB_OUTPUT": str(folder / "outputs"),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )


def run_workflow(folder: Path) -> list[subprocess.CompletedProcess[str]]:
    """Run the page's steps; its baseline is the report of its own scan."""
    done = []
    for each in workflow_steps():
        if "run" in each:
            done.append(shell(each["run"], folder))
        if "gradaudit scan" in each.get("run", ""):
            shell("cp report.json baseline.json", folder)
    return done


def workflow_steps() -> list[dict[str, Any]]:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    workflow = page.split("```yaml\n# .github/workflows/")[1].split("```")[0].partition("\n")[2]
    return list(yaml.safe_load(workflow)["jobs"]["gradients"]["steps"])


@pytest.mark.slow
def test_the_workflow_of_the_page_passes(runner: Path) -> None:
    steps = workflow_steps()
    done = run_workflow(runner)
    assert [step.returncode for step in done] == [0] * 4, [step.stderr for step in done]
    assert done[2].stdout.splitlines()[-1].startswith("::notice title=gradaudit::PASSED by")
    assert (runner / steps[-1]["with"]["sarif_file"]).is_file()
    assert (runner / "summary.md").read_text() == (runner / "gradaudit.md").read_text()


def step(name: str) -> dict[str, Any]:
    (found,) = [each for each in ACTION["runs"]["steps"] if each["name"] == name]
    assert found["shell"] == "bash"
    return dict(found)


def given(name: str, **inputs: str) -> dict[str, str]:
    """The environment of a step: what the inputs are."""
    values = {
        f"inputs.{key}": inputs.get(key, each["default"]) for key, each in ACTION["inputs"].items()
    }
    return {
        key: values[value.removeprefix("${{ ").removesuffix(" }}")]
        for key, value in step(name)["env"].items()
    }


@pytest.mark.parametrize("arguments", ["", "--samples 20 --layer 'fc *' -a $(x)"])
def test_the_action_measures_what_it_is_told(runner: Path, arguments: str) -> None:
    put(runner, "gradaudit", '#!/bin/sh\nprintf "%s\\n" "$@"')
    done = shell(step("Measure")["run"], runner, **given("Measure", arguments=arguments))
    ours = ["scan", "--quiet", "--exit-zero", "-o", "gradaudit-report.json"]
    named = ["--config", "gradaudit.yaml"]
    assert done.stdout.splitlines() == [*ours, *named, *shlex.split(arguments)]
    (runner / "gradaudit.yaml").unlink()
    done = shell(step("Measure")["run"], runner, **given("Measure", arguments=arguments))
    assert done.stdout.splitlines() == [*ours, *shlex.split(arguments)]


@pytest.mark.parametrize("ended", [0, 2, 3, 130])
def test_the_action_has_the_exit_status_of_the_scan(runner: Path, ended: int) -> None:
    put(runner, "gradaudit", f"#!/bin/sh\nexit {ended}")
    assert shell(step("Measure")["run"], runner, **given("Measure")).returncode == ended


def test_arguments_with_an_open_quote_are_wrong_usage(runner: Path) -> None:
    put(runner, "gradaudit", "#!/bin/sh\ntouch ran")
    asked = given("Measure", arguments="--data 'diabetes")
    assert shell(step("Measure")["run"], runner, **asked).returncode == 2
    assert not (runner / "ran").exists()


def test_the_action_judges_a_report_that_lies_there(runner: Path) -> None:
    put(runner, "gradaudit", '#!/bin/sh\nprintf "%s\\n" "$@"')
    asked = given("Judge", report="their report.json")
    done = shell(step("Judge")["run"], runner, **asked)
    assert done.stdout.splitlines()[:2] == ["gate", "their report.json"]
    assert done.returncode == 0
    assert step("Measure")["if"] == "inputs.report == ''"


def light_install() -> list[str]:
    """The packages that the page of CI installs for judging."""
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    return page.split("install --no-deps gradaudit\n")[1].splitlines()[0].split()[4:]


def test_the_action_installs_no_more_to_judge_than_the_page_says(runner: Path) -> None:
    put(runner, "python", '#!/bin/sh\necho "$@"')
    script, source = step("Install")["run"], "a folder"
    done = shell(script, runner, SOURCE=source, REPORT="report.json")
    pip = f"-m pip install --quiet -c {source}/constraints.txt"
    small = " ".join(light_install())
    assert done.stdout.splitlines() == [f"{pip} --no-deps {source}", f"{pip} {small}"]
    assert shell(script, runner, SOURCE=source, REPORT="").stdout.splitlines() == [
        f"{pip} {source}"
    ]


@pytest.mark.slow
def test_judging_needs_no_more_than_the_page_says(tmp_path: Path) -> None:
    """In an environment of nothing but what the page installs, with what that depends on."""
    packages = tmp_path / "packages"
    link_distributions(light_install(), packages)
    (packages / "gradaudit").symlink_to(ROOT / "gradaudit")
    found = row("forward.fraction", "fc1", 3, interval=(2.5, 3.5))
    make_report(found).save(tmp_path / "report.json")
    (tmp_path / "policy.yaml").write_text(POLICY)
    code = (
        f"import sys; sys.path.append({str(packages)!r}); {MEASURED.splitlines()[1]}; "
        "import importlib.util as u; assert not u.find_spec('torch') and not u.find_spec('numpy'); "
        "main()"
    )
    outputs = [f"-oout{end}" for end in (".json", ".sarif", ".md", ".html", ".xml")]
    for words, status in (
        (["gate", "report.json", "--policy", "policy.yaml", *outputs], 1),
        (["gate", "report.json"], 1),
        (["compare", "report.json", "out.json"], 0),
        (["render", "report.json"], 0),
        (["explain", "forward"], 0),
    ):
        done = subprocess.run(
            [sys.executable, "-S", "-c", code, *words],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=HANGS,
            check=False,
        )
        assert done.returncode == status, (words, done.stderr)
    assert all((tmp_path / words.removeprefix("-o")).is_file() for words in outputs)


def link_distributions(names: list[str], folder: Path) -> None:
    """Link the distributions of these names, and all that they need, into a folder."""
    folder.mkdir()
    left, known = list(names), set[str]()
    while left:
        distribution = importlib.metadata.distribution(left.pop())
        if distribution.name not in known:
            known.add(distribution.name)
            needs = map(Requirement, distribution.requires or ())
            left += [need.name for need in needs if not need.marker or need.marker.evaluate()]
            for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
                (folder / top).symlink_to(str(distribution.locate_file(top)))


@pytest.mark.slow
def test_the_action_judges_by_the_policy_of_the_configuration(runner: Path) -> None:
    """The gate alone exits with 1, and the results for code scanning are written all the same."""
    (runner / "policy.yaml").write_text("rules: [{metric: forward.fraction, max: -1}]\n")
    (runner / "gradaudit.yaml").write_text(f"{CONFIG}policy: policy.yaml\n")
    measured = shell(step("Measure")["run"], runner, **given("Measure"))
    assert measured.returncode == 0, measured.stderr
    judged = shell(step("Judge")["run"], runner, **given("Judge"))
    assert judged.returncode == 1, judged.stderr
    assert "FAILED by policy.yaml" in judged.stdout
    assert '"forward.fraction"' in (runner / "gradaudit.sarif").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("of", ["action", "page"])
def test_the_gate_decides_where_the_scans_own_policy_fails(runner: Path, of: str) -> None:
    """A leaking model that the workflow's policy or baseline accepts passes."""
    config = CONFIG.replace("[forward]", "['attack reconstruct']")
    (runner / "gradaudit.yaml").write_text(
        f"{config}attack-reconstruct: {{solved: 4, batches: 1}}\n"
    )
    (runner / "policy.yaml").write_text(
        "rules: [{metric: attack.relative_error, min: 0.1}]\n"
        "ignore: [{metric: attack.relative_error, reason: accepted}]\n"
    )
    if of == "page":
        done = run_workflow(runner)
        assert [each.returncode for each in done] == [0] * 4, [each.stderr for each in done]
        return
    measured = shell(step("Measure")["run"], runner, **given("Measure"))
    assert measured.returncode == 0, measured.stderr
    for inputs in ({"policy": "policy.yaml"}, {"baseline": "gradaudit-report.json"}):
        judged = shell(step("Judge")["run"], runner, **given("Judge", **inputs))
        assert (judged.returncode, "::error" in judged.stdout) == (0, False), judged.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "inputs", "status", "verdict"),
    [
        (1, {"policy": "policy.yaml"}, 0, "notice"),
        (3, {"policy": "policy.yaml", "baseline": "old report.json"}, 0, "notice"),
        (2, {"policy": "policy.yaml", "strict": "true"}, 1, "error"),
        (2, {"policy": "policy.yaml; touch run"}, 2, None),
        (3, {"policy": "warning.yaml"}, 0, "notice"),
        (3, {"policy": "warning.yaml", "fail-on": "warning"}, 1, "error"),
    ],
)
def test_the_action_judges(
    runner: Path, value: float, inputs: dict[str, str], status: int, verdict: str | None
) -> None:
    made = make_report(row("forward.fraction", "fc1", value, interval=(value - 0.5, value + 0.5)))
    (runner / "warning.yaml").write_text(POLICY.replace("max: 2", "max: 2, level: warning"))
    for name in ("gradaudit-report.json", "old report.json"):
        made.save(runner / name)
    done = shell(step("Judge")["run"], runner, **given("Judge", **inputs))
    assert done.returncode == status, done.stderr
    if verdict:
        assert done.stdout.splitlines()[-1].startswith(f"::{verdict} title=gradaudit::")
        assert (runner / "summary.md").read_text() == (runner / "gradaudit.md").read_text()
        for output in ACTION["outputs"].values():
            assert (runner / Path(output["value"]).name).is_file()
    assert not (runner / "run").exists()


def test_no_input_of_the_action_is_part_of_a_script() -> None:
    assert not any("${{" in each["run"] for each in ACTION["runs"]["steps"])


@pytest.mark.slow
def test_the_hook_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(POLICY)
    for value, status in ((1, 0), (3, 1)):
        make_report(row("forward.fraction", "fc1", value)).save("report.json")
        assert run(*hook["entry"].split()[1:], *hook["args"]).status == status


def test_the_citation_is_of_this_version_and_of_the_papers() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert cited["version"] == gradaudit.__version__ == project["version"]
    assert cited["license"] == project["license"]
    papers = {paper["url"] for paper in cited["references"]}
    assert papers == set(project["urls"].values())


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the list of files that git keeps")
def test_the_source_distribution_is_complete(tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    kept = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    for name in kept:
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "copy" / name)
    build = "from setuptools import build_meta as b; b.build_sdist('.')"
    subprocess.run(
        [sys.executable, "-c", build],
        cwd=tmp_path / "copy",
        capture_output=True,
        check=True,
        timeout=HANGS,
    )
    (made,) = (tmp_path / "copy").glob("*.tar.gz")
    with tarfile.open(made) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert set(kept) <= packed
    assert not [name for name in packed if "__pycache__" in name]
