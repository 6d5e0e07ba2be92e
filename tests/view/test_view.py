"""What is said of a report, before any format lays it out; reports are written out by hand."""

from typing import Any

import pytest
from report_builder import failed_row, fc1, make_report, row, skipped_row

from gradaudit.audits import Metric
from gradaudit.judging import Policy, gate
from gradaudit.report import Report
from gradaudit.view import Concern, view
from gradaudit.view.facts import Place, abridged
from gradaudit.view.gaps import UnmeasuredPart, in_brief

pytestmark = pytest.mark.usefixtures("two_audits")

SLANT = {"slant": {"left": 901, "right": 896}, "ink": {"light": 907, "heavy": 890}}


def concerns(*rows: Any, **rule: Any) -> tuple[Concern, ...]:
    policy = Policy(rules=(rule,)) if rule else None  # type: ignore[arg-type]
    return view(make_report(*rows), policy).concerns


@pytest.mark.parametrize(
    ("value", "interval", "rule", "evidence", "limit", "severity"),
    [
        (3.0, (2.5, 3.5), {"max": 2}, "bits 3 [2.50, 3.50]", "≤ 2", "HIGH"),
        (1.0, (0.5, 1.5), {"min": 2}, "bits 1 [0.500, 1.50]", "≥ 2", "HIGH"),
        (3.0, None, {"max": 2.5}, "bits 3", "≤ 2.5", "HIGH"),
        (3.0, None, {"max": 2.5, "level": "warning"}, "bits 3", "≤ 2.5", "MEDIUM"),
        (3, (1.5, 4.5), {"max": 2}, "bits 3 [1.50, 4.50]", "≤ 2", "OPEN"),
        (1.0, (0.5, 1.5), {"max": 2}, "", "", ""),
    ],
)
def test_a_finding_is_a_sentence_its_number_and_its_limit(
    value: float, interval: Any, rule: Any, evidence: str, limit: str, severity: str
) -> None:
    extra = {"interval": interval} if interval else {}
    measured = row("leak.bits", "fc1", value, n=40, details={"attribute": "sex"}, **extra)
    found = concerns(measured, metric="leak.bits", **rule)
    assert [(x.evidence, x.limit, x.severity) for x in found] == (
        [(evidence, limit, severity)] if severity else []
    )
    for each in found:
        shown = severity != "OPEN"
        assert each.where == "fc1"
        assert each.sentence == (
            "The sex of a batch is inferred." if shown else "Is the sex of a batch inferred?"
        )
        assert each.shown is bool(each.why) is shown
        assert each.helps.startswith("hiding fc1 (--hide), or") is shown
        assert each.settles.startswith("about 2.2 times") is not shown


