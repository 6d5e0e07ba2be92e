"""The section for a data protection impact assessment: short, whole, and only text."""

from pathlib import Path

import pytest
from markupsafe import escape
from report_builder import Rank, make_report, row

from gradaudit.formats import format_for
from gradaudit.formats.dpia import Dpia
from gradaudit.formats.html import Html
from gradaudit.view.assessment import SCALES

pytestmark = pytest.mark.usefixtures("two_audits")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("dpia.md", "dpia"),
        ("round-3.dpia.md", "dpia"),
        ("DPIA.md", "dpia"),
        ("report.md", "markdown"),
        ("dpia.html", "html"),
    ],
)
def test_a_file_is_one_by_its_name(file: str, name: str) -> None:
    assert format_for(Path("out") / file).name == name


def test_it_says_each_harm_with_likelihood_severity_and_numbers() -> None:
    text = Dpia().render(make_report(row("leak.bits", "conv1", 3.1, interval=(2.9, 3.3))))
    lines = text.splitlines()
    assert "**FAILED by the default policy.** A server can tell a batch's private" in text
    harms = [line.split(" | ") for line in lines if line.startswith("| ")][2:]
    assert [line[0] for line in harms] == [
        "| single records are rebuilt, or traced to who sent them",
        "| a private attribute is inferred",
        "| the labels of records are read",
    ]
    assert [line[1].split(":")[0] for line in harms] == ["not known", "likely", "not known"]
    assert [line[2].split(":")[0] for line in harms] == ["severe", "significant", "significant"]
    assert harms[1][3] == "leak.bits 3.10 [2.90, 3.30], lower end above limit 2 |"
    assert "does not prove privacy" in text
    assert "SHA-256 of the JSON" in text


def test_it_is_half_a_page_for_any_model_and_nothing_in_it_is_markup() -> None:
    names = [f"<b>|layer{i}|</b>" for i in range(500)]
    report = make_report(
        *(row("leak.bits", name, 3.0) for name in names),
        layers=[(name, "Conv2d", 1) for name in names],
        model="[x](http://e) <script>",
    )
    text = Dpia().render(report)
    assert len(text.replace("|", " ").split()) < 350
    assert "<" not in text
    assert "](" not in text
    assert all(line.count(" | ") == 3 for line in text.splitlines() if line.startswith("| "))


def test_the_page_explains_its_words_and_names_every_question_that_was_not_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Rank, "question", "How full is the rank?")
    report = make_report(row("leak.bits", "conv1", 3.1, interval=(2.9, 3.3)))
    page = Html().render(report)
    assert "how full is the rank" in Dpia().render(report)
    for word, rule in SCALES.items():
        assert f"<dt>{word}</dt><dd>{escape(rule)}</dd>" in page
    assert (
        '<strong>rank</strong>: not asked for<div class="soft">how full is the rank</div>' in page
    )
