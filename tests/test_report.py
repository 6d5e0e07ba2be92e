import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from pydantic import ValidationError
from report_builder import skipped

import gradaudit
from gradaudit.core.files import write_atomically
from gradaudit.errors import UsageError
from gradaudit.judging import gate
from gradaudit.report import MAX_TEXT, LayerRecord, Measurement, Report, TargetRecord


def report(*rows: Measurement) -> Report:
    return Report(
        tool={"name": "gradaudit", "version": "0"},
        target=TargetRecord(model="m", parameters=1, layers=[], loss="mse", mode="eval"),
        data={},
        provenance={},
        measurements=list(rows),
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "needs a value"),
        ({"status": "failed"}, "needs a reason"),
        ({"status": "skipped", "reason": "r", "value": 1.0}, "holds no value"),
        ({"value": 1.0, "interval": (2.0, 1.0)}, "low, high"),
        ({"value": math.nan}, "finite"),
        ({"value": math.inf}, "finite"),
        ({"value": 1.0, "interval": (0.0, math.inf)}, "finite"),
        ({"value": 1.0, "surprise": 1}, "Extra inputs"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Measurement(audit="a", metric="m", **fields)


def test_infinity_is_a_null_value_that_says_so() -> None:
    row = Measurement(audit="a", metric="m", details={"infinite": True})
    assert row.number == math.inf
    assert json.loads(row.model_dump_json())["value"] is None


def test_two_rows_with_one_key_are_refused() -> None:
    row = Measurement(audit="a", metric="m", layer="l", value=1.0)
    other = row.model_copy(update={"variant": {"round": 1}})
    assert len(report(row, other).measurements) == 2
    with pytest.raises(ValidationError, match="share the key"):
        report(row, row.model_copy(update={"value": 2.0}))


def test_a_copy_with_other_rows_looks_up_its_own() -> None:
    one = Measurement(audit="leak", metric="bits", layer="fc1", value=1.0)
    first = report(one, one.model_copy(update={"layer": "fc2"}))
    assert len(first.by_key()) == len(first.rows_by_place["leak.bits"]) == 2
    other = first.model_copy(update={"measurements": [one]})
    assert other.rows_by_place == {"leak.bits": {"fc1": [one]}}
    assert list(other.by_key().values()) == other.rows


def test_a_report_survives_its_file(tmp_path: Path) -> None:
    rows = [
        Measurement(
            audit="a", metric="m", layer="l", value=0.1, interval=(0.0, 1 / 3), confidence=0.95
        ),
        *skipped("a", ["x"], ["l", None], "not today"),
    ]
    path = tmp_path / "report.json"
    write_atomically(path, report(*rows).to_json())
    assert Report.from_file(path) == report(*rows)


def test_select_narrows_by_layer_and_variant() -> None:
    rows = [
        Measurement(audit="a", metric="m", layer=layer, variant=variant, value=1.0)
        for layer in ("x", "y")
        for variant in ({}, {"round": 1})
    ]
    assert report(*rows).select("a.m") == rows
    assert report(*rows).select("a.m", layer="y", variant={}) == [rows[2]]
    assert report(*rows).select("a.other") == []


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema_version": 2}', "\udcff"])
def test_what_is_no_report_is_named_in_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "no.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=r"no\.json") as caught:
        Report.from_file(path)
    assert "\n" not in str(caught.value)


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")

    def broken(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", broken)
    with pytest.raises(UsageError, match="No space left"):
        write_atomically(path, "new")
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]
    assert path.read_text() == "old"


def test_writing_into_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="missing"):
        write_atomically(tmp_path / "missing" / "report.json", "x")


ROWS = (
    Measurement(audit="a", metric="m", layer="l\x1b", value=1.5, interval=(1, 2), n=3, unit="bit"),
    Measurement(audit="a", metric="m", layer="l\x1b", variant={"round": 2}, value=1.0),
    Measurement(audit="a", metric="m", details={"infinite": True}),
    *skipped("b", ["m"], ["l\x1b"], "no"),
)


def test_it_is_saved_by_the_suffix_of_a_name_and_read_again(tmp_path: Path) -> None:
    saved = str(tmp_path / "r.json")
    report(*ROWS).save(saved)
    assert Report.from_file(saved) == report(*ROWS)
    report(*ROWS).save(f"{tmp_path}/r.sarif.json")
    assert json.loads((tmp_path / "r.sarif.json").read_text())["version"] == "2.1.0"
    with pytest.raises(UsageError, match="no report format"):
        report().save(f"{tmp_path}/r.pdf")


