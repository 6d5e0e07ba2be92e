"""A redacted report says nothing of its data's words, and all the rest."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run
from pydantic import JsonValue
from report_builder import failed_row, make_report, row, skipped_row

from gradaudit.errors import UsageError
from gradaudit.evidence.redaction import MAX_WORDS, redact
from gradaudit.report import CheckpointRecord, Report

FOLDER, TABLE = "krankenakte_7", "patienten.csv"
COLUMNS = ("blutgruppe", "raucher status", "gewicht", "diagnose")
VALUES = ("AB-negativ", "Null positiv", "nie geraucht", "Kettenraucher", "Zuckerkrank", "gesund")
PRIVATE = (FOLDER, TABLE, "patienten", *COLUMNS, *VALUES)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / FOLDER
    folder.mkdir()
    rng = np.random.default_rng(0)
    blood, smoke, ill = (rng.integers(0, 2, 80) for _ in range(3))
    lines = [
        f"{VALUES[b]},{VALUES[2 + s]},{rng.normal():.3f},{VALUES[4 + i]}"
        for b, s, i in zip(blood, smoke, ill, strict=True)
    ]
    file = folder / TABLE
    file.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    return file


def audit(table: Path, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> tuple[str, Any]:
    words = [
        *(arguments[0], "-m", "zoo:mlp?inputs=5&hidden=3&classes=2"),
        *("-d", f"csv:{table}?label=diagnose&attribute=blutgruppe"),
        *("-a", "blutgruppe", "-a", "raucher status", "-q", *arguments[1:]),
    ]
    monkeypatch.setattr("sys.argv", ["gradaudit", *map(str, words)])
    file = table.parent / "report.json"
    done = run(*words, "-o", file, "--exit-zero")
    assert done.status == 0, done.err
    return file.read_text(), done.out


DP_AUDIT = (
    *("dp-audit", "--mechanism", "dp:clip=1,sigma=1", "--trials", 200),
    *("--restarts", 1, "--iterations", 2),
)
SCAN = ("scan", "--audits", "sensitivity", "--audits", "copa-metric", "--samples", 3)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [DP_AUDIT, SCAN], ids=["dp-audit", "scan"])
def test_no_private_word_remains(
    arguments: tuple[object, ...], table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, _ = audit(table, monkeypatch, *arguments)
    assert all(word in told for word in ("blutgruppe", "AB-negativ", FOLDER, TABLE))
    redacted, shown = audit(table, monkeypatch, *arguments, "--redact")
    for word in PRIVATE:
        assert word not in redacted
        assert word not in shown
    assert "attribute-1" in redacted
    assert "value-1" in redacted
    assert "file-1" in redacted


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [DP_AUDIT, SCAN], ids=["dp-audit", "scan"])
def test_numbers_and_keys_stay(
    arguments: tuple[object, ...], table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_, hidden = (
        Report.model_validate_json(audit(table, monkeypatch, *arguments, *more)[0])
        for more in ((), ("--redact",))
    )
    for one, other in zip(open_.measurements, hidden.measurements, strict=True):
        assert (one.id, one.layer, one.status, one.value, one.interval) == (
            (other.id, other.layer, other.status, other.value, other.interval)
        )
        assert set(one.variant) == set(other.variant)
    assert open_.target == hidden.target
    assert hidden.data["records"] == 80
    assert redact(hidden).measurements == hidden.measurements


@pytest.mark.slow
def test_a_saved_report_is_redacted_by_render(
    table: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    audit(table, monkeypatch, *DP_AUDIT)
    page = tmp_path / "page.html"
    done = run("render", table.parent / "report.json", "--redact", "-f", "json", "-o", page)
    assert done.status == 0, done.err
    for word in (FOLDER, TABLE, "blutgruppe", "raucher status", "AB-negativ", "gesund"):
        assert word not in done.out
        assert word not in page.read_text()
    json.loads(done.out)


def with_words() -> Report:
    made = make_report(
        row("leak.bits", "sex", 1.0, variant={"attribute": "sex", "record": "0"}),
        row("leak.bits", "sex", 2.0, details={"null_value": "male", "sex": {"male": 1, "0": 2}}),
        failed_row("leak.bits", "fc2", "/home/ann/run.py fails; see ../x/y.csv, or a/b and 0 of 2"),
        skipped_row("rank.c", None, "sex is no column; unisex is, 'x' is, x is not: write FILE.py"),
        model="secret/net.py:make?width=3",
        data={"attributes": {"sex": {"male": 3, "0": 4, "x": 5}}, "classes": {"male": 1, "ill": 2}},
    )
    made.target.checkpoints.append(CheckpointRecord(file="secret/w 1.pt", sha256="c", notes=[]))
    made.provenance["command"] = "gradaudit scan -m secret/net.py:make -c 'secret/w 1.pt' -a sex"
    made.provenance["audits"] = {"vinfo": {"mode": "sex", "sex": "plain"}}
    return made


def test_placeholders_stand_wherever_the_word_stood() -> None:
    hidden = redact(with_words())
    first, second, third, fourth = hidden.measurements
    assert first.variant == {"attribute": "attribute-1", "record": "value-2"}
    assert first.layer == "sex", "layers are what policies speak of"
    assert second.details == {
        "null_value": "value-1",
        "attribute-1": {"value-1": 1, "value-2": 2},
    }
    assert third.reason == "file-4 fails; see file-5, or a/b and 0 of 2"
    assert fourth.reason == (
        "attribute-1 is no column; unisex is, 'value-3' is, x is not: write FILE.py"
    )
    assert hidden.data["classes"] == {"value-1": 1, "class-1": 2}
    assert hidden.target.model == "file-1:make?width=3"
    assert hidden.target.checkpoints[-1].file == "file-3"
    assert hidden.provenance["command"] == (
        "gradaudit scan -m file-1:make -c file-3 -a attribute-1"
    )
    assert hidden.provenance["audits"] == {"vinfo": {"mode": "attribute-1", "sex": "plain"}}


def test_the_report_itself_is_left_alone() -> None:
    made = with_words()
    before = made.to_json()
    redact(made)
    assert made.to_json() == before


@pytest.mark.parametrize("command", ["gradaudit scan -d 'x", ""])
def test_any_command_can_be_redacted(command: str) -> None:
    made = make_report()
    made.provenance["command"] = command
    assert isinstance(redact(made).provenance["command"], str)


@pytest.mark.parametrize("long", ["a-." * 40_000, "a/" * 60_000, "-+@/" * 30_000, "~" * 99_999])
def test_long_texts_are_read_once(long: str) -> None:
    """A search from every character to the end would take minutes."""
    made = make_report()
    made.provenance["note"] = long
    assert redact(made).provenance["note"]


def test_many_paths_are_replaced_without_searching_for_each() -> None:
    made = make_report()
    made.provenance["notes"] = [f"wrote x{number}.pt; went on" for number in range(4000)]
    notes = redact(made).provenance["notes"]
    assert isinstance(notes, list)
    words = {str(note).partition(";")[0] for note in notes}
    assert len(words) == 4000
    assert all(word.startswith("wrote file-") for word in words)


def test_too_many_names_are_refused() -> None:
    counts: dict[str, JsonValue] = {f"value {number}": 1 for number in range(MAX_WORDS + 1)}
    made = make_report(data={"adapter": "x", "records": 3, "attributes": {"sex": counts}})
    with pytest.raises(UsageError, match=r"--redact: 20,00\d private names are too many"):
        redact(made)
