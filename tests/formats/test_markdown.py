"""Markdown for a pull request: compared whole, and hostile names stay text."""

import re
from pathlib import Path

import pytest
from report_builder import failed_row, make_report, row, skipped_row

from gradaudit.core.text import markdown_code, markdown_escape
from gradaudit.formats import format_for
from gradaudit.formats.markdown import MOST_BYTES, Markdown

pytestmark = pytest.mark.usefixtures("two_audits")

WHOLE = """\
## ❌ FAILED by the default policy

zoo:lenet, round-5.safetensors, 8,620 parameters, cross-entropy, eval mode; digits, 1,797 records

> **Warning:** few samples

### Findings

| severity | finding | evidence | limit | layers |
| --- | --- | --- | --- | --- |
| 🔴 HIGH | The private attribute of a batch is inferred. | bits 3.10 [2.90, 3.30] | ≤ 2 | conv1 |
| ⚪ UNKNOWN | Is the private attribute of a batch inferred? | could not be measured: NaN \
&#42;here&#42; | ≤ 2 | fc2 |
| 🟠 MEDIUM | The private attribute of a batch is inferred. | bits 1.50 | ≤ 1 | fc1 |

### Layers

| layer | severity | attribute<br>bits | rank<br>rank.deficit |
| --- | --- | --- | --- |
| `conv1` | 🔴 HIGH | 3.10 |  |
| `fc1` | 🟠 MEDIUM | 1.50 | 12 |
| `fc2` | ⚪ UNKNOWN | failed | – |

### What to do

The private attribute of a batch is inferred: hiding conv1 (--hide), or noise (--defense). Then \
measure again.

### Assumptions

The attacker sees gradients of 3 layers; no defense; no layer hidden.

### Not tested

leak in fc2 (failed: NaN &#42;here&#42;)

### Provenance

gradaudit 0.1.0, 95 % intervals, seed 0, cpu, 2026-05-01 10:00

<details><summary>All 3 layers</summary>

| layer | severity | kind | parameters | `leak.bits` | `rank.deficit` |
| --- | --- | --- | ---: | --- | --- |
| `conv1` | HIGH | Conv2d | 108 | 3.10 [2.90, 3.30] |  |
| `fc1` | MEDIUM | Linear | 8,192 | 1.50 | 12 |
| `fc2` | UNKNOWN | Linear | 320 | failed | – |

</details>

<details><summary>Whole model</summary>

| metric | variant | value | remark |
| --- | --- | --- | --- |
| `leak.total` |  | 0 |  |

</details>

<details><summary>Scope</summary>

- **attacked** no attribute was attacked

</details>

<details><summary>Not tested, and why</summary>

- leak failed in fc2: NaN &#42;here&#42;
- rank not tested in fc2: row space is everything

</details>

**FAILED by the default policy: The private attribute of a batch is inferred (conv1); \
and 1 more finding**
"""


def test_the_whole_document(tmp_path: Path) -> None:
    report = make_report(
        row("leak.bits", "conv1", 3.1, interval=(2.9, 3.3)),
        row("leak.bits", "fc1", 1.5),
        failed_row("leak.bits", "fc2", "NaN *here*"),
        row("leak.total", None, 0),
        row("rank.deficit", "fc1", 12),
        skipped_row("rank.deficit", "fc2", "row space is everything"),
    )
    report.provenance["warnings"] = ["few samples"]
    path = tmp_path / "report.md"
    format_for(path).write(report, path)
    assert path.read_text() == WHOLE


NAMES: list[tuple[str, str]] = [
    ("layer1.0.conv_1", "`layer1.0.conv_1`"),
    ("(model)", "`(model)`"),
    ("a|b", "<code>a&#124;b</code>"),
    ("`x`", "<code>&#96;x&#96;</code>"),
    ("<img src=x>", "<code>&#60;img src&#61;x&#62;</code>"),
    ("[l](http://e)", "<code>&#91;l&#93;(http&#58;//e)</code>"),
    ("**x**_y_", "<code>&#42;&#42;x&#42;&#42;&#95;y&#95;</code>"),
    ("@team #1", "<code>&#64;team &#35;1</code>"),
    ("a\nb\x1b[0m", "<code>a&#65533;b&#65533;&#91;0m</code>"),
    (" ", "` `"),
    ("", ""),
]


