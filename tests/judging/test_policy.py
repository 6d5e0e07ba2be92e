"""Policy files: what is read, and what is refused with file, line and key."""

from datetime import date
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from report_builder import make_report, row

from gradaudit.errors import UsageError
from gradaudit.judging import (
    Ignore,
    Policy,
    Rule,
    default_policy,
    default_policy_yaml,
    fails,
    gate,
    read_policy,
    verdict,
)
from gradaudit.view import view

GOOD = """\
rules:
  - {metric: leak.bits, layers: [conv*, fc1], max: 2}
  - metric: vinfo.auroc
    layers: 0
    min: -1.0e-3
    level: warning
    variant: {round: 2, method: dlg*}
    unclear: pass
ignore:
  - {metric: leak.*, layers: fc1, reason: known since spring, until: 2026-12-31}
  - {metric: leak.bits, reason: ok}
family: holm
unclear: fail
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("limit", ["1e-8", "1.0e9", "+2.5E3", ".5e1", "1.e2", "-3e+2"])
def test_limits_may_have_an_exponent_as_in_json_and_python(tmp_path: Path, limit: str) -> None:
    policy = read_policy(written(tmp_path, f"rules: [{{metric: leak.bits, max: {limit}}}]"))
    assert policy.rules[0].max == float(limit)


def test_a_whole_policy_is_read(tmp_path: Path) -> None:
    assert read_policy(written(tmp_path, GOOD)) == Policy(
        name="policy.yaml",
        rules=(
            Rule(metric="leak.bits", layers=("conv*", "fc1"), max=2.0),
            Rule(
                metric="vinfo.auroc",
                layers=("0",),
                min=-0.001,
                level="warning",
                variant={"round": 2, "method": "dlg*"},
                unclear="pass",
            ),
        ),
        ignore=(
            Ignore(
                metric="leak.*",
                layers=("fc1",),
                reason="known since spring",
                until=date(2026, 12, 31),
            ),
            Ignore(metric="leak.bits", reason="ok"),
        ),
        family="holm",
        unclear="fail",
    )


RULE = "rules:\n  - metric: a.b\n    "
BAD: list[tuple[str, str, str]] = [
    ("empty", "", "rules: a policy without a rule judges nothing; add one, or extends: default"),
    ("no rule", "rules: []", "rules: a policy without a rule judges nothing; add one, or extends"),
    ("another base", "extends: strict", "line 1: extends: Input should be 'default'"),
    ("a list", "- a\n", "line 1: the document: Input should be a valid dictionary or instance"),
    ("unknown key", "rules: []\nrulez: []\n", "line 2: rulez: unknown key"),
    ("unknown key of a rule", RULE + "max: 1\n    maxx: 2", "line 4: rules.0.maxx: unknown key"),
    ("no limit", RULE + "level: error", "line 2: rules.0: a rule needs either max or min"),
    ("two limits", RULE + "max: 1\n    min: 0", "rules.0: a rule needs either max or min"),
    ("text for a limit", RULE + "max: high", "line 3: rules.0.max: Input should be a valid number"),
    ("quoted limit", RULE + "max: '1'", "line 3: rules.0.max: Input should be a valid number"),
    ("true for a limit", RULE + "max: true", "line 3: rules.0.max: Input should be a valid number"),
    ("infinite limit", RULE + "max: .inf", "line 3: rules.0.max: Input should be a finite number"),
    ("NaN limit", RULE + "min: .nan", "line 3: rules.0.min: Input should be a finite number"),
    ("level", RULE + "max: 1\n    level: fatal", "line 4: rules.0.level: Input should be 'error'"),
    ("metric without audit", "rules:\n  - {metric: b, max: 1}", "line 2: rules.0.metric: String"),
    ("no layer", RULE + "max: 1\n    layers: []", "line 4: rules.0.layers: Value should have at"),
    ("layer", RULE + "max: 1\n    layers: [1.5]", "line 4: rules.0.layers.0: Input should be a"),
    ("unclear", RULE + "max: 1\nunclear: maybe", "line 4: unclear: Input should be 'pass'"),
    ("unclear of a rule", RULE + "max: 1\n    unclear: no", "line 4: rules.0.unclear: Input"),
    ("family", RULE + "max: 1\nfamily: bonferroni", "line 4: family: Input should be 'none'"),
    (
        "ignore without reason",
        RULE + "max: 1\nignore:\n  - metric: a.b",
        "line 5: ignore.0.reason: Field required",
    ),
    (
        "ignore with an empty reason",
        RULE + "max: 1\nignore:\n  - {metric: a.b, reason: ' '}",
        "line 5: ignore.0.reason: String should have at least 1 character",
    ),
    (
        "ignore until never",
        RULE + "max: 1\nignore:\n  - {metric: a.b, reason: r, until: soon}",
        "line 5: ignore.0.until: Input should be a valid date",
    ),
    ("twice", RULE + "max: 1\n    max: 9", "line 4: not valid YAML: the key 'max' occurs twice"),
    ("alias", "a: &a [x]\nb: *a", "line 2: not valid YAML: aliases (*name) are refused"),
    ("tag", "rules: !!python/object:os.system []", "not valid YAML: could not determine a const"),
    ("unclosed", "rules: [", "line 1: not valid YAML: expected the node content, but found"),
    ("two documents", "a: 1\n---\nb: 2", "line 2: not valid YAML: but found another document"),
    ("control character", "rules: \x07", "not valid YAML: unacceptable character"),
    ("mapping as key", "{[a]: 1}: 2", "line 1: not valid YAML: found unhashable key"),
    ("very deep", "[" * 5000, "nested too deeply"),
    ("very large", "#" * (1 << 20) + "\n", "larger than 1,048,576 bytes; is it the right file?"),
    ("impossible date", "a: 2026-99-99", "not valid YAML: 2026-99-99: month must be in 1..12"),
]


@pytest.mark.parametrize(("text", "message"), [c[1:] for c in BAD], ids=[c[0] for c in BAD])
def test_a_bad_policy_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_policy(path)
    said = str(caught.value)
    assert said.startswith(str(path))
    assert message in said
    assert "\n" not in said


def test_the_schema_knows_a_list_of_layers_and_refuses_an_empty_one() -> None:
    validator = Draft202012Validator(Policy.model_json_schema())
    fits = [
        validator.is_valid({"rules": [{"metric": "a.b", "max": 1, "layers": layers}]})
        for layers in ("fc*", 0, ["fc*"], ["fc1", 0], [], [1.5])
    ]
    assert fits == [True, True, True, True, False, False]


@pytest.mark.parametrize("text", ["rules: !!bool 7", "rules: !!float x", "rules: !!int x"])
def test_a_value_that_is_not_of_its_tag_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="not valid YAML") as caught:
        read_policy(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.yaml: cannot be read: No such file"):
        read_policy(tmp_path / "nowhere.yaml")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_policy(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8 text"):
        read_policy(binary)


def test_the_default_policy_is_a_policy_file(tmp_path: Path, two_audits: None) -> None:
    text = default_policy_yaml()
    assert read_policy(written(tmp_path, text)).sha256 == default_policy().sha256
    assert text == (
        "# gradaudit's default policy: what each audit declares about its metrics. An interval"
        " that lies\n# beyond the limit of an error rule shows a high risk, beyond that of a"
        " warning rule a medium one;\n# an interval that holds the limit shows neither and"
        " excludes neither.\nrules:\n"
        "  # Leaked bits: an attacker learns the attribute from this layer's gradient\n"
        "  - {metric: leak.bits, max: 2.0, level: error}\n"
        "  - {metric: leak.bits, max: 1.0, level: warning}\n"
        "  # Effort\n"
        "  - {metric: leak.effort, min: 10.0, level: warning}\n"
        "  # Total: sum\n"
        "  - {metric: leak.total, max: 0.0, level: error}\n"
    )


def test_rules_about_jobs_are_comments_of_the_printed_policy(tmp_path: Path) -> None:
    """As a scan has no such rows, and a rule without a row fails."""
    text = default_policy_yaml()
    assert "\n  # - {metric: job.faults, max: 0.0, level: error}\n" in text
    every = [rule.metric for rule in default_policy().rules]
    held = [rule.metric for rule in read_policy(written(tmp_path, text)).rules]
    assert held == [metric for metric in every if not metric.startswith("job.")] != every


def test_the_policy_in_the_documentation_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
    example = page.split("```yaml\n")[1].split("```")[0]
    policy = read_policy(written(tmp_path, example))
    assert len(policy.rules) == 4
    assert policy.ignore[0].until == date(2027, 1, 31)
    assert policy.family == "holm"


LEAKS = row("leak.bits", "conv1", 1.5), row("leak.bits", "fc1", 0.5), row("leak.total", None, 0.0)
"""Beyond the default warning of 1; within the error of 2 and the total of 0."""


def limits(policy: Policy) -> set[tuple[str, str, float]]:
    judged = gate(make_report(*LEAKS), policy)
    return {(x.metric, x.level, x.limit or 0.0) for x in judged.findings}


@pytest.mark.usefixtures("two_audits")
def test_a_policy_that_extends_the_default_replaces_rules_of_its_metric_and_level() -> None:
    default = {("leak.bits", "error", 2.0), ("leak.bits", "warning", 1.0)}
    total = {("leak.total", "error", 0.0)}
    own = Rule(metric="leak.bits", max=9)
    assert limits(Policy(extends="default")) == default | total
    assert limits(Policy(rules=(own,))) == {("leak.bits", "error", 9.0)}
    extended = Policy(extends="default", rules=(own,))
    assert limits(extended) == {("leak.bits", "error", 9.0), ("leak.bits", "warning", 1.0)} | total
    of_a_layer = own.model_copy(update={"layers": ("fc1",)})
    added = limits(Policy(extends="default", rules=(of_a_layer,)))
    assert added == {("leak.bits", "error", 9.0)} | default | total


@pytest.mark.usefixtures("two_audits")
def test_exceptions_without_rules_are_of_the_default_policy(tmp_path: Path) -> None:
    policy = read_policy(written(tmp_path, "ignore: [{metric: leak.bits, reason: known}]"))
    beyond = row("leak.bits", "conv1", 3.0)
    judged = gate(make_report(beyond), policy)
    assert policy.extends == "default"
    assert {x.outcome for x in judged.findings} == {"ignored"}
    assert verdict(judged) == "passed"
    assert verdict(gate(make_report(beyond))) == "failed"


@pytest.mark.usefixtures("two_audits")
def test_the_hash_of_a_policy_is_the_same_for_every_report() -> None:
    hashes = {str(gate(make_report(each)).provenance["policy"]["sha256"]) for each in LEAKS}
    assert len(hashes) == 1
    assert hashes == {default_policy().sha256}


@pytest.mark.usefixtures("two_audits")
def test_what_matches_nothing_is_said() -> None:
    typo = Ignore(metric="leak.bits", layers=("conv9",), reason="a typo")
    used = Ignore(metric="leak.bits", layers=("fc1",), reason="known")
    rule = Rule(metric="leak.bitz", max=1, level="warning")
    judged = gate(
        make_report(*LEAKS), Policy(extends="default", rules=(rule,), ignore=(used, typo))
    )
    unmatched = "ignore 2 (leak.bits in conv9) matches no row that a rule judges"
    assert judged.provenance["policy"]["unmatched"][0] == unmatched
    shown = view(judged)
    assert unmatched in shown.scope.warnings
    said = [each.evidence for each in shown.concerns if each.metric == "leak.bitz"]
    assert said == ["no row of this metric; did you mean 'leak.bits'?"]


@pytest.mark.usefixtures("two_audits")
def test_warnings_fail_a_report_where_they_are_to() -> None:
    report = make_report(*LEAKS)
    judged = gate(report, fail_on="warning")
    assert (verdict(gate(report)), fails(gate(report))) == ("passed", False)
    assert (verdict(judged), fails(judged)) == ("failed", True)
    assert view(judged).verdict.sentence == (
        "FAILED by the default policy: The private attribute of a batch is inferred (conv1)"
    )
    assert verdict(gate(make_report(LEAKS[1]), fail_on="warning")) == "passed"


@pytest.mark.usefixtures("two_audits")
def test_what_the_baseline_has_is_counted_apart_from_what_is_accepted() -> None:
    now = row("leak.bits", "conv1", 3.0), row("leak.bits", "fc1", 4.0), row("leak.total", None, 1.0)
    known = (Ignore(metric="leak.total", reason="known"),)
    policy = Policy(extends="default", ignore=known)
    judged = gate(make_report(*now), policy, baseline=make_report(*now[:2]))
    sentence = view(judged).verdict.sentence
    assert sentence.endswith(
        "the policy accepts 1 row that is not within the limit; 2 known from the baseline"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "ignore: [{metric: a.b, reason: x, until: 2026-13-31}]",
            "line 1: .*2026-13-31: month must",
        ),
        ("rules: [{metric: a.b, layer: fc1, max: 1}]", "unknown key .did you mean 'layers'"),
        ("rules: [{modle: a.b, max: 1}]", "rules.0.modle: unknown key; there are: metric, layers"),
    ],
)
def test_a_slip_is_named_with_its_line_and_key(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        read_policy(written(tmp_path, text))


def test_an_exception_that_nothing_needs_and_a_metric_misspelt_are_said() -> None:
    rule = Rule(metric="leak.bits", max=9)
    ignore = [Ignore(metric=name, reason="known") for name in ("leak.bits", "leak.bitz")]
    judged = gate(
        make_report(row("leak.bits", "fc1", 3.0)), Policy(rules=(rule,), ignore=tuple(ignore))
    )
    assert judged.provenance["policy"]["unmatched"] == [
        "ignore 2 (leak.bitz in *) matches no row that a rule judges; did you mean 'leak.bits'?",
        "ignore 1 (leak.bits in *) is not needed: every row that it covers is within its limit",
    ]
