"""Names in checkpoints and tables say nothing to a terminal or to the log of a CI server."""

import json
import re
from pathlib import Path

import pytest
from command_line import run
from hypothesis import given, settings
from hypothesis import strategies as st
from report_builder import failed_row, make_report, row, saved

from gradaudit.core.text import inert_json, printable
from gradaudit.formats import formats
from gradaudit.formats.github import Github
from gradaudit.judging import Policy
from gradaudit.report import CheckpointRecord, Report
from gradaudit.view import view

pytestmark = pytest.mark.usefixtures("two_audits")

M = "leak.bits"
COMMANDS = ("::error file=a::b", "##[error]c", "##vso[task.setvariable variable=d]e")
NAME = "\n".join(COMMANDS) + "\u202e\x1b[31m\u2066"
HOSTILE = make_report(
    row(M, NAME, 3, variant={"method": NAME}),
    failed_row(M, f"x{NAME}", NAME),
    layers=[(NAME, NAME, 1), (f"x{NAME}", "Linear", 1)],
    model=f"net.py:{NAME}",
    data={"adapter": NAME, "records": 3, "attributes": {NAME: {NAME: 3}}},
)
TOLD = re.compile(r"##\w*\[|^\s*::", re.MULTILINE)
RENDERED = sorted(formats())


@pytest.mark.parametrize("name", RENDERED)
def test_a_report_tells_a_log_nothing_of_its_own(name: str) -> None:
    text = formats()[name]().render(HOSTILE)
    lines = [line for line in text.splitlines() if not (name == "github" and OURS.match(line))]
    assert not any(TOLD.search(line) for line in lines)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e\u2066]", text)
    assert "task.setvariable" in text


OURS = re.compile(r"::(error|warning|notice) [^:#]*::(?!.*(::|##\w*\[))")
"""A command that ends where its message begins, which holds no other."""


def test_github_is_told_what_the_report_says_and_no_more() -> None:
    lines = Github().render(HOSTILE).splitlines()
    assert lines
    assert all(OURS.match(line) for line in lines)


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("\x1b]8;;x\x07a.pt", "�]8;;x�a.pt"),
        ("\u202etp.a", "�tp.a"),
        ("##vso[task.complete]a.pt", "#�vso[task.complete]a.pt"),
        ("x/../a.pt", "a.pt"),
        ("../a.pt", None),
        ("/etc/a.pt", None),
    ],
)
def test_a_place_is_a_harmless_file_of_the_workspace(file: str, place: str | None) -> None:
    checkpoint = CheckpointRecord(file=file, sha256="0" * 64)
    report = make_report(row(M, "fc", 3), model="zoo:mlp")
    target = report.target.model_copy(update={"checkpoints": [checkpoint]})
    policy = Policy.model_validate({"rules": [{"metric": M, "max": 1}]})
    line, _ = Github().render(report.model_copy(update={"target": target}), policy).splitlines()
    found = re.match("::error (?:file=([^,]*),line=1,)?title=", line)
    assert found is not None
    assert found[1] == place


def test_json_means_the_same() -> None:
    text = formats()["json"]().render(HOSTILE)
    assert Report.model_validate_json(text) == HOSTILE
    assert ":\\u003aerror file=a:\\u003ab" in text
    assert "#\\u0023vso[" in text


@pytest.mark.slow
@settings(max_examples=40)
@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_any_document_means_the_same_and_is_inert(value: object) -> None:
    text = inert_json(json.dumps(value, indent=1, ensure_ascii=False))
    assert json.loads(text) == value
    assert "::" not in text
    assert "##" not in text
    assert all(c.isprintable() or c == "\n" for c in text)


@given(st.lists(st.sampled_from([":", "#", "[", "vso", " ", "a"])).map("".join))
def test_no_name_is_a_command(name: str) -> None:
    shown = printable(name)
    assert not re.search(r"::|##\w*\[", shown)
    assert printable(shown) == shown
    assert len(shown) == len(name)


def test_annotations_of_every_kind() -> None:
    policy = Policy.model_validate(
        {"rules": [{"metric": M, "max": 2}, {"metric": M, "max": 1, "level": "warning"}]}
    )
    report = make_report(
        row(M, "conv1", 0.5, interval=(0, 1.5)),
        row(M, "fc1", 1.5),
        row(M, "fc2", 3, variant={}),
        model="a,b:c.py:make",
    )
    assert Github().render(report, policy) == (
        "::error file=a%2Cb%3Ac.py,line=1,title=leak.bits::Layer fc2: leak.bits 3 exceeds the max "
        "of 2. An attacker learns the attribute from this layer's gradient\n"
        "::warning file=a%2Cb%3Ac.py,line=1,title=leak.bits::Layer fc1: leak.bits 1.50 exceeds the "
        "max of 1. An attacker learns the attribute from this layer's gradient\n"
        "::notice file=a%2Cb%3Ac.py,line=1,title=leak.bits::Layer conv1: leak.bits 0.500 [0, 1.50] "
        "neither shows nor excludes a value above the max of 1; about 4 times as many records or "
        "trials would settle it.\n"
        "::error title=gradaudit::FAILED by its policy: "
        f"{view(report, policy).verdict.worst}\n"
    )


def test_a_report_goes_through_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = saved(tmp_path, row(M, "fc1", 1.5))
    piped = run("render", report, "-o", "-")
    assert json.loads(piped.out) == json.loads(report.read_text())
    assert run("render", "-", given=piped.out) == run("render", report)
    judged = run("gate", "-", "-o", "-", given=piped.out)
    assert judged.status == 0
    assert json.loads(judged.out)["provenance"]["verdict"] == "passed"
    assert run("gate", "-", "-o", "-", "-f", "sarif", given=piped.out).out == (
        run("gate", report, "-f", "sarif").out
    )
    nothing = run("gate", "-")
    assert (nothing.status, nothing.out) == (2, "")
    assert "nothing on standard input" in nothing.err
    monkeypatch.chdir(tmp_path)
    assert [path.name for path in Path().iterdir()] == ["report.json"]


@pytest.mark.parametrize("shape", ["sarif", "junit", "github", "markdown"])
def test_a_format_is_the_same_shown_and_written(tmp_path: Path, shape: str) -> None:
    report = saved(tmp_path, row(M, "fc1", 3))
    kind = formats()[shape]
    for end in (kind.suffix, *kind.aliases):
        written = tmp_path / f"judged{end}"
        shown = run("gate", report, "-f", shape, "-o", written)
        assert shown.status == 1
        assert shown.out == written.read_text()
        assert "failed" in shown.out.lower()
