"""The contract of parts: all of ours keep it, and every broken one is named with file and line."""

import doctest
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

from gradaudit import Target, audit, testing
from gradaudit.attacks.reconstruction import base as attacks
from gradaudit.attacks.reconstruction import reconstructions
from gradaudit.audits import audits
from gradaudit.audits.dp_audit.mechanisms import mechanisms
from gradaudit.core.user_code import load_callable
from gradaudit.data import adapters
from gradaudit.defenses import defenses
from gradaudit.errors import AuditError, UsageError
from gradaudit.families import families
from gradaudit.federation.algorithms import algorithms
from gradaudit.formats import formats
from gradaudit.testing import check_part
from gradaudit.view import view

OURS: Mapping[str, Mapping[str, Any]] = {
    "defenses.dp": {"clip": 1.0, "sigma": 0.1},
    "defenses.dropout": {"p": 0.5},
    "defenses.prune": {"share": 0.5},
    "defenses.selective": {"share": 0.1},
    "defenses.sign": {},
    "defenses.spn": {},
    "defenses.vib": {},
    "mechanisms.dp": {"clip": 1.0, "sigma": 0.5},
    "reconstructions.closed-form": {},
    "reconstructions.copa": {},
    "reconstructions.idlg": {"iterations": 3},
    "reconstructions.inverting-gradients": {"iterations": 3},
    "reconstructions.r-gap": {},
    "audits.forward": {},
    "audits.subspace": {"permutations": 19},
    "audits.attack labels": {"batches": 1},
    "data.diabetes": {},
    **{f"families.{name}": {} for name in families()},
    **{f"algorithms.{name}": {} for name in algorithms()},
    **{f"formats.{name}": {} for name in formats()},
}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "defenses": defenses(),
    "mechanisms": mechanisms(),
    "reconstructions": reconstructions(),
    "audits": audits(),
    "data": adapters(),
    "families": families(),
    "algorithms": algorithms(),
    "formats": formats(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_our_parts_keep_the_contract(name: str) -> None:
    kind, _, part = name.partition(".")
    check_part(KINDS[kind][part], **OURS[name])


DEFENSE = '''
    import torch
    from gradaudit.defenses.base import Defense

    class Mine(Defense):
        """Share half of it."""
        name = "mine"
        summary = "Share half."
        example = "mine"

        def apply(self, gradients, *, records, generator):
            {}
'''
MECHANISM = """
    import torch

    def mine(gradients, generator):
        {}
"""
FAMILY = '''
    import numpy as np
    from gradaudit.families.base import Family, FittedPrior

    class Mine(Family):
        """Predictors that look at nothing."""
        name = "mine"
        summary = "Look at nothing."

        def train(self, training, generator):
            {}
'''
FORMAT = '''
    import itertools
    from gradaudit.formats import Format
    count = itertools.count()

    class Mine(Format):
        """The report in a word."""
        name = "mine"
        suffix = ".mine"
        summary = "A word."

        def render(self, report, policy=None):
            {}
'''
AUDIT = '''
    from gradaudit.audits import Audit, Metric
    from gradaudit.report import Measurement

    class Mine(Audit):
        """Count."""
        name = "mine"
        summary = "Count."
        metrics = (Metric(id="count", title="Count"),)
        headline = ("count",)
        applies_defenses = {}

        def run(self, subject, progress):
            for layer in subject.layers:
                yield Measurement(audit="mine", metric="count", layer=layer.name, value={})
'''
ENDLESS = '''
    import numpy as np
    from gradaudit.families.base import Family, Fitted

    class Member(Fitted):
        def log_probabilities(self, features):
            with np.errstate(divide="ignore"):
                return {}

    class Mine(Family):
        """One class."""
        name = "mine"
        summary = "One class."

        def train(self, training, generator):
            return Member()
'''
ATTACK = '''
    import torch
    from gradaudit.attacks.reconstruction.base import Candidates, Reconstruction

    class Mine(Reconstruction):
        """Records of zeros."""
        name = "mine"
        summary = "Hand in zeros."

        def run(self, view, execution):
            zeros, scores = torch.zeros(2, view.batch, *view.shape), torch.ones(2)
            diverged = torch.zeros(2, dtype=torch.bool)
            {}
'''
BATCHED = (
    MECHANISM
    + """
    def many(gradients, count, generator):
        noise = torch.randn(count, 10, generator=generator, dtype=torch.float64)
        return gradients.mean(dim=0) + {} * noise

    mine.releases = many
"""
)
NOISE = "return gradients.mean(dim=0) + torch.randn(10, generator=generator, dtype=torch.float64)"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (DEFENSE, "return gradients / 2"),
        (MECHANISM, NOISE),
        (FAMILY, "return FittedPrior(training.prior)"),
        (FORMAT, 'return "word\\n"'),
        (ATTACK, "return Candidates(zeros, None, scores, diverged)"),
    ],
    ids=["defense", "mechanism", "family", "format", "attack"],
)
def test_a_small_part_keeps_the_contract(tmp_path: Path, source: str, line: str) -> None:
    check_part(part_of(tmp_path, source.format(line)))


