"""SARIF: what the format and code scanning ask for, and which findings become results."""

import json
from typing import Any

import pytest
from report_builder import failed_row, make_report, row, skipped_row

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


def run_of(report: Report, policy: Policy | None = None) -> dict[str, Any]:
    document = json.loads(Sarif().render(report, policy))
    assert document["version"] == "2.1.0"
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
        "message": {
            "text": "Layer conv1: leak.bits 3 [2, 4] exceeds the max of 1. an attacker learns the "
            "attribute from this layer's gradient"
        },
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": "round-5.safetensors"},
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
        ("leak.bits", "error", False, None),
        ("leak.bits", "error", False, "unchanged"),
        ("leak.bits", "error", True, None),
        ("leak.note", "warning", False, None),
        ("leak.note", "warning", False, None),
    ]
    assert results[3]["message"]["text"].startswith("The whole model: leak.note 4 is below")
    assert results[4]["message"]["text"] == "Layer fc1: leak.note could not be measured: NaN."


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


def test_fingerprints_tell_rows_apart_and_survive_a_change_of_value() -> None:
    def prints(value: float) -> list[str]:
        report = make_report(*(row(M, layer, value) for layer in ("conv1", "fc1", "fc2")))
        results = run_of(report)["results"]
        return [result["partialFingerprints"]["primaryLocationLineHash"] for result in results]

    assert len(set(prints(3))) == len(prints(3)) == 6
    assert prints(3) == prints(4)


LOCATIONS = [
    ("models/net.py:make?width=3", "models/net.py"),
    ("my models/net.py:make", "my%20models/net.py"),
    ("zoo:lenet", "round-5.safetensors"),
]


@pytest.mark.parametrize(("model", "uri"), LOCATIONS)
def test_results_lie_in_the_file_that_makes_the_model(model: str, uri: str) -> None:
    result = run_of(make_report(row(M, "fc1", 3), model=model))["results"][0]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


def test_without_findings_there_are_no_results() -> None:
    run = run_of(make_report(row(M, "fc1", 0.5)))
    assert run["results"] == []
    assert run["tool"]["driver"]["rules"] == []


def test_a_report_without_a_measurement_is_a_result() -> None:
    run = run_of(make_report())
    assert [(r["ruleId"], r["level"]) for r in run["results"]] == [("report.incomplete", "error")]


def test_a_hostile_name_makes_no_link() -> None:
    name = "[click](http://evil)\x1b[0m"
    report = make_report(row(M, name, 3), layers=[(name, "Linear", 1)])
    text = json.dumps(run_of(report))
    assert "](" not in text
    assert "\\u001b" not in text
