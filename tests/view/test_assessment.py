"""Harms with likelihood and severity: what the numbers show, and what they leave open."""

import pytest
from report_builder import fc1, make_report, row, skipped_row

from gradaudit.judging import Policy
from gradaudit.report import Measurement
from gradaudit.view import view
from gradaudit.view.assessment import (
    CERTAIN,
    HARMS,
    INDICATED,
    LEFT_OPEN,
    LIKELY,
    POSSIBLE,
    UNKNOWN,
    UNLIKELY,
    WARNED,
    AssessedRisk,
    assessed,
)

AUROC = Policy.model_validate({"rules": [{"metric": "vinfo.auroc", "max": 0.6}]})


def risks(*rows: Measurement, policy: Policy | None = None) -> tuple[AssessedRisk, ...]:
    shown = view(make_report(*rows), policy)
    return assessed(shown.concerns, shown.heat_map)


@pytest.mark.usefixtures("two_audits")
@pytest.mark.parametrize(
    ("bits", "likelihood", "rows"),
    [
        (fc1(3, 2.5, 3.5), LIKELY, "leak.bits 3 [2.50, 3.50], lower end above limit 2"),
        (fc1(1.5, 1.2, 1.8), WARNED, "leak.bits 1.50 [1.20, 1.80], lower end above limit 1"),
        (
            fc1(0.9, 0.5, 2.5),
            LEFT_OPEN,
            "leak.bits 0.900 [0.500, 2.50], limit 2 inside the interval",
        ),
        (fc1(0.5, 0.1, 0.9), UNLIKELY, "leak.bits 0.500 [0.100, 0.900]"),
        (skipped_row("leak.bits", "conv1", "no"), UNKNOWN, "none"),
    ],
)
def test_the_likelihood_is_what_the_numbers_show(
    bits: Measurement, likelihood: str, rows: str
) -> None:
    found = risks(bits)
    assert [each.harm for each in found] == list(HARMS)
    attribute = found[1]
    assert (attribute.likelihood, attribute.rows) == (likelihood, rows)
    assert {each.likelihood for each in (found[0], found[2])} == {UNKNOWN}


@pytest.mark.usefixtures("two_audits")
def test_an_indicator_alone_makes_nothing_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("concerns", "charts.heat_map"):
        monkeypatch.setattr(f"gradaudit.view.{module}.proxies", lambda: {"leak.bits"})
    assert risks(row("leak.bits", "conv1", 3.0))[1].likelihood == INDICATED
    assert risks(row("leak.bits", "conv1", 0.5))[1].likelihood == UNKNOWN


@pytest.mark.usefixtures("two_audits")
def test_an_accepted_risk_is_as_likely_and_called_accepted() -> None:
    rule = {"metric": "leak.bits", "max": 2}
    ignored = {"metric": "leak.bits", "layers": "*", "reason": "known"}
    policy = Policy.model_validate({"rules": [rule], "ignore": [ignored]})
    found = risks(row("leak.bits", "conv1", 3.0), policy=policy)
    assert found[1].likelihood == f"{LIKELY} (accepted by the policy)"


@pytest.mark.usefixtures("two_audits")
def test_what_is_rebuilt_and_what_is_solved_for_are_one_harm() -> None:
    assert {question for harm in HARMS for question in harm.questions} == {
        "records",
        "attribute",
        "labels",
        "freedom",
    }
    assert risks(row("leak.total", None, 1.0))[0].likelihood == LIKELY


@pytest.mark.parametrize(
    ("auroc", "word"),
    [(0.96, CERTAIN), (0.951, CERTAIN), (0.949, LIKELY), (0.76, LIKELY), (0.7, POSSIBLE)],
)
def test_what_an_attack_does_of_what_guessing_fails_at_is_worded_by_its_share(
    auroc: float, word: str
) -> None:
    found = risks(row("vinfo.auroc", "fc1", auroc, details={"attribute": "sex"}), policy=AUROC)
    assert found[1].likelihood == word


def test_labels_that_are_read_exactly_are_almost_certain_to_be_read() -> None:
    rule = {"metric": "attack.membership_distance", "min": 0.1, "level": "warning"}
    policy = Policy.model_validate({"rules": [rule]})
    labels = risks(row("attack.membership_distance", None, 0.0), policy=policy)[2]
    assert labels.likelihood == CERTAIN
    assert labels.harm.severity.startswith("significant")
