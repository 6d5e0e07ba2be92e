"""SARIF: what the format and code scanning ask for, and which findings become results."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator, FormatChecker
from report_builder import failed_row, make_report, row, skipped_row

from gradaudit.audits import audits
from gradaudit.audits.explaining import explain
from gradaudit.formats.explanation import explanation_markdown
from gradaudit.formats.github import Github
from gradaudit.formats.sarif import Sarif
from gradaudit.judging import Policy, gate
from gradaudit.report import Report

pytestmark = pytest.mark.usefixtures("two_audits")

M = "leak.bits"
POLICY = Policy.model_validate(
    {
        "rules": [
            {"metric": M, "max": 1},
            {"metric": "leak.note", "min": 5, "level": "warning"},
        ],
        "ignore": [{"metric": M, "layers": "fc2", "reason": "accepted"}],
    }
)


def findings() -> Report:
    before = make_report(row(M, "fc1", 3))
    return gate(
        make_report(
            row(M, "conv1", 3, interval=(2, 4)),
            row(M, "fc1", 3),
            row(M, "fc2", 3),
            row("leak.note", None, 4),
            failed_row("leak.note", "fc1", "NaN"),
            skipped_row("leak.note", "fc2", "no"),
            row("leak.note", "conv1", 9),
        ),
        POLICY,
        baseline=before,
    )


@cache
def oasis() -> Draft7Validator:
    """The schema that the OASIS committee publishes; ``schemas/README.md`` says whence it is."""
    path = Path(__file__).parent / "schemas" / "sarif-schema-2.1.0.json"
    return Draft7Validator(json.loads(path.read_text()), format_checker=FormatChecker())


def run_of(report: Report, policy: Policy | None = None) -> dict[str, Any]:
    """The only run of a report, which the schema finds nothing wrong with."""
    document = json.loads(Sarif().render(report, policy))
    oasis().validate(document)
    (run,) = document["runs"]
    return dict(run)


def test_one_result_whole() -> None:
    run = run_of(findings())
    assert run["tool"]["driver"]["name"] == "gradaudit"
    assert run["tool"]["driver"]["semanticVersion"] == "0.1.0"
    first = run["results"][0]
    fingerprint = first.pop("partialFingerprints")["primaryLocationLineHash"]
    assert len(fingerprint) == 32
    assert first == {
        "ruleId": "leak.bits",
        "ruleIndex": 0,
        "kind": "fail",
        "level": "error",
        "baselineState": "new",
        "message": {
            "text": "Layer conv1: leak.bits 3 [2, 4] exceeds the max of 1. An attacker learns the "
            "attribute from this layer's gradient"
        },
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": "round-5.safetensors", "uriBaseId": "%SRCROOT%"},
                    "region": {"startLine": 1},
                },
                "logicalLocations": [{"name": "conv1", "kind": "module"}],
            }
        ],
    }


def test_which_findings_become_results() -> None:
    results = run_of(findings())["results"]
    assert [
        (r["ruleId"], r["level"], "suppressions" in r, r.get("baselineState")) for r in results
    ] == [
        ("leak.bits", "error", False, "new"),
        ("leak.note", "warning", False, "new"),
        ("leak.bits", "error", False, "unchanged"),
        ("leak.bits", "error", True, "new"),
        ("leak.note", "warning", False, "new"),
    ]
    assert results[1]["message"]["text"] == "Layer fc1: leak.note could not be measured: NaN."
    assert results[4]["message"]["text"].startswith("The whole model: leak.note 4 is below")


def test_the_worst_row_of_each_finding_comes_before_the_others() -> None:
    report = make_report(
        row(M, "conv1", 3), row(M, "fc1", 7), row(M, "fc2", 5), row("leak.note", None, 4)
    )
    results = run_of(report, POLICY.model_copy(update={"ignore": ()}))["results"]
    layers = [r["locations"][0].get("logicalLocations", [{"name": ""}])[0]["name"] for r in results]
    assert layers == ["fc1", "", "fc2", "conv1"]
    assert all("baselineState" not in result for result in results)


def test_what_only_the_baseline_has_is_absent() -> None:
    before = make_report(row(M, "conv1", 3), row(M, "fc1", 3), row("leak.note", "fc1", 1))
    now = make_report(row(M, "conv1", 3), row(M, "fc1", 0.5))
    results = run_of(gate(now, POLICY, baseline=before))["results"]
    assert {(r["ruleId"], r["message"]["text"][:11], r["baselineState"]) for r in results} == {
        ("leak.bits", "Layer conv1", "unchanged"),
        ("leak.note", "The whole m", "new"),
        ("leak.bits", "Layer fc1: ", "absent"),
        ("leak.note", "Layer fc1: ", "absent"),
    }


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import torch\n\ndef make(width=3):\n    pass\n", 3),
        ("def maker():\n    make()\n\nmake = maker\n", 4),
        ("class make(Net):\n    pass\n", 1),
        ("def other():\n    pass\n", 1),
    ],
)
def test_results_lie_on_the_line_of_the_factory(
    source: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(source)
    report = make_report(row(M, "fc1", 3), model="net.py:make?width=3")
    place = run_of(report)["results"][0]["locations"][0]["physicalLocation"]
    assert place["region"] == {"startLine": line}
    assert f"::error file=net.py,line={line}," in Github().render(report)


def test_there_is_one_notice_for_a_finding() -> None:
    rows = [row(M, f"fc{i}", 1 + i / 10, interval=(0, 2)) for i in range(30)]
    lines = Github().render(make_report(*rows), POLICY).splitlines()
    (notice,) = [line for line in lines if "title=leak.bits" in line]
    assert notice.startswith("::notice ")
    assert "Layer fc29: " in notice
    assert notice.endswith("more.")


@pytest.mark.parametrize(
    ("unclear", "kind", "level"),
    [("pass", "open", "none"), ("warn", "open", "none"), ("fail", "fail", "error")],
)
def test_what_is_unclear_is_open_unless_the_policy_lets_it_fail(
    unclear: str, kind: str, level: str
) -> None:
    policy = Policy.model_validate({"rules": [{"metric": M, "max": 1}], "unclear": unclear})
    (result,) = run_of(make_report(row(M, "fc1", 0.5, interval=(0, 2))), policy)["results"]
    assert (result["kind"], result["level"]) == (kind, level)
    assert result["message"]["text"] == (
        "Layer fc1: leak.bits 0.500 [0, 2] neither shows nor excludes a value above the max of 1; "
        "about 9 times as many records or trials would settle it."
    )


def test_every_rule_has_its_texts() -> None:
    rules = run_of(findings())["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["leak.bits", "leak.note"]
    for rule in rules:
        assert rule["shortDescription"]["text"]
        assert rule["fullDescription"]["text"]
        assert rule["help"]["text"]
    assert rules[0]["fullDescription"]["text"].startswith("an attacker learns")
    assert [rule["name"] for rule in rules] == ["LeakBits", "LeakNote"]
    assert [rule["defaultConfiguration"]["level"] for rule in rules] == ["error", "warning"]
    assert [rule["properties"]["security-severity"] for rule in rules] == ["8.0", "5.0"]


def test_a_rule_of_an_audit_has_its_page_and_its_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    (rule,) = run_of(make_report(row("vinfo.auroc", "fc1", 0.9)))["tool"]["driver"]["rules"]
    assert rule["helpUri"] == audits()["vinfo"].paper
    assert rule["help"]["markdown"] == explanation_markdown(explain("vinfo.auroc"), level=2)


def test_the_run_says_who_ran_when_and_what_came_of_it() -> None:
    ran = {
        "started": "2026-05-01T10:00:00+00:00",
        "finished": "2026-05-01T10:01:00+00:00",
        "command": "gradaudit scan",
        "broken": {"rank": "short of memory"},
        "policy": {"name": "ours.yaml"},
    }
    report = make_report(row(M, "fc1", 3), model="net.py:make?width=3")
    run = run_of(report.model_copy(update={"provenance": ran}))
    assert run["automationDetails"] == {"id": "gradaudit/net.py%3Amake%3Fwidth%3D3/"}
    assert run["invocations"] == [
        {
            "executionSuccessful": False,
            "toolExecutionNotifications": [
                {"level": "error", "message": {"text": "rank failed: short of memory"}}
            ],
            "startTimeUtc": "2026-05-01T10:00:00Z",
            "endTimeUtc": "2026-05-01T10:01:00Z",
            "commandLine": "gradaudit scan",
        }
    ]
    assert run["properties"]["verdict"] == "failed"


def test_a_row_is_one_result_that_leaves_no_graver_doubt_unsaid() -> None:
    report = make_report(row(M, "fc1", 1.8, interval=(1.2, 2.4)), row(M, "fc2", 3))
    sure, doubtful = run_of(report)["results"]
    assert (doubtful["level"], sure["level"]) == ("warning", "error")
    assert doubtful["message"]["text"].startswith(
        "Layer fc1: leak.bits 1.80 [1.20, 2.40] exceeds the max of 1; and 1.80 [1.20, 2.40] "
        "neither shows nor excludes a value above the max of 2;"
    )
    assert "max of 1" not in sure["message"]["text"]


def test_fingerprints_tell_rows_apart_and_survive_a_change_of_value() -> None:
    def prints(value: float) -> list[str]:
        report = make_report(*(row(M, layer, value) for layer in ("conv1", "fc1", "fc2")))
        results = run_of(report)["results"]
        return [result["partialFingerprints"]["primaryLocationLineHash"] for result in results]

    assert len(set(prints(3))) == len(prints(3)) == 3
    assert prints(3) == prints(4)


HERE = str(Path.cwd())
LOCATIONS = [
    ("models/net.py:make?width=3", None, "models/net.py", True),
    ("my models/net.py:make", "audit.yaml", "my%20models/net.py", True),
    (f"{HERE}/net.py:make", None, "net.py", True),
    ("/far away/net.py:make", None, "file:///far%20away/net.py", False),
    ("zoo:lenet", "conf/audit.yaml", "conf/audit.yaml", True),
    ("zoo:lenet", None, "round-5.safetensors", True),
]


@pytest.mark.parametrize(("model", "config", "uri", "relative"), LOCATIONS)
def test_results_lie_in_the_file_that_makes_the_model(
    model: str, config: str | None, uri: str, relative: bool
) -> None:
    report = make_report(row(M, "fc1", 3), model=model)
    ran = {**report.provenance, **({"config": config} if config else {})}
    run = run_of(report.model_copy(update={"provenance": ran}))
    place = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": uri, **({"uriBaseId": "%SRCROOT%"} if relative else {})}
    assert "%SRCROOT%" in run["originalUriBaseIds"]


def test_without_findings_there_are_no_results() -> None:
    run = run_of(make_report(row(M, "fc1", 0.5)))
    assert run["results"] == []
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["leak.bits"]
    assert run["properties"]["verdict"] == "passed"


def test_a_report_without_a_measurement_is_a_result() -> None:
    run = run_of(make_report())
    assert [(r["ruleId"], r["level"]) for r in run["results"]] == [("report.incomplete", "error")]


def test_a_hostile_name_makes_no_link() -> None:
    name = "[click](http://evil)\x1b[0m"
    report = make_report(row(M, name, 3), layers=[(name, "Linear", 1)])
    text = json.dumps(run_of(report))
    assert "](" not in text
    assert "\\u001b" not in text


def test_paths_are_relative_to_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the working directory is a folder within it, and in the command line."""
    (tmp_path / ".git").mkdir()
    here = tmp_path / "models"
    here.mkdir()
    (here / "net.py").touch()
    monkeypatch.chdir(here)
    for named in (f"{here / 'net.py'}:make", "net.py:make"):
        report = make_report(row("leak.bits", "fc1", 9))
        target = report.target.model_copy(update={"model": named, "checkpoints": []})
        command = {**report.provenance, "command": f"gradaudit scan -m {here}/net.py:make"}
        report = report.model_copy(update={"target": target, "provenance": command})
        (run,) = json.loads(Sarif().render(report, POLICY))["runs"]
        place = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
        assert place == {"uri": "models/net.py", "uriBaseId": "%SRCROOT%"}
        assert run["invocations"][0]["commandLine"] == "gradaudit scan -m models/net.py:make"
