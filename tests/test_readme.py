"""The README shows what the commands print."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def shown(name: str) -> str:
    """The block of the README between the comments of this name."""
    found = re.search(rf"<!-- {name} -->\n```\n(.*?)```\n<!-- /{name} -->", README, re.DOTALL)
    assert found is not None
    return found[1]


def reproducible(text: str) -> str:
    """Without the time, and without the digits of what is zero but for rounding."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:+]+", "TIME", text)
    return re.sub(r"\d\.\d\de-1[3-9]", "ROUNDING", text)


def test_the_first_scan_prints_what_the_readme_shows() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gradaudit", "scan"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=ROOT,
        env={"PATH": "", "COLUMNS": "80", "PYTHONUTF8": "1"},
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert reproducible(done.stdout) == reproducible(shown("scan"))


def test_the_exit_statuses_are_those_of_the_code() -> None:
    from gradaudit.cli.guard import FAILED, INTERRUPTED
    from gradaudit.cli.perform import GATE_FAILED
    from gradaudit.errors import AuditError, UsageError

    documented = {int(status) for status in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)}
    codes = {GATE_FAILED, UsageError.exit_status, AuditError.exit_status, FAILED, INTERRUPTED}
    assert documented == {0} | codes


NAMED = set(re.findall(r"(?:`|^ {4})gradaudit ([a-z-]+)", README, re.MULTILINE))


@pytest.mark.parametrize("command", sorted(NAMED))
def test_every_command_that_the_readme_names_exists(command: str) -> None:
    from gradaudit.cli import build

    app = build()
    known = [*app.registered_commands, *app.registered_groups]
    assert command in {registered.name for registered in known}


def test_the_policy_that_the_readme_shows_is_one(tmp_path: Path) -> None:
    from gradaudit.judging import read_policy

    block = re.search(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert block is not None
    path = tmp_path / "policy.yaml"
    path.write_text(block[1])
    assert [rule.metric for rule in read_policy(path).rules] == [
        "copa-metric.rank_deficit",
        "sensitivity.input_f_share",
    ]