@pytest.mark.parametrize(
    ("source", "line", "place", "fault"),
    [
        (DEFENSE, "return gradients.mul_(0.5)", 11, "apply changes its input"),
        (DEFENSE, "return gradients[:, :3]", 11, "returns (3, 3), not a tensor of (3, 40)"),
        (DEFENSE, "return gradients / 0", 11, "returns numbers that are not finite"),
        (DEFENSE, "return None", 11, "returns NoneType, not a tensor of (3, 40)"),
        (DEFENSE, "return gradients - gradients.mean(dim=0)", 11, "apply mixes updates"),
        (DEFENSE, "return torch.rand_like(gradients)", 11, "numbers with the same generator"),
        (DEFENSE, "return gradients / records.sigma", 5, "raises AttributeError: "),
        (MECHANISM, "return gradients", 4, "returned (4, 10); a released gradient of shape (10,)"),
        (MECHANISM, "return gradients.mean(dim=0) + torch.randn(10)", 4, "draw from it alone"),
        (MECHANISM, "return gradients.mean(dim=0).fill_(1) / 0", 4, "gradient that is not finite"),
        (FAMILY, "return None", 5, "has no attribute 'log_probabilities'"),
        (FAMILY, "return FittedPrior(training.prior / 2)", 10, "do not sum to 1"),
        (
            FAMILY,
            "return FittedPrior(np.random.dirichlet(np.ones(3)))",
            10,
            "the same seed fits another member",
        ),
        (FORMAT, "return 3", 12, "render returns no text that ends with a newline"),
        (FORMAT, 'return f"{next(count)}\\n"', 12, "another text for the same report"),
        (ATTACK, "return zeros", 5, "run returns Tensor, not Candidates"),
        (ATTACK, "return Candidates(zeros[0], None, scores, diverged)", 5, "(mine.py, line 10)"),
        (ATTACK, "return Candidates(zeros, None, scores[:1], diverged)", 10, "scores are (1,)"),
        (
            ATTACK,
            "return Candidates(torch.rand_like(zeros), None, scores, diverged)",
            10,
            "other records with the same seed",
        ),
        (
            ATTACK,
            "view.update['0.bias'].zero_(); return Candidates(zeros, None, scores, diverged)",
            10,
            "run changes the update",
        ),
    ],
)
def test_a_broken_part_is_named_with_its_file_and_line(
    tmp_path: Path, source: str, line: str, place: int, fault: str
) -> None:
    text = source.replace("{}", line)
    with pytest.raises(AssertionError) as caught:
        check_part(part_of(tmp_path, text))
    name = "mine" if "def mine" in text else "Mine"
    said = [one for one in str(caught.value).splitlines() if fault in one]
    assert said, str(caught.value)
    assert said[0].startswith(f"{name} (mine.py, line {place}): ")