@pytest.mark.parametrize(
    ("interval", "evidence"),
    [
        ((0.1, 0.9), "bits 0.500 [0.100, 0.900], but its adversary is linear"),
        ((0.1, 2.9), "bits 0.500 [0.100, 2.90]"),
    ],
)
def test_an_open_finding_says_what_would_settle_it(
    interval: Any, evidence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Metric(id="bits", title="Bits", noun="bits", stronger="--family forest")
    for module in ("judging.case", "view.concerns"):
        monkeypatch.setattr(f"gradaudit.{module}.known_metrics", lambda: {"leak.bits": played})
    weak = {"learners": {"logistic": "linear"}}
    measured = row("leak.bits", "fc1", 0.5, interval=interval, details=weak)
    rules = Policy.model_validate({"rules": [{"metric": "leak.bits", "max": 2}]})
    shown = view(make_report(measured), rules)
    (found,) = shown.concerns
    assert (found.evidence, found.helps) == (evidence, "--family forest")
    assert ("records or trials" in found.settles) is ("linear" not in evidence)
    assert shown.verdict.sentence.endswith(f"(fc1; {found.settles})")
    assert shown.layers.lines[1].severity == "OPEN"


def test_a_corrected_interval_is_the_one_that_is_judged() -> None:
    rows = [row("leak.bits", f"fc{i}", 3.0, interval=(1.9, 4.1), n=40) for i in range(1, 3)]
    report = make_report(*rows, layers=[("fc1", "Linear", 1), ("fc2", "Linear", 1)])
    rule = {"metric": "leak.bits", "max": 1.8}
    policy = Policy.model_validate({"rules": [rule], "family": "holm"})
    judged = gate(report, policy)
    assert all(finding.ends and finding.ends[0] < 1.8 for finding in judged.findings)
    (found,) = view(judged).concerns
    assert found.evidence.startswith("bits 3 [1.90, 4.10] in fc1, corrected to [1.7")
    assert (found.severity, found.limit) == ("OPEN", "≤ 1.8")
    assert all(
        finding.ends is None for finding in gate(report, Policy(rules=policy.rules)).findings
    )


def test_an_error_hides_its_warning_and_one_metric_is_one_concern() -> None:
    found = concerns(
        row("leak.bits", "conv1", 3.0),
        fc1(4.0),
        row("leak.bits", "fc2", 1.5),
        row("leak.effort", "fc2", 2.0),
        row("leak.total", None, 1.0, details={"knowledge": {"batch_size": 8}}),
    )
    assert [(x.severity, x.metric, x.where, x.sentence) for x in found] == [
        ("HIGH", "leak.bits", "conv1 and fc1", "The private attribute of a batch is inferred."),
        ("HIGH", "leak.total", "whole update", "Records are reconstructed."),
        ("MEDIUM", "leak.bits", "fc2", "The private attribute of a batch is inferred."),
        ("MEDIUM", "leak.effort", "fc2", "Effort: beyond its limit."),
    ]
    assert found[0].evidence == "bits 4 in fc1"


def test_findings_that_are_shown_come_before_those_that_are_open() -> None:
    found = concerns(fc1(1.5, 0.5, 2.5), row("leak.bits", "fc2", 1.5), row("leak.total", None, 1))
    assert [x.severity for x in found] == ["HIGH", "MEDIUM", "OPEN"]


def test_an_attack_that_finds_nothing_comes_last_with_its_number() -> None:
    tried = row("leak.bits", "fc1", 0.1, interval=(0.0, 0.3), details={"batch_size": 184})
    shown = view(make_report(tried, row("leak.total", None, 1.0)))
    assert [x.severity for x in shown.findings] == ["HIGH", "LOW"]
    (cleared,) = shown.cleared
    assert cleared.sentence == "Is the private attribute of a batch inferred?"
    assert cleared.evidence == "bits 0.100 [0, 0.300] behind batches of 184: not inferred"
    for other in (row("leak.bits", "fc2", 3.0), row("leak.bits", "fc2", 0.9, interval=(0, 3))):
        assert view(make_report(tried, other)).cleared == ()


@pytest.mark.parametrize(
    ("details", "floor"),
    [
        ({"permuted": {"value": 0.25, "interval": [0.1, 0.4]}}, "permuted 0.250 [0.100, 0.400]"),
        ({"permuted": {"value": 0.25}}, "permuted 0.250"),
        ({"permuted": "nonsense"}, "chance 0"),
        ({}, "chance 0"),
    ],
)
def test_the_number_stands_beside_its_floor(details: Any, floor: str) -> None:
    (found,) = concerns(row("leak.bits", "fc1", 3.0, details=details))
    assert found.floor == floor


def test_the_floor_may_be_a_row_of_its_own() -> None:
    permuted = row("leak.bits", "fc1", 0.5, variant={"attribute_permuted": True})
    (found,) = concerns(fc1(3.0), permuted)
    assert found.floor == "permuted 0.500"


TOLD = "The private attribute of a batch is inferred (fc1)"
ASKED = "Is the private attribute of a batch inferred?"
WORST: list[tuple[str, list[Any]]] = [
    (
        "PASSED|: every row that a rule judges is within its limit",
        [row("leak.bits", name, 0.5) for name in ("conv1", "fc1", "fc2")],
    ),
    (
        "PASSED|: every row that a rule judges is within its limit, but no rule judges an attack "
        "on 2 of 3 layers by themselves",
        [fc1(0.5)],
    ),
    (f"PASSED| with warnings: {TOLD}", [fc1(1.5)]),
    (
        "PASSED|: every row that a rule of level error judges is within its limit, but no rule "
        "judges an attack on 2 of 3 layers by themselves",
        [fc1(1.5, 0, 2)],
    ),
    (
        f"UNDECIDED|: {ASKED} (fc1; about 9 times as many records or trials would settle it)",
        [fc1(1.5, 0, 3)],
    ),
    (
        f"UNDECIDED|: {ASKED} (fc1; about 4 times as many records or trials would settle it); "
        "Are records reconstructed? (whole update; far too few: more than 100 "
        "times as many would be needed)",
        [
            fc1(1.5, 1.1, 2.5),
            row("leak.bits", "fc2", 0.5),
            row("leak.total", None, 0.01, interval=(-3.0, 3.0)),
        ],
    ),
    (
        f"FAILED|: {TOLD}",
        [fc1(3.0), row("leak.total", None, -0.5, interval=(-3.0, 3.0))],
    ),
    (
        f"FAILED|: {TOLD}; Records are reconstructed (whole update)",
        [fc1(3.0), row("leak.total", None, 1.0)],
    ),
    (
        f"UNDECIDED|: {ASKED} (fc1; could not be measured: NaN)",
        [failed_row("leak.bits", "fc1", "NaN"), row("leak.note", "fc1", 1)],
    ),
    ("UNDECIDED|: No audit measured a number", []),
]


@pytest.mark.parametrize(("sentence", "rows"), WORST, ids=[s for s, _ in WORST])
def test_the_verdict(sentence: str, rows: list[Any]) -> None:
    said = view(make_report(*rows)).verdict.sentence
    assert said == sentence.replace("|", " by the default policy")


def test_the_verdict_names_the_policy_that_judged() -> None:
    policy = Policy.model_validate(
        {"name": "hospital", "rules": [{"metric": "leak.bits", "max": 1}]}
    )
    judged = gate(make_report(fc1(0.5)), policy)
    for shown in (view(judged), view(make_report(fc1(0.5)), policy)):
        assert (shown.verdict.policy, shown.verdict.sha256) == ("hospital", policy.sha256)
        assert shown.verdict.sentence.startswith("PASSED by hospital: ")


def attacked(**provenance: Any) -> Report:
    report = make_report(
        row("leak.bits", "conv1", 1, details={"secret": "slant", "batch_size": 7}),
        row("leak.total", None, 1, details={"knowledge": {"batch_size": 1, "model": "weights"}}),
        row("rank.deficit", "fc1", 1, details={"batch_size": 16, "defenses": "none applied: why"}),
        data={"adapter": "digits", "records": 1797, "attributes": SLANT},
    )
    report.provenance.update(provenance)
    return report


def test_the_scope_says_what_was_attacked_and_how() -> None:
    shown = view(attacked())
    assert shown.scope.lines == (
        ("attacked", "slant (left, right)"),
        ("game", "batches of 7 (leak), 16 (rank); single records (leak)"),
    )
    assert shown.summary.assumptions == (
        "The attacker sees gradients of 3 layers; no defense; no layer hidden; updates of 1, 7 and "
        "16 records."
    )
    assert shown.summary.subject == (
        "zoo:lenet, round-5.safetensors, 8,620 parameters, cross-entropy, eval mode; "
        "digits, 1,797 records"
    )


def test_the_scope_says_what_is_shared_and_to_whom_it_does_not_apply() -> None:
    told = {
        "attributes": ["ink"],
        "hidden": ["fc3", "fc4"],
        "defenses": ["selective:0.05", "dp:clip=1"],
        "audits": {"leak": {"algorithm": "fedavg", "epochs": 3}, "rank": {"tolerance": 1}},
    }
    scope = view(attacked(**told)).scope
    assert scope.private == "ink (light, heavy), slant (left, right)"
    assert scope.shared == (
        "FedAvg differences, 3 local epochs of 3 layers; defended by selective:0.05 then dp:clip=1 "
        "(not applied by: rank); never shared: fc3 and fc4"
    )


def test_the_scope_names_predictive_families_and_their_size() -> None:
    forest = {"learners": {"forest": "50 trees", "mine": ""}, "shadow_batches": 100}
    linear = {"learners": {"logistic": "linear"}, "batches": [1200, 32, 128]}
    scope = view(
        make_report(
            row("leak.bits", "conv1", 1, details=forest),
            row("leak.bits", "fc1", 1, details=forest),
            row("leak.bits", "fc1", 1, details=linear, variant={"attribute_permuted": True}),
            row("rank.deficit", "fc1", 1, details=linear),
            row("other.x", "fc1", 1, details={"learners": {"encoder": "128 hidden units"}}),
        )
    ).scope
    assert dict(scope.lines)["families"] == (
        "forest (50 trees), mine, fitted on 100 batches (leak); logistic (linear), fitted on 1,200 "
        "batches (rank); encoder (128 hidden units) (other)"
    )


def test_a_secret_that_is_no_attribute_is_named_too() -> None:
    rows = [
        row("leak.bits", "conv1", 1, details={"secret": "user"}),
        row("leak.bits", "fc1", 1, details={"secret": "share of slant=left"}),
    ]
    report = make_report(*rows, data={"attributes": SLANT})
    assert view(report).scope.private == "user"


def test_a_report_that_attacked_nothing_says_so() -> None:
    report = make_report(row("rank.deficit", "fc1", 1), data={"attributes": SLANT})
    assert view(report).scope.private == "no attribute was attacked"
    assert view(make_report(layers=(), data={})).scope.game == ""


def test_what_nobody_looked_at_is_a_gap() -> None:
    report = make_report(
        row("leak.bits", "conv1", 1, details={"secret": "slant"}),
        skipped_row("leak.bits", "fc1", "too small; take more"),
        failed_row("leak.effort", "fc2", "NaN (here)"),
        *(skipped_row("other.x", name, "no mechanism; name one") for name in ("conv1", "fc1")),
        data={"attributes": SLANT},
    )
    shown = view(report)
    assert [(x.what, x.where, x.reason, x.partial) for x in shown.gaps] == [
        ("attribute ink", "", "not asked for", False),
        ("layer fc1", "", "no rule judges an attack on the gradient by itself", False),
        ("other", "", "no mechanism; name one", False),
        ("rank", "", "not asked for", False),
        ("leak", " in fc1", "too small; take more", True),
        ("leak", " in fc2", "NaN (here)", True),
    ]
    assert in_brief(shown.gaps) == (
        "attribute ink, rank (not asked for); layer fc1 (no rule judges an attack on the "
        "gradient by itself); other (no mechanism); leak in fc2 (failed: NaN)"
    )


@pytest.mark.parametrize(
    ("reason", "short"),
    [
        ("closed-form: the gradient is zero: it shows no input; dlg: no", "the gradient is zero"),
        ("closed-form, dlg: records are tokens; take others", "records are tokens"),
        ("no layer fits: fc1 is small (8 units)", "no layer fits"),
        ("IndexError: index 3 is out of bounds", "IndexError"),
    ],
)
def test_a_gap_gives_the_first_clause_of_its_reason(reason: str, short: str) -> None:
    assert UnmeasuredPart("attack", reason).short == short


def test_each_question_has_one_number_a_layer() -> None:
    report = make_report(
        row("leak.bits", "conv1", 3.0, details={"permuted": {"value": 0.5}}),
        row("leak.bits", "fc1", 1.5, interval=(0.5, 2.5), details={"warning": "few"}),
        row("rank.deficit", "fc1", 12),
        skipped_row("rank.deficit", "fc2", "no"),
    )
    layers = view(report).layers
    assert [(x.heading, x.metric) for x in layers.questions] == [
        (("attribute", "bits (null)"), "leak.bits"),
        (("rank", "rank.deficit"), "rank.deficit"),
    ]
    assert layers.questions[0].limits == (("high", 2.0), ("medium", 1.0))
    assert [(x.name, x.severity, [c.brief for c in x.answers]) for x in layers.lines] == [
        ("conv1", "HIGH", ["3.00 (0.50)", ""]),
        ("fc1", "OPEN", ["1.50", "12"]),
        ("fc2", "–", ["", "–"]),
    ]
    assert [line.name for line in layers.riskiest(2)] == ["conv1", "fc1"]
    assert [(x.metric, x.where, x.reason) for x in view(report).doubts] == [
        ("leak.bits", " in fc1", "few")
    ]
    doubtful = [row("leak.bits", name, 1, details={"warning": "few"}) for name in ("a", "b")]
    every = make_report(*doubtful, layers=[("a", "Linear", 1), ("b", "Linear", 1)])
    assert [x.where for x in view(every).doubts] == [""]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (Place(), "whole update"),
        (Place(("a",)), "a"),
        (Place(("2", "4")), "layer 2 and layer 4"),
        (Place(("a", "b", "c")), "a, b and c"),
        (Place(("a", "b"), whole=True), "a, b and whole update"),
        (Place(("a", "b", "c", "d")), "a, b, c and 1 more"),
        (Place(tuple("abcdefghi")), "9 layers"),
        (Place(("a", "b"), every=True, whole=True), "every layer and whole update"),
    ],
)
def test_places_in_words(place: Place, words: str) -> None:
    assert str(place) == words
    assert abridged(()) == ""