@pytest.mark.parametrize(("name", "written"), NAMES, ids=[repr(n) for n, _ in NAMES])
def test_names_in_code_type(name: str, written: str) -> None:
    assert markdown_code(name) == written


TEXTS: list[tuple[str, str]] = [
    ("3.10 [2.90, 3.30], a_b (c) - d.e!", "3.10 [2.90, 3.30], a_b (c) - d.e!"),
    ("<b>&amp;", "&#60;b&#62;&#38;amp;"),
    ("[a](b) [a]: c [a][b]", "[a&#93;(b) [a&#93;: c [a&#93;[b]"),
    ("_a_ __b__ a_b", "&#95;a&#95; &#95;&#95;b&#95;&#95; a_b"),
    (
        "*a* ~~b~~ `c` $d$ #1 @e \\f |g",
        "&#42;a&#42; &#126;&#126;b&#126;&#126; &#96;c&#96; "
        "&#36;d&#36; &#35;1 &#64;e &#92;f &#124;g",
    ),
    ("see https://e.org or www.e.org", "see https&#58;//e.org or www&#46;e.org"),
    ("two\nlines", "two\ufffdlines"),
]


@pytest.mark.parametrize(("text", "written"), TEXTS, ids=[t for t, _ in TEXTS])
def test_active_characters_become_entities(text: str, written: str) -> None:
    assert markdown_escape(text) == written


def test_hostile_strings_break_no_table_and_make_no_markup() -> None:
    evil = "x|y <script>`[a](http://e)`\n| @all"
    report = make_report(
        row("leak.bits", evil, 3.0),
        skipped_row("rank.deficit", evil, evil),
        row("rank.deficit", "fc1", 1.0, unit=evil),
        row("leak.total", None, 1.0),
        row("evil|x.y|z", None, 2.0, variant={evil: evil}),
        layers=[(evil, evil, 1), ("fc1", "Linear", 1)],
        model=evil,
        data={"adapter": evil, "accuracy": {"warning": evil}},
    )
    lines = Markdown().render(report).splitlines()
    assert not [line for line in lines if re.search(r"<script|`\[|http://|@all|\]\(", line)]
    pipes = {line.count("|") for line in lines if line.startswith("|")}
    assert pipes == {5, 6, 7}


def test_what_was_done_to_checkpoints_is_told() -> None:
    report = make_report(row("leak.bits", "conv1", 1.0))
    report.target.checkpoints[0].notes.append("stripped the prefix <b>.")
    assert "\n- **fitted** stripped the prefix &#60;b&#62;.\n" in Markdown().render(report)


@pytest.mark.slow
def test_a_comment_of_any_model_is_short_and_says_what_is_left_out() -> None:
    names = [f"features.{i // 100}.denselayer{i}.conv" for i in range(1200)]
    report = make_report(
        *(row(f"leak.{m}", name, i) for m in ("bits", "note") for i, name in enumerate(names)),
        *(row("rank.deficit", name, i) for i, name in enumerate(names)),
        *(failed_row("leak.effort", name, f"{name} failed") for name in names[:500]),
        layers=[(name, "Conv2d", 36_864) for name in names],
    )
    text = Markdown().render(report)
    assert 40_000 < len(text.encode()) < MOST_BYTES
    head, _, folded = text.partition("<details>")
    assert "### Layers, the 10 riskiest of 1,200" in head
    assert head.count("\n| `features.") == 10
    left_out = sum(int(x.replace(",", "")) for x in re.findall(r"\*([\d,]+) more rows", folded))
    told = folded.count("\n| `features.") + folded.count("\n- leak.effort failed")
    assert left_out + told == 1200 + 500
    assert "could not be measured: features.0.denselayer0" in head
    assert "failed; 499 more reasons" in head
    assert folded.count("<details>") + 1 == folded.count("</details>")
    assert text.splitlines()[-1].startswith("**FAILED by the default policy: The private")
    assert head.startswith("## ❌ FAILED by the default policy\n")
