"""The command of a single audit as a user meets it: outputs, statuses, messages, files."""

import json
import os
import re
from pathlib import Path

import pytest
from fake_command_line import only_counting, run

from gradaudit.report import Report

__all__ = ["only_counting"]
pytestmark = pytest.mark.usefixtures("only_counting")

SUBJECT = ("-m", "zoo:mlp?inputs=10&hidden=3&classes=2", "-d", "diabetes", "--device", "cpu")

TABLE = """\
MEASURED
zoo:mlp?inputs=10&hidden=3&classes=2, 41 parameters, cross-entropy, eval mode; diabetes, 442
records, inputs with mean 0 ± 0.04757, task accuracy 0.281 (chance 0.500)
data     columns as the file has them
warning  the weights are random: no checkpoint was given (--checkpoint), and every number is about
         an untrained model

                                      counting
Layers  severity  kind    parameters  count
──────  ────────  ──────  ──────────  ────────
fc1     LOW       Linear          30  60
output  LOW       Linear           6  12

What to do  Run gradaudit scan, or name a policy (--policy).
Assumptions The attacker sees gradients of 2 layers; no defense; no layer hidden.
Not tested  attribute sex (not asked for)
gradaudit 0.1.0, seed 0, cpu, TIME
"""


def counts(report: str) -> dict[str | None, float | None]:
    rows = Report.model_validate_json(report).select("counting.count")
    return {row.layer: row.value for row in rows}


def test_the_whole_table() -> None:
    done = run("counting", *SUBJECT)
    assert re.sub(r"\d{4}-\d\d-\d\d[T ]\S+", "TIME", done.out) == TABLE
    assert (done.status, done.err) == (0, "")


def test_json_alone_is_on_stdout_whatever_the_audit_prints() -> None:
    done = run("counting", *SUBJECT, "-f", "json", "--mode", "loud")
    assert counts(done.out) == {"fc1": 60, "output": 12}
    assert (done.status, done.err) == (0, "counted\n")


def test_flags_win_over_the_file_over_defaults(tmp_path: Path) -> None:
    config = tmp_path / "audit.yaml"
    config.write_text("seed: 5\nsamples: 7\ncounting: {scale: 3, doubled: false}\n")
    asked = ("counting", *SUBJECT, "--config", config, "-f", "json")
    assert counts(run(*asked).out) == {"fc1": 90, "output": 18}
    assert counts(run(*asked, "--scale", "2").out) == {"fc1": 60, "output": 12}
    assert counts(run(*asked, "--doubled").out) == {"fc1": 180, "output": 36}
    assert counts(run("counting", *SUBJECT, "--no-doubled", "-f", "json").out)["fc1"] == 30
    assert json.loads(run(*asked, "--seed", "6").out)["provenance"]["seed"] == 6


def test_in_a_time_it_is_as_exact_as_fits_and_what_was_asked_stays(tmp_path: Path) -> None:
    config = tmp_path / "audit.yaml"
    config.write_text("budget: 1m\ncounting: {doubled: false}\n")
    asked = ("counting", *SUBJECT, "-f", "json")
    assert counts(run(*asked, "--budget", "1m").out)["fc1"] == 600
    assert counts(run(*asked, "--budget", "1m", "--scale", "3").out)["fc1"] == 180
    done = run(*asked, "--config", config)
    assert counts(done.out)["fc1"] == 300
    assert json.loads(done.out)["provenance"]["plan"]["audits"]["counting"]["preset"] == "thorough"


def test_a_renamed_subject_option_reaches_the_model() -> None:
    done = run("counting", *SUBJECT, "--model-mode", "train", "--mode", "plain", "-f", "json")
    assert json.loads(done.out)["target"]["mode"] == "train"


def test_every_file_is_written_in_its_format(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("r.json", "r.md", "r.txt")]
    done = run("counting", *SUBJECT, *(part for file in files for part in ("-o", file)))
    assert done.status == 0
    assert counts(files[0].read_text()) == {"fc1": 60, "output": 12}
    assert files[1].read_text().startswith("#")
    assert files[2].read_text() == done.out
    assert sorted(tmp_path.iterdir()) == sorted(files)


