"""The pages build as a site, strictly, with one for each audit; the picture is of a scan."""

import importlib.util
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from command_line import HANGS
from test_first_scan import shown, words_and_numbers

from gradaudit.audits import audits

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the extra [docs]")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", tmp_path],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    for name in audits():
        page = tmp_path / "audits" / name.replace(" ", "-") / "index.html"
        lead = audits()[name].summary.partition("`")[0]
        assert lead in unescape(page.read_text(encoding="utf-8"))


def test_the_picture_shows_how_a_scan_begins_and_fetches_nothing() -> None:
    picture = (ROOT / "docs" / "report.svg").read_text(encoding="utf-8")
    _title, *texts = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    drawn, _ = words_and_numbers(" ".join(map(unescape, texts)).replace("\xa0", " "))
    printed, _ = words_and_numbers(shown("scan"))
    squeezed = drawn.replace(" ", "")
    assert "severity" in drawn
    assert printed.replace(" ", "").startswith(squeezed)
    assert not re.search(r"(href|src|url)\s*[=(]\s*[\"']?http", picture)
