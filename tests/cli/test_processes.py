"""What only a process of its own can show: streams, signals, installed plug-ins."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest
from fake_command_line import write_distribution
from forked import Forked
from report_builder import make_report, row

import gradaudit
from gradaudit.core.files import write_atomically
from gradaudit.report import Report

DATA = ("-d", "diabetes", "--device", "cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the plug-in installed and a file of factories."""
    write_distribution(tmp_path)
    (tmp_path / "mine.py").write_text(
        dedent("""
            import os, sys, time
            from torch import nn

            print("imported")

            class Leaving(nn.Linear):
                def forward(self, x):
                    sys.exit(0)

            def talks():
                print("built")
                os.system("echo from a child")
                return nn.Linear(10, 2)

            def leaves():
                return Leaving(10, 2)

            def waits():
                open("waiting", "w").close()
                time.sleep(60)
        """)
    )
    return tmp_path


def start(
    folder: Path, *arguments: str, stdout: int | None = None, session: bool = False
) -> "subprocess.Popen[str]":
    paths = [str(Path(__file__).parents[1]), str(folder), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-m", "gradaudit", *arguments],
        stdout=subprocess.PIPE if stdout is None else stdout,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        start_new_session=session,
    )


def fork(folder: Path, *arguments: str) -> Forked:
    return Forked(arguments, folder, OMP_NUM_THREADS="1")


def test_an_installed_plug_in_is_found(folder: Path) -> None:
    out, _ = start(folder, "list", "audits", "-f", "json").communicate(timeout=600)
    assert json.loads(out)["audits"]["counting"] == "How many parameters each layer has."


@pytest.mark.parametrize("command", ["--version", "list"])
def test_a_broken_plug_in_is_named_in_one_line_and_ends_nothing(folder: Path, command: str) -> None:
    (folder / "fake_audit-1.0.dist-info" / "entry_points.txt").write_text(
        "[gradaudit.audits]\ncounting = no_such_module:Counting\n"
    )
    process = start(folder, command)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0
    assert out.startswith(f"gradaudit {gradaudit.__version__}" if "-" in command else "audits:")
    assert err == (
        "gradaudit: warning: entry point counting in gradaudit.audits of fake-audit cannot "
        "be loaded (ModuleNotFoundError: No module named 'no_such_module'), and is left out; "
        "repair or uninstall the distribution that offers it\n"
    )


def test_what_the_users_code_prints_goes_to_stderr(folder: Path) -> None:
    process = fork(folder, "counting", "-m", "mine.py:talks", *DATA, "-f", "json")
    out, err = process.communicate()
    assert process.returncode == 0
    assert json.loads(out)["target"]["model"] == "mine.py:talks"
    assert err.splitlines() == ["imported", "built", "from a child"]


def test_code_that_ends_the_program_never_looks_like_a_pass(folder: Path) -> None:
    process = fork(folder, "counting", "-m", "mine.py:leaves", *DATA, "-f", "json")
    out, err = process.communicate()
    assert (process.returncode, out) == (3, "")
    where = r"\(mine.py, line \d+\) \(-v shows where\)"
    assert re.fullmatch(f"imported\ngradaudit: unexpected SystemExit: 0 {where}\n", err)


@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGHUP, 129, "ended, as its terminal was closed"),
    ],
)
def test_a_signal_ends_with_its_status_and_one_line(
    folder: Path, number: signal.Signals, status: int, words: str
) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("the tests run under nohup")
    process = fork(folder, "counting", "-m", "mine.py:waits", *DATA)
    wait_for(folder / "waiting", process)
    process.send_signal(number)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (status, "", f"imported\ngradaudit: {words}\n")


SWALLOWING = """
    import time
    try:
        open("waiting", "w").close()
        time.sleep(60)
    except BaseException as error:  # as extension modules do
        raise ImportError("cannot be imported") from error
"""


def test_a_signal_is_heeded_while_modules_are_imported(folder: Path) -> None:
    """Before any command is known: the plug-in is imported to list the commands."""
    (folder / "fake_audit.py").write_text(dedent(SWALLOWING))
    process = start(folder, "list")
    wait_for(folder / "waiting", process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out, err) == (143, "", "gradaudit: terminated\n")