NO_LIMIT = make_report(row("rank.deficit", "fc1", 1.0), row("rank.deficit", None, 2.0))
INTERRUPTED = NO_LIMIT.model_copy(update={"provenance": {"plan": {"interrupted": True}}})
FAULTY = make_report(failed_row("rank.deficit", "fc1", "NaN"))


@pytest.mark.parametrize(
    ("report", "policy", "outcome", "begins"),
    [
        (NO_LIMIT, None, "measured", "MEASURED: 2 numbers of 1 layer and the whole"),
        (gate(NO_LIMIT), None, "undecided", "UNDECIDED by the default policy: The"),
        (NO_LIMIT, {"metric": "leak.*", "max": 1}, "undecided", "UNDECIDED by its policy"),
        (INTERRUPTED, None, "undecided", "UNDECIDED by the default policy"),
        (FAULTY, None, "undecided", "UNDECIDED by the default policy"),
    ],
    ids=["as it is", "gated", "policy named", "interrupted", "broken"],
)
def test_numbers_that_no_default_limit_is_about_are_measured_unless_somebody_judges_them(
    report: Report, policy: dict[str, Any] | None, outcome: str, begins: str
) -> None:
    shown = view(report, Policy(rules=(policy,)) if policy else None)  # type: ignore[arg-type]
    assert shown.verdict.outcome == outcome
    assert shown.verdict.sentence.startswith(begins)
    assert bool(shown.concerns) is (outcome == "undecided")


@pytest.mark.usefixtures("two_audits")
@pytest.mark.parametrize(
    ("aside", "level", "words"),
    [
        (["conv1"], "error", "but 1 of 4 shared layers are left aside (--layer)"),
        ([], "warning", "but no rule is of level error"),
    ],
)
def test_a_pass_says_what_it_leaves_out(aside: list[str], level: str, words: str) -> None:
    report = make_report(*(row("leak.bits", name, 0.5) for name in ("conv1", "fc1", "fc2")))
    report.provenance["left_aside"] = aside
    policy = Policy.model_validate({"rules": [{"metric": "leak.bits", "max": 1, "level": level}]})
    assert view(report, policy).verdict.sentence.endswith(words)
