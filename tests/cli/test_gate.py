"""``gradaudit gate`` as a user and a CI job meet it."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Result, run
from report_builder import failed_row, make_report, row, saved, skipped_row

from gradaudit.cli.commands.gate import tally
from gradaudit.judging import Policy
from gradaudit.judging import gate as judge
from gradaudit.report import Report
from gradaudit.view import view

pytestmark = pytest.mark.usefixtures("two_audits")

M = "leak.bits"


def policy(folder: Path, text: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(text)
    return path


ONE_RULE = "rules: [{metric: leak.bits, max: 1}]\n"


def test_a_report_that_passes(tmp_path: Path) -> None:
    report = saved(tmp_path, row(M, "fc1", 0.5), skipped_row(M, "fc2", "no"))
    done = run("gate", report, "--policy", policy(tmp_path, ONE_RULE))
    assert (done.status, done.err) == (0, "")
    assert done.out == (
        "gate: 1 passed, 1 not applicable\n"
        "PASSED by policy.yaml: every row that a rule judges is within its limit, but no rule "
        "judges an\nattack on 2 of 3 layers by themselves\n"
    )


def test_a_report_that_fails(tmp_path: Path) -> None:
    report = saved(
        tmp_path,
        row(M, "conv1", 1.1, interval=(1.02, 1.2)),
        row(M, "fc1", 0.5, interval=(0.0, 1.2)),
        failed_row(M, "fc2", "the loss is NaN"),
    )
    text = ONE_RULE[:-2] + ", {metric: leak.note, layers: fc*, max: 1, level: warning}]\n"
    done = run("gate", report, "--policy", policy(tmp_path, text))
    assert done == Result(
        1,
        "error    conv1 leak.bits 1.10 [1.02, 1.20] exceeds the max of 1 (rule 1)\n"
        "error    fc2 leak.bits could not be measured: the loss is NaN (rule 1)\n"
        "warning  leak.note no row of this metric (rule 2)\n"
        "unclear  fc1 leak.bits 0.500 [0, 1.20] neither shows nor excludes a value above the max of"
        " 1; about 2 times as many records or trials would settle it (rule 1)\n"
        "gate: 1 failed, 1 not measured, 1 warned of, 1 unclear\n"
        "FAILED by policy.yaml: The private attribute of a batch is inferred (conv1)\n",
        "",
    )


@pytest.mark.parametrize(
    ("extra", "options", "status"),
    [
        ("", [], 0),
        ("", ["--strict"], 1),
        ("unclear: pass\n", [], 0),
        ("unclear: pass\n", ["--strict"], 1),
        ("unclear: fail\n", [], 1),
    ],
)
def test_what_is_unclear_fails_only_where_it_is_told_to(
    tmp_path: Path, extra: str, options: list[str], status: int
) -> None:
    report = saved(tmp_path, row(M, "fc1", 0.5, interval=(0, 2)))
    out = tmp_path / "judged.json"
    rules = policy(tmp_path, ONE_RULE + extra)
    done = run("gate", report, "--policy", rules, "-o", out, *options)
    assert done.status == status
    tally, verdict = done.out.split("gate: ")[1].split("\n", 1)
    assert tally == "1 unclear"
    assert " ".join(verdict.split()) == (
        "PASSED by policy.yaml: every other row that a rule of level error judges is within its "
        "limit, but no rule judges an attack on 2 of 3 layers by themselves; the policy accepts "
        "1 row that is not within the limit"
        if not status and extra
        else "UNDECIDED by policy.yaml: Is the private attribute of a batch inferred? (fc1; about "
        "9 times as many records or trials would settle it)"
    )
    (finding,) = Report.from_file(out).findings
    assert (finding.outcome, finding.times) == ("unclear", 9.0)
    assert finding.unclear == ("fail" if status else "pass" if extra else "warn")


def test_warnings_do_not_fail(tmp_path: Path) -> None:
    text = "rules: [{metric: leak.bits, max: 1, level: warning}]"
    done = run("gate", saved(tmp_path, row(M, "fc1", 2)), "--policy", policy(tmp_path, text))
    assert done.status == 0
    assert done.out.endswith(
        "gate: 1 warned of\n"
        "PASSED by policy.yaml with warnings: The private attribute of a batch is inferred "
        "(fc1)\n"
    )


def test_without_a_policy_the_default_judges(tmp_path: Path) -> None:
    rows = [row(M, "fc1", 1.5), row(M, "fc2", 2.5), row(M, "conv1", 1.5, interval=(1.2, 2.2))]
    done = run("gate", saved(tmp_path, *rows))
    assert done.status == 1
    *lines, tally, verdict, more = done.out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["error", "fc2"],
        ["warning", "fc1"],
        ["warning", "conv1"],
    ]
    assert lines[-1].endswith("(default policy); that of level error (default policy) is unclear")
    assert tally == "gate: 1 failed, 2 warned of"
    assert verdict.startswith(
        "FAILED by the default policy: The private attribute of a batch is inferred"
    )
    assert more == "findings"  # the end of "and 2 more findings"


@pytest.mark.parametrize(
    "rows", [[], [skipped_row(M, "fc1", "no")], [failed_row(M, "fc1", "no")]], ids=len
)
@pytest.mark.parametrize("text", [None, "rules: [{metric: leak.bits, max: 1, level: warning}]"])
def test_an_incomplete_audit_never_passes(tmp_path: Path, rows: Any, text: str | None) -> None:
    options = ["--policy", policy(tmp_path, text)] if text else []
    done = run("gate", saved(tmp_path, *rows), *options)
    assert done.status == 1
    assert "error    no audit measured a number\n" in done.out


def test_a_judged_copy_is_written(tmp_path: Path) -> None:
    report = saved(tmp_path, row(M, "fc1", 3))
    out, text = tmp_path / "judged.json", tmp_path / "judged.md"
    done = run("gate", report, "--policy", policy(tmp_path, ONE_RULE), "-o", out, "-o", text)
    assert done.status == 1
    judged = Report.from_file(out)
    assert [(f.layer, f.outcome, f.max) for f in judged.findings] == [("fc1", "failed", 1.0)]
    assert judged.measurements == Report.from_file(report).measurements
    assert Report.from_file(report).findings == []
    assert "🔴 HIGH" in text.read_text()
    again = run("gate", out, "-f", "json", "--policy", policy(tmp_path, ONE_RULE))
    assert again.out == out.read_text()
    assert run("gate", out, "-f", "markdown", "--policy", tmp_path / "policy.yaml").out == (
        text.read_text()
    )


@pytest.mark.parametrize("now", [(3.0, None), (1.5, (0.5, 2.5))])
def test_known_rows_of_every_level_have_one_count(
    now: tuple[float, tuple[float, float] | None], tmp_path: Path
) -> None:
    value, interval = now
    names = ("conv1", "fc1", "fc2")
    report = make_report(*(row("leak.bits", name, value, interval=interval) for name in names))
    rules = [
        {"metric": "leak.bits", "layers": "conv1", "max": 1},
        {"metric": "leak.bits", "layers": "fc*", "max": 1, "level": "warning"},
    ]
    judged = judge(report, Policy.model_validate({"rules": rules}), baseline=report)
    assert tally(judged) == "3 known from the baseline"
    assert view(judged).verdict.sentence.endswith("3 known from the baseline")
    assert not any(". (" in concern.summary for concern in view(judged).concerns)


def test_a_baseline_excuses_what_is_known(tmp_path: Path) -> None:
    old = saved(tmp_path, row(M, "fc1", 3), name="old.json")
    new = saved(tmp_path, row(M, "fc1", 3), row(M, "fc2", 3))
    rules = ["--policy", policy(tmp_path, ONE_RULE), "--baseline", old]
    assert run("gate", old, *rules).status == 0
    done = run("gate", new, *rules)
    assert done.status == 1
    assert done.out == (
        "error    fc2 leak.bits 3 exceeds the max of 1 (rule 1)\n"
        "known    fc1 leak.bits 3 exceeds the max of 1; known: 3 in the baseline (rule 1)\n"
        "note     the baseline lacks 1 of 2 judged rows, in fc2\n"
        "gate: 1 failed, 1 known from the baseline\n"
        "FAILED by policy.yaml: The private attribute of a batch is inferred (fc2)\n"
    )


def test_a_baseline_of_another_model_is_told_or_refused(tmp_path: Path) -> None:
    report = saved(tmp_path, row(M, "fc1", 0.5), name="new.json")
    rules = ["--policy", policy(tmp_path, ONE_RULE)]
    part = saved(tmp_path, row(M, "fc1", 0.5), name="part.json", layers=[("fc1", "Linear", 8192)])
    done = run("gate", report, *rules, "--baseline", part)
    note = "the baseline does not have the layers conv1, fc2"
    assert (done.status, done.err) == (0, "")
    assert f"note     {note}\n" in done.out
    several = run("gate", report, report, *rules, "--baseline", part)
    assert several.err == f"gradaudit: {report}: {note}\n" * 2
    other = saved(tmp_path, row(M, "a", 1), name="other.json", layers=[("a", "Linear", 1)])
    done = run("gate", report, *rules, "--baseline", other)
    assert done.status == 2
    assert "another model" in done.err


def test_bad_usage_ends_with_2_and_writes_nothing(tmp_path: Path) -> None:
    report = saved(tmp_path, row(M, "fc1", 3))
    bad = policy(tmp_path, "rules:\n  - {metric: leak.bits, maxx: 1}\n")
    no_report = tmp_path / "no.json"
    no_report.write_text('{"schema_version": 1}')
    out = tmp_path / "out.json"
    cases: list[tuple[list[Any], str]] = [
        ([report, "--policy", bad], "policy.yaml, line 2: rules.0.maxx: unknown key"),
        ([report, "--policy", tmp_path / "none.yaml"], "none.yaml: cannot be read: No such file"),
        ([tmp_path / "none.json"], "none.json: cannot be read: No such file"),
        ([tmp_path], "cannot be read: Is a directory"),
        ([no_report], "no.json: not a gradaudit report: tool: Field required"),
        ([report, "--baseline", no_report], "no.json: not a gradaudit report"),
        ([report, "-o", tmp_path / "x.pdf"], "x.pdf: no report format has this suffix"),
        ([report, "-o", tmp_path / "no" / "x.json"], "x.json: cannot be written: No such file"),
        ([report, "-f", "pdf"], "'pdf'"),
        ([], "Missing argument"),
    ]
    for arguments, message in cases:
        done = (
            run("gate", *arguments, "-o", out) if "-o" not in arguments else run("gate", *arguments)
        )
        assert done.status == 2, arguments
        assert message in done.err
        assert done.out == ""
        assert "Traceback" not in done.err
    assert not out.exists()


def test_several_reports_have_a_line_each_the_gravest_first(tmp_path: Path) -> None:
    good = saved(tmp_path, row(M, "fc1", 0.5, interval=(0.4, 0.6)), name="good.json")
    open_ = saved(tmp_path, row(M, "fc1", 0.9, interval=(0.4, 1.2)), name="open.json")
    bad = saved(tmp_path, row(M, "fc1", 3, interval=(2.9, 3.1)), name="bad.json")
    limits = policy(tmp_path, ONE_RULE)
    done = run("gate", good, open_, bad, "--policy", limits, width=1000)
    words = [line.split(": ")[1].split(" by ")[0] for line in done.out.splitlines()[:-1]]
    assert (done.status, words) == (1, ["FAILED", "UNDECIDED", "PASSED"])
    assert done.out.splitlines()[-1] == "gate: 1 of 3 reports fail"
    assert run("gate", good, open_, "--policy", limits).status == 0
    strict = run("gate", good, open_, "--policy", limits, "--strict")
    assert (strict.status, strict.out.splitlines()[-1]) == (1, "gate: 1 of 2 reports fail")
    github = run("gate", good, bad, "--policy", limits, "-f", "github")
    assert [line.count("title=gradaudit") for line in github.out.splitlines()].count(1) == 2
    for more in (["-o", tmp_path / "judged.json"], ["-f", "sarif"], ["-o", "-"]):
        refused = run("gate", good, bad, *more)
        assert (refused.status, "name one report" in refused.err) == (2, True)


def test_the_policy_of_the_configuration_judges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = saved(tmp_path, row(M, "fc1", 1.5, interval=(1.4, 1.6)))
    policy(tmp_path, ONE_RULE)
    (tmp_path / "gradaudit.yaml").write_text("policy: policy.yaml\n")
    monkeypatch.chdir(tmp_path)
    done = run("gate", report)
    assert (done.status, done.out.splitlines()[-1].split(":")[0]) == (1, "FAILED by policy.yaml")
    assert done.err == ("gradaudit: policy policy.yaml of gradaudit.yaml (--policy wins over it)\n")
    (tmp_path / "other.yaml").write_text("rules: [{metric: leak.bits, max: 2}]\n")
    assert run("gate", report, "--policy", "other.yaml").status == 0


def test_the_default_policy_is_printed(tmp_path: Path) -> None:
    done = run("gate", "--print-default-policy")
    assert done.status == 0
    rows = row(M, "fc1", 0.5), row("leak.effort", "fc1", 11), row("leak.total", None, -1)
    judged = run("gate", saved(tmp_path, *rows), "--policy", policy(tmp_path, done.out))
    assert judged.status == 0


def test_a_name_is_no_markup_on_the_terminal(tmp_path: Path) -> None:
    name = "w[/x]\x1b[31m\n::error::"
    report = saved(tmp_path, row(M, name, 3), layers=[(name, "Linear", 1)])
    done = run("gate", report, "--policy", policy(tmp_path, ONE_RULE))
    assert "w[/x]\ufffd[31m\ufffd:\ufffderror:\ufffd leak.bits 3 exceeds" in done.out
    both = saved(tmp_path, name="o.json", layers=[(name, "Linear", 1), ("\x1b[2J", "Linear", 1)])
    noted = run("gate", report, "--baseline", both).out
    assert "note     the baseline has more layers: \ufffd[2J\n" in noted
    assert json.loads(run("gate", report, "-f", "json").out)["measurements"][0]["layer"] == name
