"""Whatever a spec, config, policy or report holds, it is understood or refused."""

import json
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report_builder import make_report, row

from gradaudit.config import read_file
from gradaudit.core.specs import parse_spec
from gradaudit.data import adapters, load_records
from gradaudit.defenses import parse_defense
from gradaudit.errors import GradauditError
from gradaudit.formats import formats
from gradaudit.judging import gate, passed, read_policy
from gradaudit.report import Measurement, Report

FUZZ = settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
NAMES = st.sampled_from([*adapters(), "digits", "csv", "file.py:f", "nothing", "", ":", "C:\\x"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=True)
    | st.text(max_size=8)
    | st.dates()
)
KEYS = st.sampled_from(
    [
        "rules",
        "metric",
        "layers",
        "max",
        "min",
        "level",
        "variant",
        "ignore",
        "reason",
        "until",
        "unclear",
        "family",
        "model",
        "data",
        "seed",
        "samples",
        "vinfo",
        "repeats",
        "defense",
    ]
)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=4), inner),
    max_leaves=12,
)
LIMITS = st.floats(-10, 10)


def given_or_refused(work: Callable[[], Any]) -> Any:
    """What ``work`` gives; None where it is refused, with words and by no other error."""
    try:
        return work()
    except GradauditError as error:
        refusal = str(error)
    assert refusal.strip()
    return None


def in_file(content: str, read: Callable[[Path], Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(content.encode("utf-8", "surrogatepass"))
        return given_or_refused(lambda: read(path))


@FUZZ
@given(st.dictionaries(st.text(min_size=1), st.text(min_size=1), max_size=4), st.booleans())
def test_a_spec_says_again_what_was_put_into_it(options: dict[str, str], path: bool) -> None:
    pairs = [f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in options.items()]
    name = "dir%20/file.py:make" if path else "csv:table.csv"
    spec = parse_spec(name + ("?" + "&".join(pairs) if pairs else ""))
    assert (spec.name, spec.options) == (name, options)


@FUZZ
@given(NAMES, st.text(max_size=20))
def test_any_data_is_read_or_refused(name: str, rest: str) -> None:
    given_or_refused(lambda: load_records(name + rest.replace("\0", "")))


@FUZZ
@given(st.sampled_from(["prune", "dp", "sign", "spn", "perturb", ""]), st.text(max_size=20))
def test_any_defense_is_understood_or_refused(name: str, rest: str) -> None:
    given_or_refused(lambda: parse_defense(name + rest))


@pytest.mark.slow
@FUZZ
@given(DOCUMENTS)
def test_any_config_is_read_or_refused(document: Any) -> None:
    in_file(yaml.safe_dump(document, allow_unicode=True), read_file)


@FUZZ
@given(st.text(max_size=60))
def test_any_text_is_a_config_or_refused(text: str) -> None:
    in_file(text, read_file)


@pytest.mark.slow
@FUZZ
@given(DOCUMENTS | st.fixed_dictionaries({"rules": st.lists(DOCUMENTS, max_size=2)}))
def test_any_policy_is_read_or_refused_and_what_is_read_can_judge(document: Any) -> None:
    policy = in_file(yaml.safe_dump(document, allow_unicode=True), read_policy)
    if policy is not None:
        judged = gate(make_report(row("leak.nats", "fc", 0.5)), policy, today=date(2026, 1, 1))
        assert judged.findings


@st.composite
def intervals(draw: st.DrawFn) -> Measurement:
    low, value, high = sorted(draw(st.tuples(LIMITS, LIMITS, LIMITS)))
    return row("leak.nats", "fc", value, interval=(low, high), n=20)


@pytest.mark.slow
@FUZZ
@given(intervals(), LIMITS, st.floats(0, 5), st.booleans())
def test_a_laxer_limit_never_fails_what_a_tighter_one_passes(
    measured: Measurement, limit: float, more: float, strict: bool
) -> None:
    def verdict(most: float) -> tuple[str, bool]:
        policy = in_file(f"rules: [{{metric: leak.nats, layers: fc, max: {most}}}]", read_policy)
        judged = gate(make_report(measured), policy, strict=strict)
        (finding,) = judged.findings
        return finding.outcome, passed(judged)

    order = {"failed": 0, "unclear": 1, "passed": 2}
    (tight, tight_passes), (lax, lax_passes) = verdict(limit), verdict(limit + more)
    assert order[tight] <= order[lax]
    assert tight_passes <= lax_passes
    assert measured.interval is not None
    low, high = measured.interval
    assert tight == ("failed" if low > limit else "passed" if high <= limit else "unclear")


@st.composite
def mutilated_reports(draw: st.DrawFn) -> Any:
    """A valid report as JSON of which one part is something else, gone, or there twice."""
    report = make_report(row("leak.nats", "fc", 0.5, interval=(0.4, 0.6)), row("rank.c", None, 3))
    document = json.loads(report.to_json())
    at: Any = document
    while isinstance(at, dict | list) and at and draw(st.booleans()):
        holder = at
        key: Any = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        at = at[key]
        match draw(st.sampled_from(["go on", "replace", "remove", "repeat"])):
            case "replace":
                holder[key] = draw(DOCUMENTS)
            case "remove":
                del holder[key]
            case "repeat" if isinstance(holder, list):
                holder.append(holder[key])
            case _:
                continue
        return document
    return document


@pytest.mark.slow
@FUZZ
@given(mutilated_reports())
def test_any_report_is_read_and_shown_the_same_again_or_refused(document: Any) -> None:
    text = json.dumps(document, default=str)
    report = in_file(text, Report.from_file)
    if report is not None:
        assert in_file(report.to_json(), Report.from_file) == report
        for shown in formats().values():
            given_or_refused(lambda shown=shown: shown().render(gate(report)))