@pytest.mark.parametrize(
    ("trouble", "status", "message"),
    [
        ("crash", 3, "counting failed: RuntimeError: first line second �[31mline"),
        ("leave", 3, "counting failed: SystemExit: 0"),
        ("refuse", 3, "counting failed: the second layer is odd"),
        ("nothing", 3, "nothing could be measured: there is nothing to count"),
        ("nan", 3, "nothing could be measured: counting failed: NaN"),
        ("skip", 0, ""),
    ],
)
def test_what_an_audit_meets_decides_the_status(trouble: str, status: int, message: str) -> None:
    done = run("counting", *SUBJECT, "-f", "json", "--trouble", trouble)
    place = r"( \(fake_audit.py, line \d+\))?"  # of the audit's own line, where it crashed
    assert done.status == status
    assert re.fullmatch(message and f"gradaudit: {re.escape(message)}{place}\n", done.err)
    rows = Report.model_validate_json(done.out).measurements
    assert [row.layer for row in rows] == ["fc1", "output"]
    assert rows[1].reason


def test_an_interrupted_audit_writes_nothing(tmp_path: Path) -> None:
    done = run("counting", *SUBJECT, "-o", tmp_path / "r.json", "--trouble", "interrupt")
    assert done == (130, "", "gradaudit: interrupted\n")
    assert not list(tmp_path.iterdir())


def test_verbose_shows_the_traceback_and_no_escape_sequence() -> None:
    plain = run("counting", "-m", "zoo:mlpp", "-d", "diabetes")
    verbose = run("counting", "-m", "zoo:mlpp", "-d", "diabetes", "-v")
    assert plain.status == verbose.status == 2
    assert "Traceback" not in plain.err
    assert verbose.err.startswith("Traceback (most recent call last):\n")
    assert verbose.err.endswith(plain.err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--model is needed: name what to audit (see `gradaudit list`)"),
        (("-m", "zoo:mlp"), "--data is needed: name what to audit (see `gradaudit list`)"),
        ((*SUBJECT, "-a", "age"), "diabetes: has no attribute 'age'; its attributes are: sex"),
        ((*SUBJECT, "--samples", "0"), "--samples: Input should be greater than or equal to 1"),
        ((*SUBJECT, "--seed", "-1"), "--seed: Input should be greater than or equal to 0"),
        ((*SUBJECT, "--seed", str(1 << 63)), "--seed: Input should be less than"),
        ((*SUBJECT, "--jobs", "99999"), "--jobs: Input should be less than or equal to 1024"),
        ((*SUBJECT, "--scale", "0"), "--scale: Input should be greater than 0 (got 0.0)"),
        ((*SUBJECT, "--loss", "ce"), "--loss ce: unknown (did you mean 'bce'?)"),
        ((*SUBJECT, "-c", "none.pt"), "none.pt: no such checkpoint file"),
        ((*SUBJECT, "--config", "no.yaml"), "no.yaml: cannot be read: No such file"),
        ((*SUBJECT, "-o", "r.pdf"), "r.pdf: no report format has this suffix; there are: "),
        ((*SUBJECT, "-o", "no/r.json"), "no/r.json: the folder does not exist; make it first"),
        ((*SUBJECT, "-o", "folder.json"), "folder.json: is a folder; name a file"),
    ],
    ids=lambda value: " ".join(map(str, value[-2:])) if isinstance(value, tuple) else "",
)
def test_a_wrong_request_ends_with_2_and_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.json").mkdir()
    done = run("counting", *arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"gradaudit: {message}")
    assert done.err.count("\n") == 1
    assert os.listdir() == ["folder.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--layer", "conv*"), "no layer is left by --layer conv*; its trainable layers are: fc1"),
        (("--hide", "*"), "no layer is left by --hide *; its trainable layers are: fc1, output"),
        (("-d", "digits"), "the model cannot be run on inputs of shape (256, 1, 8, 8)"),
        (("-c", __file__), f"{__file__}: is plain text, not a checkpoint; save the weights alone"),
    ],
)
def test_what_cannot_be_audited_ends_with_3_and_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = run("counting", *SUBJECT, *arguments, "-o", tmp_path / "r.json")
    assert (done.status, done.out) == (3, "")
    assert done.err.startswith(f"gradaudit: {message}")
    assert done.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_unwritable_folder_is_found_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    done = run("counting", *SUBJECT, "-o", tmp_path / "r.json")
    assert (done.status, done.err) == (
        2,
        f"gradaudit: {tmp_path}/r.json: the folder is not writable; name another\n",
    )
