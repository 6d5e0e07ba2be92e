"""Several audits in one report: unique keys, and which number is the headline."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pytest
from command_line import invoke
from report_builder import make_report, skipped

from gradaudit.audits import Audit, AuditOptions, Metric
from gradaudit.audits.gathering import AuditRows, gather, member_of, members, merge
from gradaudit.cli import build
from gradaudit.cli.commands.scan import choose_audits
from gradaudit.config import ScanSettings, file_model, section
from gradaudit.errors import UsageError
from gradaudit.report import Measurement


class Attack(Audit[AuditOptions]):
    """Base of the attacks of these tests; they are never run."""

    summary: ClassVar[str] = "A pretended attack."
    metrics = (
        Metric(id="success", title="Success", riskier="higher"),
        Metric(id="error", title="Error", riskier="lower"),
    )
    headline = ("success",)

    def run(self, subject: object, progress: object) -> Iterator[Measurement]:
        raise NotImplementedError


class Theft(Attack):
    name = "attack theft"


class Fraud(Attack):
    name = "attack fraud"


class Count(Attack):
    name = "count"


def row(audit: Audit[AuditOptions], metric: str, value: float, **variant: str) -> Measurement:
    return Measurement(
        audit=audit.reports_as(), metric=metric, layer="fc", value=value, variant=dict(variant)
    )


@pytest.fixture
def attacks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    found = {audit.name: audit for audit in (Theft, Fraud, Count)}
    monkeypatch.setattr("gradaudit.audits.discover", lambda *_: found)
    for cached in (file_model, build):
        cached.cache_clear()
    yield
    for cached in (file_model, build):
        cached.cache_clear()


theft, fraud, count = (audit(AuditOptions()) for audit in (Theft, Fraud, Count))


def test_an_audit_alone_under_its_name_keeps_its_rows() -> None:
    own, other = [row(theft, "success", 0.5)], [row(count, "success", 1.0)]
    assert gather([AuditRows.of(theft, own), AuditRows.of(count, other)]) == own + other


def test_the_headline_of_several_games_is_the_first_in_the_order_of_a_scan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Theft, "priority", 60)
    monkeypatch.setattr(Fraud, "priority", 50)
    for values in ((0.5, 0.7), (0.7, 0.5)):
        parts = [
            AuditRows.of(audit, [row(audit, "success", value)])
            for audit, value in zip((theft, fraud), values, strict=True)
        ]
        (headline,) = (r for r in gather(parts) if not r.variant)
        assert (headline.value, headline.details["attack"]) == (values[1], "fraud")


def test_the_headline_of_one_audit_in_several_settings_is_the_riskiest() -> None:
    parts = [
        AuditRows(theft, [row(theft, "success", x), row(theft, "error", x)], {"size": x})
        for x in (0.5, 0.7)
    ]
    headline = {r.metric: (r.value, r.details["size"]) for r in merge(parts) if not r.variant}
    assert headline == {"success": (0.7, 0.7), "error": (0.5, 0.5)}


def test_the_headline_of_two_games_without_leakage_is_unbiased() -> None:
    """The larger of two standard normal numbers is 1/√π = .564 in the mean."""
    numbers = np.random.default_rng(0).standard_normal((4000, 2))
    values = []
    for pair in numbers:
        parts = [
            AuditRows.of(audit, [row(audit, "success", float(x))])
            for audit, x in zip((theft, fraud), pair, strict=True)
        ]
        values += [r.value for r in gather(parts) if not r.variant]
    assert abs(np.mean(values)) < 5 / np.sqrt(len(values))
    assert abs(np.mean(numbers.max(axis=1)) - 1 / np.sqrt(np.pi)) < 5 / np.sqrt(len(values))


def test_every_row_tells_where_it_comes_from() -> None:
    rows = gather(
        [
            AuditRows.of(
                theft, [row(theft, "success", 0.5), row(theft, "success", 0.4, round="1")]
            ),
            AuditRows.of(fraud, [row(fraud, "success", 0.7)]),
        ]
    )
    assert len({r.key for r in rows}) == len(rows) == 4
    assert {member_of(r) for r in rows} == {"attack theft", "attack fraud"}
    (first,) = [r for r in rows if r.variant == {"attack": "theft", "round": "1"}]
    assert first.value == 0.4


def test_what_was_measured_hides_what_does_not_apply() -> None:
    away = skipped("attack", ["success"], ["fc"], "there are no users")
    rows = gather([AuditRows.of(theft, away), AuditRows.of(fraud, [row(fraud, "success", 0.1)])])
    assert [r.status for r in rows if not r.variant] == ["measured"]
    rows = gather([AuditRows.of(theft, away), AuditRows.of(fraud, away)])
    assert [r.status for r in rows if not r.variant] == ["skipped"]


def test_a_precise_row_is_the_headline_before_an_imprecise_one() -> None:
    vague = row(theft, "success", 0.9).model_copy(update={"details": {"imprecise": True}})
    rows = gather([AuditRows.of(theft, [vague]), AuditRows.of(fraud, [row(fraud, "success", 0.2)])])
    assert [r.value for r in rows if not r.variant] == [0.2]
    rows = gather([AuditRows.of(theft, [vague])] * 2)
    assert next(r.value for r in rows if not r.variant) == 0.9


def test_a_headline_knows_what_it_stands_for() -> None:
    away = skipped("attack", ["error"], ["fc"], "there are no users")
    rows = gather(
        [
            AuditRows.of(
                theft, [row(theft, "success", 0.5), row(theft, "success", 0.9, round="1")]
            ),
            AuditRows.of(fraud, [row(fraud, "success", 0.7), *away]),
        ]
    )
    report = make_report(*rows)
    headline, other = (r for r in rows if not r.variant)
    assert [r.value for r in members(headline, report)] == [0.5, 0.7]
    assert members(other, report) == [other]


def test_a_failure_is_not_hidden_by_what_does_not_apply() -> None:
    away = skipped("attack", ["success"], ["fc"], "there are no users")
    broken = [r.model_copy(update={"status": "failed"}) for r in away]
    rows = gather([AuditRows.of(theft, away), AuditRows.of(fraud, broken)])
    assert [r.status for r in rows if not r.variant] == ["failed"]


@pytest.mark.usefixtures("attacks")
@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("attack", {"attack theft", "attack fraud"}),
        ("attack-theft", {"attack theft"}),
        ("attack fraud", {"attack fraud"}),
        ("count", {"count"}),
    ],
)
def test_scan_chooses_by_name_or_group(asked: str, names: set[str]) -> None:
    chosen = choose_audits(ScanSettings(audits=(asked,)), {})
    assert {sizes[0].audit.name for sizes in chosen} == names


@pytest.mark.usefixtures("attacks")
def test_scan_refuses_an_unknown_audit() -> None:
    with pytest.raises(UsageError, match=r"no such audit.*attack theft"):
        choose_audits(ScanSettings(audits=("attack-thef",)), {})


@pytest.mark.usefixtures("attacks")
def test_a_config_file_has_a_section_for_an_audit_of_two_words() -> None:
    config = file_model().model_validate({"attack-theft": {}})
    assert section(config.model_dump(exclude_unset=True), "attack theft") == {}
    assert "attack_theft" in file_model().model_fields


@pytest.mark.usefixtures("attacks")
def test_audits_of_one_group_are_commands_of_a_command() -> None:
    shown = invoke(build(), "attack", "--help").out
    assert "theft" in shown
    assert "fraud" in shown
    alone = invoke(build(), "attack", "fraud", "--help")
    assert alone.status == 0
    assert "--model" in alone.out
