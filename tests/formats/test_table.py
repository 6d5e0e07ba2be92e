"""The table for people, compared whole, and what may never happen to a name."""

import io
from pathlib import Path

import pytest
from report_builder import (
    failed_row,
    infinite_row,
    make_report,
    row,
    skipped_row,
)
from rich.console import Console

from gradaudit.formats import format_for, format_named
from gradaudit.formats.table import MOST_LAYERS, print_report
from gradaudit.judging import Policy, gate
from gradaudit.report import Report

pytestmark = pytest.mark.usefixtures("two_audits")

NO_ATTRIBUTE = "no attribute is named (-a NAME)"


def a_scan() -> Report:
    return make_report(
        row(
            "leak.bits",
            "conv1",
            3.1,
            interval=(2.9, 3.3),
            details={"secret": "slant", "permuted": {"value": 0.3}},
        ),
        row("leak.bits", "fc1", 1.5, interval=(1.2, 1.8), details={"secret": "slant"}),
        row("leak.bits", "fc2", 0.2, interval=(0.1, 0.3)),
        row("leak.effort", "conv1", 20),
        row("leak.effort", "fc1", 3),
        failed_row("leak.effort", "fc2", "the loss is NaN"),
        row("leak.total", None, 4.8),
        row("leak.bits", "fc1", 9.0, variant={"round": 1}),
        infinite_row("rank.deficit", "conv1"),
        row("rank.deficit", "fc1", 12),
        skipped_row("rank.deficit", "fc2", "row space is everything"),
        *(skipped_row("vinfo.vinfo", layer, NO_ATTRIBUTE) for layer in ("conv1", "fc1", "fc2")),
        data={
            "adapter": "digits",
            "records": 1797,
            "attributes": {"slant": {"left": 901, "right": 896}, "ink": {"light": 9, "heavy": 9}},
            "accuracy": {
                "metric": "accuracy",
                "value": 0.0989,
                "chance": 0.1013,
                "warning": "the model is no better than chance on these records",
            },
        },
    )


def shown(
    report: Report,
    width: int = 80,
    encoding: str = "utf-8",
    policy: Policy | None = None,
    *,
    every: bool = False,
) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_report(report, Console(file=stream, width=width), policy=policy, every=every)
    stream.seek(0)
    return stream.read()


AT_80 = """\
Privacy audit of shared gradients
date     2026-05-01 10:00 UTC
model    zoo:lenet, round-5.safetensors, 8,620 parameters, cross-entropy, eval
         mode; digits, 1,797 records, task accuracy 0.0989 (chance 0.101)
audited  gradients of 3 layers; no defense; no layer hidden; private attribute
         slant (left, right)

FAILED by the default policy
gets     A server can tell a batch's slant from conv1, and can rebuild records.
evidence leak.bits 3.10 [2.90, 3.30], lower end above limit 2. leak.total 4.80,
         above limit 0 (no interval).
do       Against the first: not sharing conv1, or noise added before sharing.
         Then measure again.
warning  the model is no better than chance on these records

layer  risk     attribute?    how free?
─────  ───────  ────────────  ──────────
conv1  high     3.10 (0.300)  infinite ~
fc1    medium   1.50          12 ~
fc2    unknown  0.200         –
attribute? leak.bits, how free? rank.deficit; (…) permuted attribute; ~ no rule
judged it; – not measured
whole model high: leak.total 4.80

high    a server can tell a batch's slant from conv1
        leak.bits 3.10 [2.90, 3.30], lower end above limit 2; permuted 0.300;
        helps: hiding conv1 (--hide), or noise (--defense)
high    a server can rebuild records
        leak.total 4.80, above limit 0 (no interval)
medium  a server can tell a batch's slant from fc1
        leak.bits 1.50 [1.20, 1.80], lower end above limit 1; chance 0; helps:
        hiding fc1 (--hide), or noise (--defense)

not tested: attribute ink; vinfo (no attribute is named); leak in fc2 (failed:
  the loss is NaN)
gradaudit 0.1.0, 95 % intervals, seed 0, cpu, 2026-05-01T10:00:00+00:00
--all: 2 more findings, every metric with its interval; -f json: 3 more rows
FAILED by the default policy: a server can tell a batch's slant from conv1, and
can rebuild records
"""

