"""What ``gradaudit explain`` says stands in the declaration of the audit, and nowhere else."""

import json
import re
from html import unescape

import pytest
from command_line import run
from markdown_it import MarkdownIt

from gradaudit.audits import AuditOptions, audits
from gradaudit.audits.explaining import PARTS, explain, limits_of, names
from gradaudit.audits.job.loading.chains import FAULTS
from gradaudit.core.parts import offered, part_named
from gradaudit.formats.explanation import explanation_markdown
from gradaudit.judging import default_policy, known_metrics
from gradaudit.judging.risk import LEVELS


@pytest.mark.parametrize("audit", audits())
def test_an_audit_has_its_summary_its_docstring_and_its_paper(audit: str) -> None:
    done = run("explain", *audit.split(), width=100)
    assert done.status == 0
    printed = " ".join(done.out.split())
    assert audits()[audit].summary.replace("`", "") in printed
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


@pytest.mark.parametrize("kind", PARTS)
def test_a_kind_has_its_parts(kind: str) -> None:
    entries = explain(kind).parts[0].entries
    listed = json.loads(run("list", kind, "-f", "json").out)[kind]
    assert dict(entries) == {name.partition(" (")[0]: text for name, text in listed.items()}


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_has_its_summary_its_docstring_and_its_options(kind: str) -> None:
    for name, declaration in offered(PARTS[kind]).items():
        done = run("explain", kind, name, width=100)
        assert done.status == 0, done.err
        printed = " ".join(done.out.split())
        assert printed.startswith(f"{name} ({kind}) ")
        part = part_named(PARTS[kind], name)
        assert part is not None
        assert str(declaration["summary"])[1:].rstrip(".").replace("`", "") in printed
        first = (part.__doc__ or "").partition("\n\n")[0]
        assert " ".join(first.replace("`", "").split()) in printed
        for option, field in getattr(part, "Options", AuditOptions).model_fields.items():
            assert f" {option} {field.description}" in printed


def test_the_fields_of_a_data_spec_are_its_options() -> None:
    printed = run("explain", "csv", width=100).out
    for option in ("label", "attribute", "drop", "sep"):
        assert f"\n  {option}\n" in printed
    assert "\n  source\n" not in printed


def test_a_name_of_two_kinds_names_the_other() -> None:
    assert run("explain", "dp").out == run("explain", "defenses", "dp").out
    assert "See gradaudit explain mechanisms dp." in run("explain", "dp").out


def test_an_error_has_its_exit_status() -> None:
    printed = " ".join(run("explain", "CheckpointError").out.split())
    assert "A checkpoint is refused, unreadable or does not fit the model." in printed
    assert "exits with 3" in printed
    assert "exits with 2" in run("explain", "UsageError").out


def test_attacks_are_listed_as_commands_and_as_methods() -> None:
    listed = run("list", "attacks").out
    assert re.search(r"^  attack property +Infer", listed, re.MULTILINE)
    assert re.search(r"^  --method dlg +Match", listed, re.MULTILINE)


def test_what_is_not_there_is_suggested() -> None:
    done = run("explain", "vinfo.aurok")
    assert (done.status, done.out) == (2, "")
    assert "did you mean 'vinfo.auroc'?" in done.err
    assert {"vinfo", "vinfo.auroc"} <= set(names())


def test_every_fault_of_a_job_has_its_meaning_and_repair() -> None:
    for name in FAULTS:
        explained = explain(name)
        assert explained.title.startswith(f"{name} (fault of a job, ")
        assert explained.parts[0].heading == "Repair"
        assert "{" not in explained.lead + explained.parts[0].paragraphs[0]
        assert name in names()
    assert explain("numbers-in-clear").parts[0].paragraphs == [
        f"{FAULTS['numbers-in-clear']['repair'].capitalize()}."
    ]
    assert len(FAULTS) > 20


@pytest.mark.parametrize(
    "word",
    [
        "AUROC",
        "OPEN",
        "HIGH",
        "UNDECIDED",
        "verdict",
        "interval",
        "V-information",
        "reconstruction",
        "property",
    ],
)
def test_words_of_reports_are_explained_in_any_case(word: str) -> None:
    done = run("explain", word)
    assert (done.status, done.err) == (0, "")
    assert len(done.out.split()) <= 70
    assert run("explain", word.lower()).out == done.out


NOUNS = sorted({metric.noun for metric in known_metrics().values() if metric.noun})
PRINTED = ("FedSGD", "FedAvg", "closed form", "not tested", "not asked for", "not applicable")


@pytest.mark.parametrize("word", [*NOUNS, *PRINTED, *map(str.upper, LEVELS)])
def test_every_word_that_a_report_prints_is_explained(word: str) -> None:
    """Nouns of findings and columns, severities, and words of assumptions and gaps."""
    assert explain(word).lead
