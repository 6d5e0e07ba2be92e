"""The page in a browser: at each width, in the dark and on paper; skipped where there is none."""

import html
import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from command_line import HANGS
from PIL import Image
from report_builder import make_report, row, skipped_row

from gradaudit.formats.html import Html
from gradaudit.report import Report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (apt-get install chromium)"),
]
PHONE, SCREEN = 390, 1280
HEIGHT = 4000

HARNESS = """<!DOCTYPE html><meta charset="utf-8"><body style="margin:0">
<iframe srcdoc="{page}" width="{width}" height="{height}" style="border:0"></iframe>
<pre id="found"></pre>
<script>
document.querySelector("iframe").onload = event => {{
  const page = event.target.contentDocument, broken = [], beyond = [];
  for (const cell of page.querySelectorAll("th, td, li, h1, .plot code")) {{
    const walk = page.createTreeWalker(cell, 4);
    while (walk.nextNode()) {{
      for (const word of walk.currentNode.data.matchAll(/[\\p{{L}}\\p{{N}}]+/gu)) {{
        const range = page.createRange();
        range.setStart(walk.currentNode, word.index);
        range.setEnd(walk.currentNode, word.index + word[0].length);
        const lines = new Set([...range.getClientRects()].map(x => Math.round(x.top)));
        if (lines.size > 1) broken.push(word[0]);
        const box = range.getBoundingClientRect();
        if (cell.closest(".cards") && box.right > {width}) beyond.push(word[0]);
      }}
    }}
  }}
  const root = page.documentElement;
  document.getElementById("found").textContent = JSON.stringify({{
    broken, beyond, wide: root.scrollWidth, cells: page.querySelectorAll("th, td").length,
    titles: [...page.querySelectorAll("svg.strip")].every(x => x.querySelector("title")),
    cards: getComputedStyle(page.querySelector(".cards tr")).display,
    sticky: getComputedStyle(page.querySelector("tbody th")).position,
  }});
}};
</script>"""


def report() -> Report:
    """Of 60 layers with long names, of metrics with long names, with every kind of number."""
    names = [f"features.denseblock{i // 9}.denselayer{i}.normalisation_1" for i in range(60)]
    permuted: Any = {"attribute": "sex", "permuted": {"value": 0.5, "interval": [0, 0.7]}}
    rows = [
        *(row("vinfo.auroc", x, 0.8, interval=(0.7, 0.98), details=permuted) for x in names),
        *(row("sensitivity.input_f_bounded", x, 2.0, interval=(1.9, 2.1)) for x in names),
        *(
            row("sensitivity.label_f", x, 9.9 * i, interval=(0, 11 * i))
            for i, x in enumerate(names)
        ),
        *(row("copa-metric.rank_deficit", x, i - 3) for i, x in enumerate(names[:40])),
        *(skipped_row("copa-metric.rank_deficit", x, "no convolution") for x in names[40:]),
        row("attack.relative_error", None, 1e-9, n=1),
    ]
    return make_report(*rows, layers=[(name, "BatchNorm2d", 123_456) for name in names])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(Html().render(report()), encoding="utf-8")
    return path


def chromium(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder / 'profile'}",
            *arguments,
        ],
        capture_output=True,
        encoding="utf-8",
        timeout=HANGS,
        check=True,
    )
    return done.stdout


def harness(page: Path, width: int) -> Path:
    """A page that shows the page as wide as this; windows are never narrower than 500 pixels."""
    text = html.escape(page.read_text(encoding="utf-8"))
    path = page.with_name(f"{width}.html")
    path.write_text(HARNESS.format(page=text, width=width, height=HEIGHT), encoding="utf-8")
    return path


@cache
def found(page: Path, width: int) -> dict[str, Any]:
    shown = harness(page, width)
    text = chromium(page.parent, "--dump-dom", "--virtual-time-budget=5000", shown.as_uri())
    result = re.search(r'<pre id="found">(.*?)</pre>', text, re.DOTALL)
    assert result is not None
    measured: dict[str, Any] = json.loads(html.unescape(result[1]))
    return measured


@pytest.mark.parametrize("width", [PHONE, SCREEN])
def test_no_header_or_cell_is_broken_inside_a_word(page: Path, width: int) -> None:
    measured = found(page, width)
    assert measured["cells"] > 1000
    assert measured["broken"] == []
    assert measured["beyond"] == []
    assert measured["wide"] <= width
    assert measured["titles"]


def test_a_layer_is_a_card_on_a_phone_and_a_line_on_a_screen(page: Path) -> None:
    assert (found(page, PHONE)["cards"], found(page, SCREEN)["cards"]) == ("block", "table-row")
    assert found(page, SCREEN)["sticky"] == "sticky"


@pytest.mark.parametrize(("options", "dark"), [([], False), (["--force-dark-mode"], True)])
def test_it_can_be_looked_at(page: Path, options: list[str], dark: bool) -> None:
    picture = page.with_name("seen.png")
    size = f"--window-size={SCREEN},{HEIGHT}"
    chromium(page.parent, size, *options, f"--screenshot={picture}", page.as_uri())
    with Image.open(picture) as seen:
        colours = seen.convert("RGB").crop((0, 0, PHONE, HEIGHT)).getcolors(1 << 24) or []
    (_, most), *_ = sorted(colours, reverse=True)
    assert (max(most) < 60) is dark  # type: ignore[arg-type, type-var]
    assert len(colours) > 50


def test_it_can_be_printed(page: Path) -> None:
    paper = page.with_name("page.pdf")
    chromium(page.parent, f"--print-to-pdf={paper}", page.as_uri())
    content = paper.read_bytes()
    assert content.startswith(b"%PDF")
    opens = "details::details-content { content-visibility: visible; }"
    text = page.read_text(encoding="utf-8")
    assert opens in text
    folded = page.with_name("folded.html")
    folded.write_text(text.replace(opens, ""), encoding="utf-8")
    chromium(page.parent, f"--print-to-pdf={paper}", folded.as_uri())
    assert pages(content) > pages(paper.read_bytes()) > 1


def pages(pdf: bytes) -> int:
    return len(re.findall(rb"/Type */Page\b", pdf))
