"""What ``gradaudit explain`` says stands in the declaration of the audit, and nowhere else."""

import re
from html import unescape

import pytest
from command_line import run
from markdown_it import MarkdownIt

from gradaudit.audits import audits
from gradaudit.formats.explanation import explanation_markdown
from gradaudit.judging import default_policy, known_metrics
from gradaudit.view.explaining import explain, limits_of, names


@pytest.mark.parametrize("audit", audits())
def test_an_audit_has_its_question_its_docstring_and_its_paper(audit: str) -> None:
    done = run("explain", *audit.split(), width=100)
    assert done.status == 0
    printed = " ".join(done.out.split())
    assert audits()[audit].question in printed
    for paragraph in (audits()[audit].__doc__ or "").split("\n\n"):
        assert " ".join(paragraph.replace("`", "").split()) in printed
    assert printed.endswith(audits()[audit].paper)
    assert run("explain", audit.replace(" ", "-"), width=100) == done


@pytest.mark.parametrize("metric", known_metrics())
def test_a_metric_has_the_limits_of_the_default_policy(metric: str) -> None:
    said = explanation_markdown(explain(metric))
    rules = [rule for rule in default_policy().rules if rule.metric == metric]
    assert said.count("an error ") >= sum(rule.level == "error" for rule in rules)
    assert ("It has no limit by default." in said) is not bool(rules)


def test_limits_in_words() -> None:
    metric = known_metrics()["dp-audit.epsilon_lower"]
    assert limits_of(metric) == f"By default a warning above 1 and an error above 5: {metric.why}."


@pytest.mark.parametrize("audit", audits())
def test_markdown_is_read_as_the_docstring_was_written(audit: str) -> None:
    page = MarkdownIt().render(explanation_markdown(explain(audit)))
    assert not re.search("<(em|strong|img|table|blockquote)", page)
    text = " ".join(unescape(re.sub("<[^>]+>", "", page)).split())
    for paragraph in (audits()[audit].__doc__ or "").split("\n\n"):
        assert " ".join(paragraph.replace("`", "").split()) in text


def test_what_is_not_there_is_suggested() -> None:
    done = run("explain", "vinfo.aurok")
    assert (done.status, done.out) == (2, "")
    assert "did you mean 'vinfo.auroc'?" in done.err
    assert {"vinfo", "vinfo.auroc"} <= set(names())