AT_40 = """\
layer  risk     attribute?    how free?
─────  ───────  ────────────  ──────────
conv1  high     3.10 (0.300)  infinite ~
fc1    medium   1.50          12 ~
fc2    unknown  0.200         –
"""

AT_30 = """\
layer  risk     attribute?
─────  ───────  ────────────
conv1  high     3.10 (0.300)
fc1    medium   1.50
fc2    unknown  0.200

layer  how free?
─────  ──────────
conv1  infinite ~
fc1    12 ~
fc2    –
"""

AS_CARDS = """\
features.0.a.very.long.name.of.a.layer
  risk        high
  attribute?  3.10
  how free?   –
fc1
  risk        not tested
  how free?   1 ~
"""


def test_the_whole_table_at_80_columns() -> None:
    assert shown(a_scan()) == AT_80


def test_columns_that_do_not_fit_move_into_a_band_below() -> None:
    assert AT_40 in shown(a_scan(), width=40)
    assert AT_30 in shown(a_scan(), width=30)


def test_a_name_that_leaves_no_room_makes_cards() -> None:
    name = "features.0.a.very.long.name.of.a.layer"
    report = make_report(
        row("leak.bits", name, 3.1, interval=(2.9, 3.3)),
        skipped_row("rank.deficit", name, "no"),
        row("rank.deficit", "fc1", 1),
        layers=[(name, "Conv2d", 108), ("fc1", "Linear", 8192)],
    )
    assert AS_CARDS in shown(report, width=40)


