"""JUnit XML, compared whole."""

from xml.etree import ElementTree as ET

import pytest
from report_builder import failed_row, make_report, row, skipped_row

from gradaudit.formats.junit import Junit
from gradaudit.judging import Policy, gate

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
<testsuites name="gradaudit" tests="6" failures="2" errors="0" skipped="2">
  <testsuite name="leak.bits" tests="4" failures="2" errors="0" skipped="1">
    <testcase classname="leak.bits" name="conv1 max 1 [rule 1]">
      <failure message="3 [2, 4] exceeds the max of 1" type="failed">3 [2, 4] exceeds the max of 1
an attacker learns the attribute from this layer's gradient</failure>
    </testcase>
    <testcase classname="leak.bits" name="fc1 max 1 [rule 1]" />
    <testcase classname="leak.bits" name="fc2 max 1 [rule 1]">
      <skipped message="3 exceeds the max of 1; ignored: accepted" />
    </testcase>
    <testcase classname="leak.bits" name="whole model max 1 [rule 1]">
      <failure message="could not be measured: NaN" type="unmeasured">could not be measured: NaN
an attacker learns the attribute from this layer's gradient</failure>
    </testcase>
  </testsuite>
  <testsuite name="leak.note" tests="2" failures="0" errors="0" skipped="1">
    <testcase classname="leak.note" name="conv1 min 5 [rule 2]">
      <system-out>warning: 4 is below the min of 5</system-out>
    </testcase>
    <testcase classname="leak.note" name="fc1 min 5 [rule 2]">
      <skipped message="not applicable: no" />
    </testcase>
  </testsuite>
</testsuites>
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
    assert Junit().render(gate(report, POLICY)) == WHOLE
    assert Junit().render(report, POLICY) == WHOLE


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


def test_a_variant_is_part_of_the_name() -> None:
    policy = {"rules": [{"metric": M, "max": 1, "variant": {"round": "*"}}]}
    report = make_report(row(M, "fc1", 3, variant={"round": 2}))
    text = Junit().render(report, Policy.model_validate(policy))
    assert 'name="fc1 (round=2) max 1 [rule 1]"' in text


def test_a_report_without_a_measurement_fails() -> None:
    root = ET.fromstring(Junit().render(make_report()))
    assert root.attrib["failures"] == "1"
    assert [case.attrib["name"] for case in root.iter("testcase")] == ["whole model [rule 0]"]


def test_hostile_names_stay_text() -> None:
    name = '<x a="1">&amp;]]>\x00\x1b\ufffe\ud800'
    report = make_report(row(M, name, 3), layers=[(name, "Linear", 1)])
    root = ET.fromstring(Junit().render(report).encode())
    assert {child.tag for child in root.iter()} == {
        "testsuites",
        "testsuite",
        "testcase",
        "failure",
        "system-out",
    }
    cases = [case.attrib["name"] for case in root.iter("testcase")]
    assert cases[0] == '<x a="1">&amp;]]>\ufffd\ufffd\ufffd\ufffd max 2 [rule 1]'