@pytest.mark.parametrize(("spread", "keeps"), [(1, True), (2, False)])
def test_the_batched_form_of_a_mechanism_has_the_law_of_the_single_one(
    tmp_path: Path, spread: int, *, keeps: bool
) -> None:
    mechanism = part_of(tmp_path, BATCHED.format(NOISE, spread))
    if keeps:
        check_part(mechanism)
        return
    with pytest.raises(AssertionError, match="another mean or spread than single ones"):
        check_part(mechanism)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('name = "mine"', 'name = "My Part"', "name is 'My Part'; lower-case words are needed"),
        ('summary = "Share half."', 'summary = ""', "summary is ''; one line is needed"),
        ('"""Share half of it."""', "", "has no docstring that begins with a sentence"),
        ('example = "mine"', 'example = "other:1"', "a spec begins with the name 'mine'"),
        (
            'example = "mine"',
            'example = "mine:a=1"',
            "not understood: mine:a=1: unknown option 'a'",
        ),
        ("def apply", "def aply", "defines none of apply, record_factors"),
    ],
)
def test_what_a_part_fails_to_declare_is_named(
    tmp_path: Path, old: str, new: str, fault: str
) -> None:
    with pytest.raises(AssertionError, match=r"Mine \(mine\.py, line 5\): ") as caught:
        check_part(part_of(tmp_path, DEFENSE.format("return gradients / 2").replace(old, new)))
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("example", "fault"),
    [
        ("csv:FILE?label=COL", "a spec begins with the name 'mine'"),
        ("mine?label=COL", "not understood: mine?label=COL: is not understood; write"),
        ("mine:FILE?lable=COL", "not understood: mine:FILE?lable=COL: unknown option 'lable'"),
    ],
)
def test_the_example_of_an_adapter_is_parsed(example: str, fault: str) -> None:
    body = {"__doc__": "A table.", "name": "mine", "summary": "A table.", "example": example}
    with pytest.raises(AssertionError) as caught:
        check_part(type("Mine", (adapters()["csv"],), body), source="FILE.csv")
    assert fault in str(caught.value)


def test_the_example_of_a_mechanism_is_parsed() -> None:
    class Scaled(mechanisms()["dp"]):
        """Noise of a scale."""

        name = "scaled"
        summary = "Noise of a scale."
        example = "scaled:clip=1,sigma=2"

        def __init__(self, clip: float, scale: float) -> None:
            super().__init__(clip=clip, sigma=scale)

    with pytest.raises(AssertionError, match=r"example is not understood: .*: no scale; write"):
        check_part(Scaled, clip=1.0, scale=1.0)


@pytest.mark.parametrize(
    ("applied", "value", "fault"),
    [
        (False, "1", None),
        (True, "len(subject.defenses)", None),
        (True, "1", "applies_defenses is True, and rows are the same behind each --defense of dp:"),
        (True, "float(any(d.name == 'prune' for d in subject.defenses))", None),
        (False, "len(subject.defenses)", "declare applies_defenses = True"),
    ],
)
def test_an_audit_declares_whether_it_applies_defenses(
    tmp_path: Path, applied: bool, value: str, fault: str | None
) -> None:
    part = part_of(tmp_path, AUDIT.format(applied, value))
    if fault is None:
        check_part(part)
    else:
        with pytest.raises(AssertionError, match=fault) as caught:
            check_part(part)
        assert str(caught.value).startswith("Mine (mine.py, line 13): ")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("subject.layers", "subject.layers[:1]", "line 13): no row of count for 2"),
        ('metric="count"', 'metric="other"', "line 13): the metric 'other' is not declared"),
        ("def run", "def rum", "line 5): Mine (mine.py, line 5) does not define run"),
        ("value=1", "value=1 / 0", "line 5): raises ZeroDivisionError"),
    ],
)
def test_a_broken_audit_is_named_in_one_line(
    tmp_path: Path, old: str, new: str, fault: str
) -> None:
    text = AUDIT.format(False, 1).replace(old, new)
    with pytest.raises(AssertionError) as caught:
        check_part(part_of(tmp_path, text))
    (line,) = str(caught.value).splitlines()
    assert fault in line


@pytest.mark.parametrize(
    ("question", "fault"),
    [
        ("question='identity'", "the question 'identity', not one of records, attribute, labels"),
        ("warning=1", "a default limit and no riskier, why, question, helps, finding, asks, noun"),
    ],
)
def test_a_metric_names_its_question(tmp_path: Path, question: str, fault: str) -> None:
    text = AUDIT.format(False, 1).replace('title="Count"', f'title="Count", {question}')
    with pytest.raises(AssertionError, match=fault):
        check_part(part_of(tmp_path, text))


