"""Pictures of reconstructions stand in the page, and no other file that a report may name."""

import base64
from pathlib import Path
from typing import Any

from PIL import Image
from report_builder import make_report, row

from gradaudit.evidence.redaction import redact
from gradaudit.formats.html import Html
from gradaudit.report import Report
from gradaudit.view.examples import MOST_BYTES, MOST_EXAMPLES, pictures_of


def saved(folder: Any) -> Report:
    report = make_report(row("attack.relative_error", None, 0.01))
    report.provenance["audits"] = {"attack reconstruct": {"save_examples": folder}}
    return report


def test_saved_pictures_are_in_the_page(tmp_path: Path) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "dlg-01.png")
    ((name, address, shows),) = pictures_of(saved(str(tmp_path)))
    assert (name, shows) == ("dlg-01", "originals beside what an attacker rebuilt")
    kind, _, content = address.partition(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(content) == (tmp_path / "dlg-01.png").read_bytes()
    assert f'<img src="{address}" alt="dlg-01: originals beside what an attacker rebuilt">' in (
        Html().render(saved(str(tmp_path)))
    )


def test_what_is_no_small_picture_of_a_reconstruction_is_left_out(tmp_path: Path) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "passport.png")
    picture = (tmp_path / "passport.png").read_bytes()
    (tmp_path / "dlg-01.png").write_bytes(b"GIF89a")
    (tmp_path / "dlg-02.png").symlink_to(tmp_path / "passport.png")
    (tmp_path / "dlg-03.png").write_bytes(picture + b"x" * MOST_BYTES)
    (tmp_path / "dlg-04.png").mkdir()
    assert list(pictures_of(saved(str(tmp_path)))) == []
    for i in range(10, 30):
        (tmp_path / f"copa-{i}.png").write_bytes(picture)
    assert len(list(pictures_of(saved(str(tmp_path))))) == MOST_EXAMPLES


def test_pictures_are_named_as_private_and_only_where_there_are_any(tmp_path: Path) -> None:
    assert "Private data" not in Html().render(saved(str(tmp_path)))
    Image.new("RGB", (2, 2)).save(tmp_path / "dlg-01.png")
    assert "Private data:" in Html().render(saved(str(tmp_path)))
    assert "Private data" not in Html().render(redact(saved(str(tmp_path))))


def test_every_attack_that_saves_examples_has_them_in_the_page(tmp_path: Path) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "row-space-01.png")
    report = saved(None)
    report.provenance["audits"] = {"attack table": {"save_examples": str(tmp_path)}}
    assert [(each.name, "green is right" in each.shows) for each in pictures_of(report)] == [
        ("row-space-01", True)
    ]


def test_a_folder_that_is_none_shows_nothing(tmp_path: Path) -> None:
    for folder in (str(tmp_path / "gone"), "", None, 7, ["x"], "\x00"):
        assert list(pictures_of(saved(folder))) == []
