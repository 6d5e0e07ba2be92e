"""JUnit XML, compared whole."""

from typing import Literal
from xml.etree import ElementTree as ET

import pytest
from report_builder import failed_row, make_report, row, skipped_row

from gradaudit.formats.junit import Junit
from gradaudit.judging import Policy, Rule, gate

pytestmark = pytest.mark.usefixtures("two_audits")

M = "leak.bits"
POLICY = Policy.model_validate(
    {
        "rules": [{"metric": M, "max": 1}, {"metric": "leak.note", "min": 5, "level": "warning"}],
        "ignore": [{"metric": M, "layers": "fc2", "reason": "accepted"}],
    }
)

WHOLE = """\
<?xml version='1.0' encoding='utf-8'?>
<testsuite name="gradaudit" time="6.000" tests="6" errors="0" skipped="2" failures="2">
  <properties>
    <property name="verdict" value="failed" />
    <property name="policy" value="its policy" />
    <property name="summary" value="{worst}" />
    <property name="model" value="zoo:lenet" />
    <property name="checkpoints" value="{sha256}" />
  </properties>
  <testcase name="conv1 max error" classname="leak.bits" time="1.000">
    <failure message="3 [2, 4] exceeds the max of 1" type="failed">3 [2, 4] exceeds the max of 1
an attacker learns the attribute from this layer's gradient</failure>
  </testcase>
  <testcase name="fc1 max error" classname="leak.bits" time="1.000" />
  <testcase name="fc2 max error" classname="leak.bits" time="1.000">
    <skipped message="3 exceeds the max of 1; ignored: accepted" />
  </testcase>
  <testcase name="whole model max error" classname="leak.bits" time="1.000">
    <failure message="could not be measured: NaN" type="unmeasured">could not be measured: NaN
an attacker learns the attribute from this layer's gradient</failure>
  </testcase>
  <testcase name="conv1 min warning" classname="leak.note" time="1.000">
    <system-out>warning: 4 is below the min of 5</system-out>
  </testcase>
  <testcase name="fc1 min warning" classname="leak.note" time="1.000">
    <skipped message="not applicable: no" />
  </testcase>
</testsuite>
"""


def test_the_whole_document() -> None:
    report = make_report(
        row(M, "conv1", 3, interval=(2, 4)),
        row(M, "fc1", 0.5),
        row(M, "fc2", 3),
        failed_row(M, None, "NaN"),
        row("leak.note", "conv1", 4),
        skipped_row("leak.note", "fc1", "no"),
    )
    took = {"seconds": {"leak one": 4, "leak two": 2.0, "rank": 9.0}}
    report = report.model_copy(update={"provenance": {**report.provenance, **took}})
    worst = (
        "FAILED by its policy: The private attribute of a batch is inferred (conv1); "
        "and 1 more finding"
    )
    whole = WHOLE.replace("{sha256}", "ab" * 32).replace("{worst}", worst)
    assert Junit().render(gate(report, POLICY)) == whole
    assert Junit().render(report, POLICY) == whole


@pytest.mark.parametrize(
    ("unclear", "child", "counts"),
    [
        ("pass", "system-out", {"failures": "0", "skipped": "0"}),
        ("warn", "skipped", {"failures": "0", "skipped": "1"}),
        ("fail", "failure", {"failures": "1", "skipped": "0"}),
    ],
)
def test_what_is_unclear_neither_fails_nor_passes_unless_the_policy_says_so(
    unclear: str, child: str, counts: dict[str, str]
) -> None:
    policy = Policy.model_validate({"rules": [{"metric": M, "max": 1}], "unclear": unclear})
    report = make_report(row(M, "fc1", 0.5, interval=(0, 2)))
    root = ET.fromstring(Junit().render(report, policy))
    (case,) = root.iter("testcase")
    assert [each.tag for each in case] == [child]
    assert {key: root.attrib[key] for key in counts} == counts


