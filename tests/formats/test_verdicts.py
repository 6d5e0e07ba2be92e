"""The verdict, and what nothing tested, are the same in every format for people or servers."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from report_builder import make_report, row, skipped_row

import gradaudit
from gradaudit.formats import format_named
from gradaudit.judging import Policy, gate, verdict
from gradaudit.report import Report
from gradaudit.view import view

pytestmark = pytest.mark.usefixtures("two_audits")

POLICY = Policy.model_validate(
    {"name": "limits.yaml", "rules": [{"metric": "leak.total", "max": 1}]}
)
WHOLE_MODEL: dict[str, Report] = {
    "failed": make_report(row("leak.total", None, 2.0, interval=(1.5, 2.5))),
    "undecided": make_report(row("leak.total", None, 1.5, interval=(0.5, 2.5))),
    "passed": make_report(row("leak.total", None, 0.5, interval=(0.0, 0.9))),
}
"""Reports without a row of a single layer."""


@pytest.mark.parametrize("word", WHOLE_MODEL)
@pytest.mark.parametrize("name", ["table", "markdown", "html", "sarif", "junit", "github", "json"])
def test_every_format_says_the_same_word(word: str, name: str) -> None:
    judged = gate(WHOLE_MODEL[word], POLICY)
    sentence = view(judged).verdict.sentence
    assert sentence.startswith(f"{word.upper()} by limits.yaml: ")
    text = format_named(name).render(judged)
    if name == "sarif":
        said = json.loads(text)["runs"][0]["properties"]
        assert (said["verdict"], said["summary"]) == (word, sentence)
    elif name == "junit":
        said = {p.get("name"): p.get("value") for p in ET.fromstring(text).iter("property")}
        assert (said["verdict"], said["summary"]) == (word, sentence)
    elif name == "json":
        assert json.loads(text)["provenance"]["verdict"] == word
    elif name == "github":
        kind = {"failed": "error", "undecided": "warning", "passed": "notice"}[word]
        assert text.endswith(f"::{kind} title=gradaudit::{sentence}\n")
    else:
        plain = " ".join(re.sub(r"<[^>]*>", "", text).split())
        assert f"{word.upper()} by limits.yaml" in plain
        assert name == "table" or sentence in plain


@pytest.mark.parametrize("word", WHOLE_MODEL)
def test_a_report_that_is_typed_says_it_too(word: str) -> None:
    judged = gate(WHOLE_MODEL[word], POLICY)
    sentence = view(judged).verdict.sentence
    assert sentence in repr(judged)
    assert sentence in judged._repr_html_()
    assert gradaudit.passed(judged) is (word == verdict(judged) == "passed")


@pytest.mark.parametrize("name", ["table", "markdown", "html"])
def test_a_finding_of_the_whole_model_stands_beside_no_layers(name: str) -> None:
    """Nothing green is painted for layers that nothing measured."""
    text = format_named(name).render(gate(WHOLE_MODEL["failed"], POLICY))
    assert re.search("no audit measured single layers", text, re.IGNORECASE)
    assert "🟢" not in text
    assert 'class="dot low"' not in text
    assert "Every metric of every layer" not in text
    assert not re.search(r"^(\| `)?conv1", text, re.MULTILINE)


@pytest.mark.parametrize("name", ["markdown", "html"])
def test_a_layer_that_is_not_tested_or_undecided_is_not_green(name: str) -> None:
    """Of three layers one is within its limit, one is undecided and one is not tested."""
    report = make_report(
        row("leak.bits", "conv1", 0.5),
        row("leak.bits", "fc1", 1.9, interval=(0.9, 2.9)),
        skipped_row("leak.bits", "fc2", "no"),
    )
    rules = Policy.model_validate({"rules": [{"metric": "leak.bits", "max": 1.5}]})
    judged = gate(report, rules)
    assert [str(line.sign) for line in view(judged).layers.lines] == ["low", "None", "not tested"]
    text = format_named(name).render(judged)
    if name == "markdown":
        head = text.partition("<details>")[0]
        signs = dict(re.findall(r"^\| `(\w+)` \| (.) ", head, re.MULTILINE))
        assert signs == {"conv1": "🟢", "fc1": "⚪", "fc2": "⚪"}
    else:
        layers = text.partition("<h2>Layers</h2>")[2].partition("</table>")[0]
        lines = [each.partition("</tr>")[0] for each in layers.split("<tr>")[2:]]
        rows = [re.findall(r'class="(dot [^"]*)"', each)[:1] for each in lines[:3]]
        assert rows == [["dot low"], ["dot none hollow"], ["dot none hollow"]]


def test_a_notebook_paints_green_only_what_is_within(tmp_path: Path) -> None:
    report = make_report(
        row("leak.bits", "conv1", 0.5), row("leak.bits", "fc1", 1.9, interval=(0.9, 2.9))
    )
    colours = dict(
        re.findall(r">(\w+)</th><td style='text-align:left;color:(#\w+)'", report._repr_html_())
    )
    assert colours == {"conv1": "#1a7f37", "fc1": "#6e6e6e", "fc2": "#6e6e6e"}
