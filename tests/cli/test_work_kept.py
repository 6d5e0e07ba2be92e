"""Work that is done is never lost: where a file cannot be written any more, and what is left."""

import re
import stat
import tempfile
from pathlib import Path
from textwrap import dedent

import pytest
import yaml
from command_line import Result, run

import gradaudit.cli.commands.init as init
from gradaudit.core.files import write_atomically
from gradaudit.errors import UsageError
from gradaudit.report import Report

LINEAR = """
    import shutil
    from torch import nn

    class Removing(nn.Linear):
        def forward(self, x):
            shutil.rmtree("out", ignore_errors=True)
            return super().forward(x)

    def make():
        return Removing(10, 2)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for outputs that the model removes as it is run, and one for temporary files."""
    (tmp_path / "mine.py").write_text(dedent(LINEAR))
    (tmp_path / "out").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)


def removing(*command: object) -> Result:
    return run(*command, "-m", "mine.py:make", "-d", "diabetes", "-q")


def kept(done: Result) -> Report:
    """The report that the last line names, which only its owner may read."""
    (name,) = re.findall(r"the report was written to (\S+\.json)", done.err)
    assert stat.S_IMODE(Path(name).stat().st_mode) == 0o600
    assert [str(path.absolute()) for path in Path("temporary").glob("gradaudit-*")] == [name]
    return Report.from_file(Path(name))


@pytest.mark.parametrize(
    "command",
    [
        ("subspace", "-a", "sex", "-o", "out/r.json", "-o", "out/r.html"),
        (
            "sweep",
            "subspace",
            "--permutations",
            19,
            "-a",
            "sex",
            "--over",
            "seed=0,1",
            "-o",
            "out/r.json",
        ),
    ],
    ids=["audit", "sweep"],
)
def test_a_folder_that_is_removed_costs_neither_table_nor_report(
    command: tuple[object, ...],
) -> None:
    done = removing(*command)
    assert done.status == 3
    assert "subspace" in done.out
    assert "out/r.json: cannot be written: No such file or directory; " in done.err
    assert kept(done).select("subspace.grassmann")
    assert not Path("out").exists()


@pytest.mark.slow
def test_a_scan_that_fails_says_both_and_exits_with_its_verdict() -> None:
    done = removing("scan", "--quick", "-o", "out/r.json")
    assert (done.status, "FAILED" in done.out) == (1, True)
    assert "out/r.json: cannot be written: " in done.err
    assert kept(done).rows


def test_where_nothing_can_be_written_both_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    done = removing("subspace", "-a", "sex", "--permutations", 19, "-o", "out/r.json")
    assert done.status == 3
    assert "nor is there a temporary file for the report: No such file" in done.err
    assert "Traceback" not in done.err


def test_init_leaves_no_file_where_one_cannot_be_written() -> None:
    def full(path: Path, content: str) -> None:
        if path.name == "policy.yaml":
            raise UsageError(f"{path}: cannot be written: No space left on device")
        write_atomically(path, content)

    before = sorted(Path().iterdir())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(init, "write_atomically", full)
        done = run("init")
    assert (done.status, sorted(Path().iterdir())) == (2, before)
    assert "policy.yaml: cannot be written: No space left on device" in done.err
    assert run("init").status == 0


def test_a_line_break_in_a_name_makes_no_key() -> None:
    folder = "evil\nclients: 99\nx"
    text = init.configuration(
        {"model": f"{folder}/net.py:Net", "job": {"folder": folder}, "checkpoint": (folder,)},
        init.SpecCandidates.of(Path()),
        None,
    )
    assert not re.search(r"^\s*clients", text, re.MULTILINE)
    read = yaml.safe_load(text)
    assert (read["job"]["folder"], read["checkpoint"]) == (folder, [folder])
