"""The page: one file, well formed, nothing fetched or run, and hostile names stay text."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_builder import failed_row, infinite_row, make_report, row, skipped_row

from gradaudit.formats import format_for
from gradaudit.formats.html import MOST_LAYERS, MOST_ROWS, MOST_STRIPS, Html
from gradaudit.report import CheckpointRecord, Report

pytestmark = pytest.mark.usefixtures("two_audits")

VOID = {"meta", "br", "hr", "img", "link", "input"}
FETCHING = {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background"}
FORBIDDEN = {"script", "link", "iframe", "object", "embed", "base", "form", "image"}
EVIL = (
    "</title><script>alert(1)</script>&\"'<img src=//e onerror=x>"
    "{{ 7777*7777 }}$\\frac{1}{2}$\x1b[0m"
)


class Page(HTMLParser):
    """Elements, their attributes and their text; complains where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(text.replace("<wbr>", ""))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def report() -> Report:
    made = make_report(
        row("leak.bits", "conv1", 3.1, interval=(2.9, 3.3), unit="bit"),
        infinite_row("leak.bits", "fc1"),
        failed_row("leak.bits", "fc2", "NaN here"),
        row("leak.total", None, 0),
        row("rank.deficit", "fc1", 12),
        row("rank.deficit", "fc1", 13, variant={"round": 2}),
        skipped_row("rank.deficit", "fc2", "row space is everything"),
        data={"adapter": "digits", "records": 1797, "accuracy": {"warning": "at chance"}},
    )
    made.provenance["versions"] = {"torch": "2.13"}
    return made


def test_everything_is_said(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    format_for(path).write(report(), path)
    page = Page(path.read_text(encoding="utf-8"))
    for said in (
        "FAILED by the default policy: The private attribute of a batch is inferred (conv1 and",
        "3 layers: 2 at high risk, 1 at unknown risk",
        "zoo:lenet, round-5.safetensors",
        "Warning: at chance",
        "worse →",
        "3.10 [2.90, 3.30]",
        "infinite",
        "an attacker learns the attribute",
        "leak failed in fc2 : NaN here",
        "rank in fc2: row space is everything",
        "All 7 rows",
        "round=2",
        "ab" * 32,
        "versions.torch 2.13",
        "95 % intervals, seed 0, cpu",
    ):
        assert said in page.words, said
    strips = [value for name, value in page.attributes if (name, value) == ("class", "strip")]
    assert len(strips) == 2 * 3
    assert page.tags.count("main") == 1
    assert page.tags.count("th") == [name for name, _ in page.attributes].count("scope")
    text = page.words
    order = ["FAILED by", "Findings", "Layers", "What to do", "Assumptions", "Numbers"]
    order += ["Not tested, and why", "Provenance", "FAILED by"]
    places = [text.index(order[0]), *(text.index(f" {word} ") for word in order[1:-1])]
    assert [*places, text.rindex(order[-1])] == sorted([*places, text.rindex(order[-1])])
    assert "bit" in page.words


def test_findings_and_layers_are_tables() -> None:
    words = Page(Html().render(report())).words
    assert "severity finding evidence limit layers" in words
    assert "HIGH The private attribute of a batch is inferred. " in words
    assert "layer severity attribute bits rank rank.deficit conv1 HIGH 3.10" in words


def test_nothing_is_fetched_or_run() -> None:
    text = Html().render(report())
    page = Page(text)
    assert not FORBIDDEN & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    fetched = [value or "" for name, value in page.attributes if name in FETCHING]
    assert all(value.startswith("#") for value in fetched)  # marks of the charts themselves
    assert "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    addresses = {value for name, value in page.attributes if value and "//" in value}
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    names = [value for name, value in page.attributes if name == "id"]
    assert len(names) == len(set(names))


def test_the_same_report_gives_the_same_page() -> None:
    assert Html().render(report()) == Html().render(report())


def test_hostile_strings_stay_text() -> None:
    made = make_report(
        row("leak.bits", EVIL, 3.0, unit=EVIL, variant={}),
        row("leak.bits", EVIL, 3.0, variant={EVIL: EVIL}),
        row(f"evil.{EVIL}", EVIL, 1.0),
        skipped_row("rank.deficit", EVIL, EVIL),
        row(f"evil.{EVIL}", None, 2.0, variant={EVIL: EVIL}),
        layers=[(EVIL, EVIL, 1)],
        model=EVIL,
        data={"adapter": EVIL, EVIL: [EVIL], "accuracy": {"warning": EVIL}},
    )
    made.provenance[EVIL] = {EVIL: EVIL}
    made.target.checkpoints.append(CheckpointRecord(file=EVIL, sha256="0", notes=[EVIL]))
    text = Html().render(made)
    page = Page(text)
    assert not FORBIDDEN & set(page.tags)
    assert "<script" not in text
    assert "\x1b" not in text
    assert "60481729" not in page.words
    assert page.words.count("{{ 7777*7777 }}$\\frac{1}{2}$") > 10
    assert page.words.count("</title>") > 10


@pytest.mark.filterwarnings("error")
def test_names_in_any_script_and_values_of_any_size() -> None:
    made = make_report(
        row("leak.bits", "卷积", 1e-30, interval=(0, 1e300)),
        row("leak.bits", "слой", 1e300),
        row("rank.deficit", "卷积", -5),
        layers=[("卷积", "Conv2d", 1), ("слой", "Linear", 2)],
    )
    words = Page(Html().render(made)).words
    assert words.count("卷积") >= 3


def test_a_report_without_layers_or_measurements_has_a_page() -> None:
    page = Page(Html().render(make_report(layers=())))
    assert "strip" not in [value for _, value in page.attributes]
    assert "All 0 rows" in page.words


def test_very_many_rows_are_cut_and_counted() -> None:
    rows = [row("rank.deficit", "fc1", i, variant={"at": i}) for i in range(MOST_ROWS + 5)]
    words = Page(Html().render(make_report(*rows))).words
    assert f"All {MOST_ROWS + 5} rows" in words
    assert "5 more rows are in the JSON report" in words


@pytest.mark.slow
def test_a_large_model_has_a_small_page() -> None:
    names = [f"features.denseblock{i // 100}.denselayer{i}.conv" for i in range(1200)]
    rows = [
        row(f"leak.{metric}", name, 1.0 + i, interval=(i, 2.0 + i))
        for metric in ("bits", "effort", "note")
        for i, name in enumerate(names)
    ]
    rows += [row("rank.deficit", name, i) for i, name in enumerate(names)]
    text = Html().render(make_report(*rows, layers=[(name, "Conv2d", 1) for name in names]))
    assert len(text.encode()) < 2_000_000
    assert "<summary>1,150 more layers</summary>" in text
    assert text.count('class="strip"') == 2 * MOST_STRIPS
    shown = text.partition("<h2>Layers</h2>")[2].partition("more layers")[0]
    assert shown.count('<tr><th scope="row"><code>') == MOST_LAYERS


@pytest.mark.slow
def test_the_page_does_not_need_torch() -> None:
    import subprocess
    import sys

    script = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from report_builder import make_report, row\n"
        "from gradaudit.formats.html import Html\n"
        "Html().render(make_report(row('sensitivity.input_f', 'fc1', 1.0)))\n"
        "assert not {'torch', 'scipy', 'sklearn'} & set(sys.modules)\n"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", script], check=True, cwd=root)
