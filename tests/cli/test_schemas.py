"""The published schemas accept what gradaudit writes and refuse what it would not."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from report_builder import failed_row, infinite_row, make_report, row, skipped_row, two_audits

from gradaudit.cli.commands.listing import SCHEMAS, schema_of
from gradaudit.errors import UsageError
from gradaudit.judging import Policy, default_policy_yaml, gate

__all__ = ["two_audits"]

REPORT = gate(
    make_report(
        row("leak.bits", "fc1", 0.1, interval=(0.0, 1 / 3), variant={"p": 0.5, "on": True}, n=3),
        row("leak.bits", "conv1", 0.9, interval=(0.5, 1.5), variant={"p": 0.5}),
        infinite_row("leak.bits", "fc2"),
        skipped_row("rank.deficit", None, "no"),
        failed_row("rank.deficit", "fc1", "NaN"),
        row("leak.note", "fc1", -1e308, details={"a": [1, {"b": None}, 0.5, "x", False]}),
    ),
    Policy.model_validate({"rules": [{"metric": "leak.bits", "max": 1, "variant": {"p": 0.5}}]}),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_a_schema(name: str) -> None:
    schema = schema_of(name)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False


def test_there_is_no_other() -> None:
    with pytest.raises(UsageError, match="x: no such schema; there are: report, policy, config"):
        schema_of("x")


def faults(name: str, document: object) -> list[str]:
    return [e.message for e in Draft202012Validator(schema_of(name)).iter_errors(document)]


def as_read() -> Any:
    return json.loads(REPORT.to_json())


def test_a_report_is_valid() -> None:
    assert faults("report", as_read()) == []


def put(*path: str | int, value: object) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for part in path[:-1]:
            document = document[part]
        document[path[-1]] = value

    return change


def drop(*path: str | int) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for part in path[:-1]:
            document = document[part]
        del document[path[-1]]

    return change


NAN, INFINITY = float("nan"), float("inf")
WRONG: list[tuple[str, Callable[[Any], None]]] = [
    ("version", put("schema_version", value=2)),
    ("no measurements", drop("measurements")),
    ("unknown key", put("extra", value=1)),
    ("unknown key of a row", put("measurements", 0, "extra", value=1)),
    ("missing key of a row", drop("measurements", 0, "unit")),
    ("status", put("measurements", 0, "status", value="guessed")),
    ("text for a value", put("measurements", 0, "value", value="0.1")),
    ("NaN value", put("measurements", 0, "value", value=NAN)),
    ("infinite value", put("measurements", 0, "value", value=INFINITY)),
    ("minus infinite value", put("measurements", 0, "value", value=-INFINITY)),
    ("NaN in an interval", put("measurements", 0, "interval", value=[NAN, 1])),
    ("infinite interval", put("measurements", 0, "interval", value=[0, INFINITY])),
    ("half an interval", put("measurements", 0, "interval", value=[0])),
    ("confidence", put("measurements", 0, "confidence", value=95)),
    ("NaN in a variant", put("measurements", 0, "variant", value={"p": NAN})),
    ("NaN deep in details", put("measurements", 0, "details", value={"a": [{"b": NAN}]})),
    ("infinity in provenance", put("provenance", "seconds", value={"a": INFINITY})),
    ("NaN in the data", put("data", "accuracy", value=NAN)),
    ("measured without a value", put("measurements", 0, "value", value=None)),
    ("infinite said to be not", put("measurements", 2, "details", value={"infinite": False})),
    ("skipped with a value", put("measurements", 3, "value", value=1.0)),
    ("skipped without a reason", put("measurements", 3, "reason", value=None)),
    ("failed with an interval", put("measurements", 4, "interval", value=[0, 1])),
    ("outcome", put("findings", 0, "outcome", value="fine")),
    ("an unclear finding that says no more", put("findings", 1, "unclear", value=None)),
    ("a clear one that does", put("findings", 0, "unclear", value="warn")),
]


@pytest.mark.parametrize("change", [c[1] for c in WRONG], ids=[c[0] for c in WRONG])
def test_a_wrong_report_is_refused(change: Callable[[Any], None]) -> None:
    document = as_read()
    change(document)
    assert faults("report", document)


def test_policies(two_audits: None) -> None:
    assert faults("policy", yaml.safe_load(default_policy_yaml())) == []
    good = {"rules": [{"metric": "a.b", "layers": ["x", 0], "min": 1, "variant": {"r": 1}}]}
    assert faults("policy", {**good, "unclear": "fail"}) == []
    assert faults("policy", {**good, "ignore": [{"metric": "a.*", "reason": "r"}]}) == []
    for wrong in (
        {},
        {"rules": []},
        {"rules": [{"metric": "a.b"}]},
        {"rules": [{"metric": "a.b", "max": 1, "min": 0}]},
        {"rules": [{"metric": "a.b", "max": INFINITY}]},
        {"rules": [{"metric": "ab", "max": 1}]},
        {"rules": [{"metric": "a.b", "max": 1, "layers": []}]},
        {**good, "family": "bonferroni"},
        {**good, "unclear": "maybe"},
        {**good, "ignore": [{"metric": "a.*"}]},
    ):
        assert faults("policy", wrong), wrong


@pytest.mark.slow
def test_config_files() -> None:
    assert faults("config", {"model": "zoo:lenet", "layer": ["fc*"], "seed": 1}) == []
    assert faults("config", {"modell": "zoo:lenet"})
    assert faults("config", {"seed": -1})
