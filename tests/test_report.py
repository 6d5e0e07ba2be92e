import json
import math
from pathlib import Path

import pytest
from pydantic import ValidationError
from report_builder import skipped

from gradaudit.errors import UsageError
from gradaudit.report import Measurement, Report, TargetRecord, write_atomically


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