def test_its_rows_are_a_data_frame_and_the_same_table_as_csv(tmp_path: Path) -> None:
    audited = report(*ROWS)
    frame = audited.to_frame()
    assert list(frame["round"].fillna(0)) == [0, 2, 0, 0]
    assert list(frame["value"].dropna()) == [1.5, 1.0, math.inf]
    assert (frame["low"][0], frame["high"][0], frame["unit"][0]) == (1, 2, "bit")
    assert frame["status"].value_counts().to_dict() == {"measured": 3, "skipped": 1}
    audited.save(tmp_path / "r.csv")
    read = pandas.read_csv(tmp_path / "r.csv", keep_default_na=False, na_values=[""])
    assert list(read.columns) == list(frame.columns)
    for name in ("value", "low", "high", "round"):
        np.testing.assert_array_equal(read[name].astype(float), frame[name].astype(float))
    assert report().to_frame().empty


def test_its_table_has_details_as_columns_and_no_headline_twice() -> None:
    details = {"median": 0.4, "known_to": [0.3, 0.6], "permuted": {"value": 0.51}, "method": "dlg"}
    settings = {"attack": "x", "metric": "y"}
    given: dict[str, Any] = {"audit": "a", "metric": "m", "layer": "0", "value": 0.5}
    rows = [
        Measurement(**given, details=details),
        Measurement(**given, variant=settings, details=details),
        Measurement(**{**given, "metric": "alone", "layer": None}, details={}),
    ]
    first, second = report(*rows).to_frame().to_dict("records")
    expected = {"layer": "0", "attack": "x", "variant.metric": "y", "baseline": 0.51}
    expected |= {"median": 0.4, "known_low": 0.3, "known_high": 0.6, "method": "dlg"}
    assert {name: first[name] for name in expected} == expected
    assert (second["metric"], second["layer"]) == ("alone", "")


def test_its_repr_is_ten_lines_and_harmless() -> None:
    layers = [
        LayerRecord(name=f"<b>{i}\x1b", kind="Linear", parameters=1, position=i) for i in range(20)
    ]
    row = Measurement(audit="vinfo", metric="auroc", layer=layers[7].name, value=0.99)
    target = report().target.model_copy(update={"layers": layers})
    shown = report(row).model_copy(update={"target": target})
    lines = repr(shown).splitlines()
    assert lines == str(shown).splitlines()
    assert len(lines) == 10
    assert lines[0] == "gradaudit report of m, 1 parameters in 20 layers"
    assert lines[3].split() == ["<b>7\ufffd", "high"]
    assert "\x1b" not in repr(shown)
    page = shown._repr_html_()
    assert page.count("<tr>") == 20
    assert "<b>" not in page


def test_a_finding_is_said_as_the_gate_says_it(tmp_path: Path) -> None:
    rules = [{"metric": "a.m", "max": 1.2, "variant": v} for v in ({}, {"round": 2})]
    report(*ROWS).save(tmp_path / "r.json")
    (tmp_path / "p.yaml").write_text(json.dumps({"rules": rules}))
    judged = gate(report(*ROWS), str(tmp_path / "p.yaml"), baseline=str(tmp_path / "r.json"))
    assert [str(finding) for finding in judged.findings] == [
        "unclear l\ufffd a.m 1.50 [1, 2] neither shows nor excludes a value above the max of 1.2; "
        "about 2.8 times as many records or trials would settle it; known: 1.50 [1, 2] in the "
        "baseline",
        "known a.m infinite exceeds the max of 1.2; known: infinite in the baseline",
        "passed l\ufffd a.m (round=2) 1 is within the max of 1.2",
    ]
    assert gradaudit.passed(judged)


@pytest.mark.parametrize("place", ["model", "key", "list"])
def test_an_overlong_text_is_refused_before_a_page_is_made_of_it(
    tmp_path: Path, place: str
) -> None:
    def written(length: int) -> Path:
        text, document = "x" * length, json.loads(report().to_json())
        if place == "model":
            document["target"]["model"] = text
        else:
            document["provenance"] = {text: 1} if place == "key" else {"a": [["b"], [text]]}
        (tmp_path / "r.json").write_text(json.dumps(document))
        return tmp_path / "r.json"

    assert Report.from_file(written(MAX_TEXT))
    with pytest.raises(UsageError, match="has a text of over 1,048,576 characters"):
        Report.from_file(written(MAX_TEXT + 1))