def test_a_report_says_which_audit_measures_without_the_defense(tmp_path: Path) -> None:
    target = Target("zoo:mlp?inputs=10&classes=2", "diabetes", defenses=["sign"])
    for applied in (True, False):
        mine = part_of(tmp_path, AUDIT.format(applied, 1))
        report = audit(target, [mine()])
        notes = {"defenses": "measured without the defenses of updates"}
        assert all(row.details == ({} if applied else notes) for row in report.measurements)
        assert ("(not applied by: mine)" in view(report).scope.shared) is not applied


def test_a_function_is_tried_as_a_mechanism(tmp_path: Path) -> None:
    factory = part_of(tmp_path, MECHANISM.replace("(gradients, generator)", "()").format("pass"))
    with pytest.raises(AssertionError, match=r"^mine .*: tried as a mechanism\(per_sample_gradi"):
        check_part(factory)


def test_an_error_in_a_part_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"AttributeError: .* \(mine\.py, line 12\)"):
        check_part(part_of(tmp_path, DEFENSE.format("return gradients / records.sigma")))


def test_a_defense_of_another_shape_is_named_when_it_is_used(tmp_path: Path) -> None:
    mine = part_of(tmp_path, DEFENSE.format("return gradients[:, :2]"))
    model, inputs = torch.nn.Linear(4, 3), torch.eye(4)
    target = Target(model, (inputs, torch.arange(4) % 3), defenses=[mine()])
    with pytest.raises(AuditError) as caught:
        target.update(inputs[:1], torch.tensor([0]))
    shapes = "apply returns (1, 2) for updates of shape (1, 12)"
    assert str(caught.value) == f"--defense mine: {shapes} (mine.py, line 11)"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("return zeros", "run returns Tensor, not Candidates"),
        ("return Candidates(zeros[0], None, scores, diverged)", "inputs of shape (1, 4), not"),
    ],
)
def test_an_attack_that_returns_something_else_is_named_when_it_is_used(
    tmp_path: Path, line: str, fault: str
) -> None:
    mine = part_of(tmp_path, ATTACK.replace("{}", line))
    inputs, labels = torch.eye(4), torch.arange(4) % 3
    target = Target(torch.nn.Linear(4, 3), (inputs, labels))
    with pytest.raises(AuditError) as caught:
        mine()(target, target.update(inputs[:1], labels[:1]))
    assert fault in str(caught.value)
    assert str(caught.value).startswith("mine: ")
    assert str(caught.value).endswith("inputs (restarts, 1, 4) (mine.py, line 10)")


@pytest.mark.parametrize("part", [3, int, Path])
def test_what_is_no_part_is_refused(part: Any) -> None:
    with pytest.raises(UsageError, match="is no part: give a class that extends one of Audit"):
        check_part(part)


@pytest.mark.parametrize("module", [testing, attacks])
def test_examples_in_docstrings(module: Any) -> None:
    results = doctest.testmod(module)
    assert results.attempted
    assert not results.failed


def part_of(folder: Path, source: str) -> Any:
    (folder / "mine.py").write_text(dedent(source))
    name = "mine" if "def mine" in source else "Mine"
    return load_callable(f"{folder}/mine.py:{name}", "part")


def test_an_interval_that_excludes_its_value_is_a_breach(tmp_path: Path) -> None:
    given = AUDIT.format(False, "0.5, interval=(0.6, 0.9), confidence=0.95")
    with pytest.raises(AssertionError, match=r"the interval of count .* excludes its value 0\.5"):
        check_part(part_of(tmp_path, given))


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        ("np.full((len(features), 2), -1.0)", r"log-probabilities are \(7, 2\), not \(rows"),
        ("np.log(np.eye(3)[np.zeros(len(features), int)])", "infinite or NaN; give no class"),
    ],
)
def test_a_family_is_told_its_shape_and_its_infinities_apart(
    tmp_path: Path, result: str, fault: str
) -> None:
    member = part_of(tmp_path, ENDLESS.format(result))
    with pytest.raises(AssertionError, match=fault):
        check_part(member)
