"""The README shows what the commands print."""

import math
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import HANGS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def shown(name: str) -> str:
    """The block of the README between the comments of this name."""
    found = re.search(rf"<!-- {name} -->\n```\n(.*?)```\n<!-- /{name} -->", README, re.DOTALL)
    assert found is not None
    return found[1]


NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?(?:e[-+]\d+)?(?![\w.-]*\w)")


def words_and_numbers(text: str) -> tuple[str, list[str]]:
    """The text without time, numbers and what would settle them, and the layout they make."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:+]+", "TIME", text)
    text = " ".join(re.sub("─+", " ", text).split())
    text = re.sub(r"about [\d.,]+ (times|records|trials)", r"about MANY \1", text)
    return NUMBER.sub("#", text), NUMBER.findall(text)


def alike(left: str, right: str) -> bool:
    """To a fiftieth, or to 0.01, whatever the processor rounds.

    A forest splits at thresholds, so that the last bit of a gradient moves a measurement by far
    more than a rounding.
    """
    return math.isclose(float(left), float(right), rel_tol=0.02, abs_tol=0.01)


@pytest.mark.slow
def test_the_first_scan_prints_what_the_readme_shows() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gradaudit", "scan"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=ROOT,
        env={"PATH": "", "COLUMNS": "80", "PYTHONUTF8": "1"},
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed, there = words_and_numbers(done.stdout)
    written, here = words_and_numbers(shown("scan"))
    assert printed == written
    off = [pair for pair in zip(there, here, strict=True) if not alike(*pair)]
    assert not off


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("0.0264", "0.0265", True),
        ("0.02", "0.04", False),
        ("315", "315.0", True),
        ("459", "460", True),
        ("4", "5", False),
        ("3.63e-16", "8.1e-16", True),
        ("1", "0.997", True),
        ("4.91", "5.3", False),
    ],
)
def test_what_is_alike(left: str, right: str, same: bool) -> None:
    assert alike(left, right) is same


def test_names_and_times_are_no_measurements() -> None:
    words, numbers = words_and_numbers(
        "conv1  0.5 [0.2, 1]\n──  round-10 1,797 2026-11-21T22:09:20+00:00"
    )
    assert words == "conv1 # [#, #] round-10 #,# TIME"
    assert numbers == ["0.5", "0.2", "1", "1", "797"]


def test_the_exit_statuses_are_those_of_the_code() -> None:
    from gradaudit.cli import FAILED
    from gradaudit.cli.perform import GATE_FAILED
    from gradaudit.errors import AuditError, UsageError
    from gradaudit.stopping import Stopped

    cells = re.findall(r"^\| ([\d, ]+) \|", README, re.MULTILINE)
    documented = {int(status) for cell in cells for status in cell.split(",")}
    stopped = {Stopped(number).status for number in (signal.SIGINT, signal.SIGTERM)}
    failed = {GATE_FAILED, UsageError.exit_status, AuditError.exit_status, FAILED}
    assert documented == {0} | failed | stopped


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
        "sensitivity.input_f_bounded_share",
    ]