@pytest.mark.parametrize(("fail_on", "child"), [("error", "system-out"), ("warning", "failure")])
def test_a_warning_is_a_failure_where_it_fails_the_report(
    fail_on: Literal["error", "warning"], child: str
) -> None:
    policy = {"rules": [{"metric": "leak.note", "min": 5, "level": "warning"}]}
    report = make_report(row("leak.note", "conv1", 4))
    judged = gate(report, Policy.model_validate(policy), fail_on=fail_on)
    root = ET.fromstring(Junit().render(judged))
    (case,) = root.iter("testcase")
    assert [each.tag for each in case] == [child]
    assert root.attrib["failures"] == str(int(fail_on == "warning"))


def test_a_variant_is_part_of_the_name() -> None:
    policy = {"rules": [{"metric": M, "max": 1, "variant": {"round": "*"}}]}
    report = make_report(row(M, "fc1", 3, variant={"round": 2}))
    text = Junit().render(report, Policy.model_validate(policy))
    assert 'name="fc1 (round=2) max error"' in text


def test_names_stay_when_limits_change_and_no_two_are_alike() -> None:
    def names(*limits: float) -> list[str]:
        policy = Policy.model_validate({"rules": [{"metric": M, "max": x} for x in limits]})
        root = ET.fromstring(Junit().render(make_report(row(M, "fc1", 3)), policy))
        return [case.attrib["name"] for case in root.iter("testcase")]

    assert names(1, 2) == names(5, 4) == ["fc1 max error", "fc1 max error 2"]


SUREFIRE = {
    "testsuite": {"name", "time", "tests", "errors", "skipped", "failures"},
    "properties": set[str](),
    "property": {"name", "value"},
    "testcase": {"name", "classname", "time"},
    "failure": {"message", "type"},
    "skipped": {"message"},
    "system-out": set[str](),
}
"""The elements and attributes of surefire-test-report.xsd 3.0 that a report may have of ours."""
HOLDS = {
    "testsuite": ["properties", "testcase"],
    "properties": ["property"],
    "testcase": ["failure", "skipped", "system-out"],
}


def test_every_element_is_one_of_surefires() -> None:
    report = make_report(row(M, "conv1", 3), row(M, "fc1", 1.5), skipped_row(M, "fc2", "no"))
    for element in ET.fromstring(Junit().render(report)).iter():
        assert set(element.attrib) == SUREFIRE[element.tag]
        inside = [child.tag for child in element]
        assert inside == sorted(inside, key=HOLDS.get(element.tag, []).index)
        for number in {"tests", "errors", "skipped", "failures"} & set(element.attrib):
            assert int(element.attrib[number]) >= 0
        assert float(element.attrib.get("time", 0)) >= 0


def test_a_report_without_a_measurement_fails() -> None:
    root = ET.fromstring(Junit().render(make_report()))
    assert root.attrib["failures"] == "1"
    assert [case.attrib["name"] for case in root.iter("testcase")] == ["whole model error"]


def test_hostile_names_stay_text() -> None:
    name = '<x a="1">&amp;]]>\x00\x1b\ufffe\ud800'
    report = make_report(row(M, name, 3), layers=[(name, "Linear", 1)])
    root = ET.fromstring(Junit().render(report).encode())
    assert {child.tag for child in root.iter()} == {
        "testsuite",
        "properties",
        "property",
        "testcase",
        "failure",
        "system-out",
    }
    cases = [case.attrib["name"] for case in root.iter("testcase")]
    assert cases[0] == '<x a="1">&amp;]]>\ufffd\ufffd\ufffd\ufffd max error'


@pytest.mark.usefixtures("two_audits")
def test_rows_that_do_not_apply_have_a_case_where_a_rule_of_the_user_asks_for_them() -> None:
    report = make_report(
        row("leak.bits", "conv1", 0.5), skipped_row("leak.bits", "fc1", "no layer")
    )
    own = Policy(rules=(Rule(metric="leak.bits", max=2),))
    for policy, names in ((None, ["conv1"]), (own, ["conv1", "fc1"])):
        suite = ET.fromstring(Junit().render(report, policy))
        assert sorted({case.get("name", "").split()[0] for case in suite.iter("testcase")}) == names
        assert suite.get("tests") == str(len(list(suite.iter("testcase"))))