def test_a_signal_while_a_model_is_imported_leaves_nothing(folder: Path) -> None:
    (folder / "imported.py").write_text(dedent(SWALLOWING))
    (folder / "importing.py").write_text("import imported\n")
    process = fork(folder, "counting", "-m", "importing.py:model", *DATA, "-o", "r.json")
    wait_for(folder / "waiting", process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert (process.returncode, err) == (130, "gradaudit: interrupted\n")
    assert not [path for path in folder.iterdir() if "r.json" in path.name]


def wait_for(file: Path, process: "subprocess.Popen[str] | Forked") -> None:
    while not file.exists():
        assert process.poll() is None
        time.sleep(0.01)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("shape", ["json", "table"])
def test_a_full_disk_under_stdout_is_told_in_one_line(folder: Path, shape: str) -> None:
    write_atomically(folder / "r.json", make_report(row("leak.bits", "fc1", 0.5)).to_json())
    with open("/dev/full", "w") as full:
        process = start(folder, "render", "r.json", "-f", shape, stdout=full.fileno())
        _, err = process.communicate(timeout=600)
    assert process.returncode == 3
    assert err == (
        "gradaudit: standard output: cannot be written: No space left on device; "
        "what is there is not whole\n"
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", ["--help", "scan --help", "--version", "list"])
def test_help_on_a_full_disk_is_one_line(folder: Path, command: str) -> None:
    done = in_a_shell(folder, command, ">/dev/full")
    assert done.returncode == 3
    assert done.stderr.startswith("gradaudit: standard output: cannot be written: No space")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("behind", [">/dev/full", ">&-"])
def test_an_output_that_fails_leaves_the_report_and_nothing_unfinished(
    folder: Path, behind: str
) -> None:
    before = {path.name for path in folder.iterdir()}
    model = "-m 'zoo:mlp?inputs=10&classes=2' -a sex --permutations 19 -q"
    done = in_a_shell(folder, f"subspace {' '.join(DATA)} {model} -o s.json", behind)
    assert done.returncode == 3, done.stderr
    assert {path.name for path in folder.iterdir()} - before - {"r.json"} == {"s.json"}
    assert Report.from_file(folder / "s.json").rows


def test_warnings_as_errors_are_no_verdict(folder: Path) -> None:
    own = {**os.environ, "PYTHONWARNINGS": "error"}
    passing = make_report(row("forward.fraction", "fc1", 0.1, interval=(0.05, 0.2)))
    write_atomically(folder / "p.json", passing.to_json())
    words = [sys.executable, "-m", "gradaudit", "gate", "p.json"]
    plain, strict = (
        subprocess.run(words, capture_output=True, text=True, cwd=folder, env=env, timeout=600)
        for env in ({**os.environ}, own)
    )
    assert (strict.returncode, strict.stdout) == (plain.returncode, plain.stdout)
    assert "Traceback" not in strict.stderr


@pytest.mark.parametrize("command", ["gate r.json", "gate r.json -f json"])
def test_a_closed_stdout_is_told_in_one_line_and_is_no_verdict(folder: Path, command: str) -> None:
    done = in_a_shell(folder, command, ">&-")
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("gradaudit: standard output: cannot be written: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "status"),
    [("scan --help", 0), ("render r.json --all", 0), ("gate r.json -f json", 1)],
)
def test_a_reader_that_goes_leaves_a_command_its_own_status(
    folder: Path, command: str, status: int
) -> None:
    """Whether click writes it, rich, or the format itself."""
    done = in_a_shell(folder, command, "| exec <&-")
    assert (done.returncode, done.stderr) == (status, "")


def in_a_shell(folder: Path, command: str, behind: str) -> "subprocess.CompletedProcess[str]":
    """Run a command on a failing report whose output is larger than a pipe holds."""
    report = make_report(*(row("leak.bits", "fc1", 0.5, variant={"n": n}) for n in range(2000)))
    write_atomically(folder / "r.json", report.to_json())
    own = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m gradaudit {command} {behind}"],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=folder,
        env=own,
    )