@pytest.mark.parametrize("width", [1, 20, 39, 80, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252"])
def test_no_name_is_ever_cut(width: int, encoding: str) -> None:
    names = ["a" * 150, "block.with-hyphens.and.dots." * 4 + "end", "two words", "0"]
    report = make_report(
        *(row("leak.bits", name, 3.0, interval=(2, 4)) for name in names),
        *(skipped_row("rank.deficit", name, f"odd {name}") for name in names),
        layers=[(name, "Linear", 10) for name in names],
    )
    text = shown(report, width=width, encoding=encoding)
    lines = text.splitlines()
    for name in names:
        assert sum(line.startswith(name) for line in lines) >= 1, name


@pytest.mark.parametrize("width", [80, 100])
def test_many_layers_stay_within_the_width(width: int) -> None:
    names = [f"layer{i // 16}.{i % 16}.conv{i % 3}" for i in range(64)]
    report = make_report(
        *(row("leak.bits", name, 3.0 * i, interval=(3 * i, 4 * i)) for i, name in enumerate(names)),
        *(row("rank.deficit", name, i * 1e4) for i, name in enumerate(names)),
        *(row("other.metric", name, i * 1e-4, interval=(0, 1)) for i, name in enumerate(names)),
        layers=[(name, "Conv2d", 36_864) for name in names],
    )
    lines = shown(report, width=width, every=True).splitlines()
    assert max(map(len, lines)) <= width
    assert all(any(line.split()[:1] == [name] for line in lines) for name in names)
    lines = shown(report, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert "a server can tell a batch's private attribute from 63 layers" in " ".join(lines)
    assert any("in layer3.15.conv0, lower end above limit 2" in line for line in lines)
    assert sum(line.split()[:1] == [name] for name in names for line in lines) == MOST_LAYERS
    assert (
        "the 12 riskiest are shown (--all shows all); 64 layers: 63 at high risk, 1 at low risk"
        in " ".join(lines)
    )


HOSTILE = [
    "w[/x]",
    "[link=https://evil]click",
    "[bold red]x",
    "a\x1b[31mb",
    "a\nb",
    "a\u202eb",
    ":smile:",
]


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_a_hostile_name_is_text(name: str) -> None:
    report = make_report(
        row("leak.bits", name, 3.0),
        skipped_row("rank.deficit", name, f"because of {name}"),
        row("rank.deficit", "fc1", 1.0),
        layers=[(name, name, 1), ("fc1", "Linear", 2)],
        model=name,
    )
    stream = io.StringIO()
    print_report(report, Console(file=stream, width=120, force_terminal=True, color_system=None))
    text = stream.getvalue()
    harmless = "".join(c if c.isprintable() else "\ufffd" for c in name)
    assert text.count(harmless) >= 5
    assert not {"\x1b", "\u202e"} & set(text)


def test_ascii_terminals_get_ascii() -> None:
    text = shown(a_scan(), encoding="ascii")
    expected = AT_80.replace("─", "-").replace("–", "-").replace("…", "...")
    assert text.split() == expected.split()
    named = make_report(row("leak.bits", "größe", 0.5), layers=[("größe", "Linear", 1)])
    assert "gr\\xf6\\xdfe" in shown(named, encoding="ascii")


def colours(monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    for key in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM"):
        monkeypatch.delenv(key, raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    stream = io.StringIO()
    print_report(a_scan(), Console(file=stream, width=80, force_terminal=True))
    return stream.getvalue()


def test_levels_have_colours_and_words(monkeypatch: pytest.MonkeyPatch) -> None:
    text = colours(monkeypatch, TERM="xterm-256color")
    assert "\x1b[1;31mhigh\x1b[0m" in text
    assert "\x1b[33mmedium\x1b[0m" in text
    plain = colours(monkeypatch, TERM="xterm-256color", NO_COLOR="1")
    assert "\x1b[31m" not in plain
    assert "\x1b[33m" not in plain
    assert "medium" in plain


def test_a_report_of_one_audit_shows_all_its_metrics() -> None:
    report = make_report(*(row(f"leak.{m}", "fc1", 1.0) for m in ("bits", "effort", "note")))
    assert "bits  effort  note" in shown(report)


def test_the_rows_of_a_sweep_are_shown_where_nothing_else_is() -> None:
    rows = [row("sweep.cap", None, i, variant={"defense": f"prune:{i}"}) for i in range(1, 30)]
    text = shown(make_report(*rows, layers=[]))
    assert "sweep.cap    defense=prune:24  24" in text
    assert "prune:25" not in text
    assert "-f json: 5 more rows" in text


def test_a_report_without_anything_says_so() -> None:
    text = shown(make_report(layers=[], data={}))
    assert "UNDECIDED by the default policy: no audit measured a number\n" in text


def test_the_findings_of_a_judged_report_make_the_risks() -> None:
    policy = Policy.model_validate(
        {
            "rules": [{"metric": "leak.bits", "max": 1, "layers": "fc*"}],
            "ignore": [{"metric": "leak.bits", "layers": "fc1", "reason": "accepted"}],
        }
    )
    for text in (shown(gate(a_scan(), policy)), shown(a_scan(), policy=policy)):
        assert "conv1  not tested" in text
        assert "fc1    high " in text
        assert "fc2    low " in text
        assert "high  a server can tell a batch's slant from fc1 (accepted by the policy)" in text
        assert "leak.bits 1.50 [1.20, 1.80], lower end above limit 1" in text
        assert "\nPASSED by its policy with warnings\ngets     A server can tell a batch's" in text


UNCLEAR_AT_80 = """\
UNDECIDED by the default policy
gets     It is open whether "leaked bits" is above 2 in conv1 and fc1; whether a
         server can rebuild records.
evidence leak.bits 1.80 [1.70, 2.90] in conv1, limit 2 inside the interval.
         leak.total 0 [-1, 1], limit 0 inside the interval.
do       On the first: about 30 times as many records or trials would settle it.
         On the second: the value lies at the limit; while it does, more records
         or trials will not settle it. Then measure again.
"""
LAST_AT_80 = """\
UNDECIDED by the default policy: whether "leaked bits" is above 2 in conv1 and
fc1 (about 30 times as many records or trials would settle it); whether a server
can rebuild records (the value lies at the limit; while it does, more records or
trials will not settle it)
"""
UNCLEAR_BELOW = """\
                                          leak
layer  risk           kind    parameters  bits
─────  ─────────────  ──────  ──────────  ──────────────────────
conv1  medium, high?  Conv2d         108  1.80 [1.70, 2.90] ?
fc1    low, high?     Linear       8,192  0.500 [0.0250, 2.98] ?
fc2    low            Linear         320  0.200 [0.100, 0.300]

whole model  value
───────────  ───────────
leak.total   0 [-1, 1] ?

high?          undecided whether a server can tell a batch's private attribute
               from fc1
               leak.bits 0.500 [0.0250, 2.98], limit 2 inside the interval;
               chance 0; about 2.7 times as many records or trials would settle
               it
high?          undecided whether a server can rebuild records
               leak.total 0 [-1, 1], limit 0 inside the interval; the value lies
               at the limit; while it does, more records or trials will not
               settle it
medium, high?  a server can tell a batch's private attribute from conv1
               leak.bits 1.80 [1.70, 2.90], lower end above limit 1; chance 0;
               helps: hiding conv1 (--hide), or noise (--defense)
"""


def test_what_is_not_excluded_stands_beside_what_is_shown() -> None:
    report = make_report(
        row("leak.bits", "conv1", 1.8, interval=(1.7, 2.9)),
        row("leak.bits", "fc1", 0.5, interval=(0.025, 2.975)),
        row("leak.bits", "fc2", 0.2, interval=(0.1, 0.3)),
        row("leak.total", None, 0.0, interval=(-1, 1)),
    )
    text = shown(report)
    assert UNCLEAR_AT_80 in text
    assert text.endswith(LAST_AT_80)
    assert UNCLEAR_BELOW in text


def test_a_layer_that_several_runs_looked_at_is_named_once() -> None:
    rows = [
        row("leak.bits", "fc1", value, interval=ends, variant={"leak": name})
        for name, value, ends in (("a", 1.5, (1.2, 1.9)), ("b", 1.7, (1.1, 1.8)), ("c", 1, (0, 3)))
    ]
    headline = row("leak.bits", "fc1", 1.7, details={"riskiest_by": ["leak"]})
    text = " ".join(shown(make_report(headline, *rows)).split())
    assert "medium, high? a server can tell a batch's private attribute from fc1 leak.bits" in text
    assert "leak.bits 1.70 [1.10, 1.80] (b), lower end above limit 1" in text
    assert "medium?" not in text


@pytest.mark.parametrize("suffix", [".txt", ".md", ".html"])
def test_a_doubt_about_a_number_stands_with_it(suffix: str, tmp_path: Path) -> None:
    because = "12 disjoint batches for a value; 20 are needed"
    few = {"warning": "only 4 repetitions"}
    report = make_report(
        row("leak.bits", "conv1", 0.0, details={"imprecise": True, "imprecise_because": because}),
        row("leak.bits", "fc1", 0.5, details=few),
        row("leak.bits", "fc2", 0.5, details=few),
        row("leak.total", None, -1.0),
    )
    path = tmp_path / f"report{suffix}"
    format_for(path).write(report, path)
    text = path.read_text(encoding="utf-8").replace("`", "").replace("<code>", "")
    assert f"! leak.bits in conv1: {because}" in text.replace("</code>", "")
    assert "! leak.bits in fc1 and fc2: only 4 repetitions" in text.replace("</code>", "")
    assert text.count("0.500 !") >= 2


def test_files_get_the_plain_table(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    format_for(path).write(a_scan(), path)
    assert path.read_text() == shown(a_scan(), width=100)
    assert format_named("table").render(a_scan()) == shown(a_scan(), width=100)


def test_what_was_done_to_checkpoints_is_told() -> None:
    report = make_report(row("leak.bits", "conv1", 1.0))
    (first,) = report.target.checkpoints
    first.notes.append("stripped the prefix module.")
    assert "\nfitted   stripped the prefix module.\n" in shown(report)
    report.target.checkpoints.append(first.model_copy(update={"file": "two.pt", "notes": []}))
    assert "\nfitted   round-5.safetensors: stripped the prefix module.\n" in shown(report)


def test_metrics_that_were_not_measured_are_named_beside_those_that_were() -> None:
    reason = "needs more trials"
    metrics = ("leak.effort", "leak.note")
    rows = [row("leak.total", None, 4.8), *(skipped_row(m, None, reason) for m in metrics)]
    some = shown(make_report(*rows), every=True)
    assert f"leak.effort, leak.note not tested: {reason}" in some
    nothing = shown(make_report(*rows[1:]))
    assert f"; leak ({reason}); rank" in " ".join(nothing.split())


@pytest.mark.parametrize("suffix", [".txt", ".md", ".html"])
def test_a_remark_on_a_number_of_the_whole_model_is_shown(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"report{suffix}"
    report = make_report(
        row("leak.total", None, 4.8, details={"remark": "an estimate <b>only</b>"})
    )
    format_for(path).write(report, path)
    text = path.read_text(encoding="utf-8")
    assert "an estimate" in text
    assert ("<b>only</b>" in text) is (suffix == ".txt")
