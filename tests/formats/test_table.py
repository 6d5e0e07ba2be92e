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
FAILED by the default policy
zoo:lenet, round-5.safetensors, 8,620 parameters, cross-entropy, eval mode;
digits, 1,797 records, task accuracy 0.0989 (chance 0.101)
warning  the model is no better than chance on these records

Findings  (--all: 1 UNKNOWN more)
HIGH     The slant of a batch is inferred.  conv1
         bits 3.10 [2.90, 3.30]; limit ≤ 2
HIGH     Records are reconstructed.  whole update
         total 4.80; limit ≤ 0
MEDIUM   The slant of a batch is inferred.  fc1
         bits 1.50 [1.20, 1.80]; limit ≤ 1
MEDIUM   Effort: beyond its limit.  fc1
         leak.effort 3; limit ≥ 10

                  slant        rank
Layers  severity  bits (null)  rank.deficit
──────  ────────  ───────────  ────────────
conv1   HIGH      3.10 (0.30)  infinite
fc1     MEDIUM    1.50         12
fc2     UNKNOWN   0.200        –

What to do  The slant of a batch is inferred: hiding conv1 (--hide), or noise
            (--defense). Effort: beyond its limit: hiding fc1 (--hide). Then
            measure again.
Assumptions The attacker sees gradients of 3 layers; no defense; no layer
            hidden.
Not tested  attribute ink (not asked for); vinfo (not applicable); leak.effort
            in fc2 (failed: the loss is NaN)
gradaudit 0.1.0, 95 % intervals, seed 0, cpu, 2026-05-01 10:00; --all: the rest
"""

AT_40 = """\
                  slant
Layers  severity  bits (null)
──────  ────────  ───────────
conv1   HIGH      3.10 (0.30)
fc1     MEDIUM    1.50
fc2     UNKNOWN   0.200

        rank
Layers  rank.deficit
──────  ────────────
conv1   infinite
fc1     12
fc2     –
"""

AS_CARDS = """\
features.0.a.very.long.name.of.a.layer
  severity           HIGH
  attribute.bits     3.10
  rank.rank.deficit  –
fc1
  severity           –
  rank.rank.deficit  1
"""


def test_the_whole_table_at_80_columns() -> None:
    assert shown(a_scan()) == AT_80


def test_columns_that_do_not_fit_move_into_a_band_below() -> None:
    assert AT_40 in shown(a_scan(), width=40)
    assert AT_40 in shown(a_scan(), width=30)


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
    assert any("attribute of a batch is inferred.  63 layers" in line for line in lines)
    assert any("in layer3.15.conv0; limit ≤ 2" in line for line in lines)
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
    assert text.count(harmless) >= 4
    assert not {"\x1b", "\u202e"} & set(text)


def test_ascii_terminals_get_ascii() -> None:
    text = shown(a_scan(), encoding="ascii")
    expected = AT_80.replace("─", "-").replace("–", "-").replace("≤", "<=").replace("≥", ">=")
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
    assert "\x1b[1;31mHIGH\x1b[0m" in text
    assert "\x1b[33mMEDIUM\x1b[0m" in text
    plain = colours(monkeypatch, TERM="xterm-256color", NO_COLOR="1")
    assert "\x1b[31m" not in plain
    assert "\x1b[33m" not in plain
    assert "MEDIUM" in plain


def test_a_report_of_one_audit_shows_all_its_metrics() -> None:
    report = make_report(*(row(f"leak.{m}", "fc1", 1.0) for m in ("bits", "effort", "note")))
    assert "bits  effort  note" in shown(report)


def test_the_rows_of_a_sweep_are_shown_where_nothing_else_is() -> None:
    rows = [row("sweep.cap", None, i, variant={"defense": f"prune:{i}"}) for i in range(1, 30)]
    text = shown(make_report(*rows, layers=[]))
    assert "sweep.cap    defense=prune:24  24" in text
    assert "prune:25" not in text
    assert "--all: the rest" in text


def test_a_report_without_anything_says_so() -> None:
    text = shown(make_report(layers=[], data={}))
    assert text.startswith("UNDECIDED by the default policy\n")
    assert "UNKNOWN  No audit measured a number.\n" in text


def test_the_findings_of_a_judged_report_make_the_risks() -> None:
    policy = Policy.model_validate(
        {
            "rules": [{"metric": "leak.bits", "max": 1, "layers": "fc*"}],
            "ignore": [{"metric": "leak.bits", "layers": "fc1", "reason": "accepted"}],
        }
    )
    for text in (shown(gate(a_scan(), policy)), shown(a_scan(), policy=policy)):
        assert "conv1   – " in text
        assert "fc1     HIGH " in text
        assert "fc2     LOW " in text
        assert "HIGH     The slant of a batch is inferred (accepted by the policy).  fc1" in text
        assert "bits 1.50 [1.20, 1.80]; ignored: accepted; limit ≤ 1" in text
        accepted = "but the policy accepts 1 row that is not within the limit"
        assert text.startswith(f"PASSED by its policy with warnings, {accepted}\n")


UNCLEAR_AT_80 = """\
UNDECIDED by the default policy
zoo:lenet, round-5.safetensors, 8,620 parameters, cross-entropy, eval mode;
digits, 1,797 records

Findings
MEDIUM   The private attribute of a batch is inferred.  conv1
         bits 1.80 [1.70, 2.90], HIGH not excluded; limit ≤ 1
OPEN     Is the private attribute of a batch inferred?  fc1
         bits 0.500 [0.0250, 2.98]; limit ≤ 2; about 2.7 times as many records
         or trials would settle it
OPEN     Are records reconstructed?  whole update
         total 0 [-1, 1]; limit ≤ 0; the value lies at the limit; while it does,
         more records or trials will not settle it

                                          leak
Layers  severity      kind    parameters  bits
──────  ────────────  ──────  ──────────  ────────────────────
conv1   MEDIUM, OPEN  Conv2d         108  1.80 [1.70, 2.90]
fc1     OPEN          Linear       8,192  0.500 [0.0250, 2.98]
fc2     LOW           Linear         320  0.200 [0.100, 0.300]

whole model  value
───────────  ─────────
leak.total   0 [-1, 1]

What to do  The private attribute of a batch is inferred: hiding conv1 (--hide),
            or noise (--defense). Then measure again.
Assumptions The attacker sees gradients of 3 layers; no defense; no layer
            hidden.
Not tested  rank (not asked for)
gradaudit 0.1.0, 95 % intervals, seed 0, cpu, 2026-05-01 10:00
"""


def test_what_is_not_excluded_stands_beside_what_is_shown() -> None:
    report = make_report(
        row("leak.bits", "conv1", 1.8, interval=(1.7, 2.9)),
        row("leak.bits", "fc1", 0.5, interval=(0.025, 2.975)),
        row("leak.bits", "fc2", 0.2, interval=(0.1, 0.3)),
        row("leak.total", None, 0.0, interval=(-1, 1)),
    )
    assert shown(report) == UNCLEAR_AT_80


def test_a_layer_that_several_runs_looked_at_is_named_once() -> None:
    rows = [
        row("leak.bits", "fc1", value, interval=ends, variant={"leak": name})
        for name, value, ends in (("a", 1.5, (1.2, 1.9)), ("b", 1.7, (1.1, 1.8)), ("c", 1, (0, 3)))
    ]
    headline = row("leak.bits", "fc1", 1.7, details={"riskiest_by": ["leak"]})
    text = " ".join(shown(make_report(headline, *rows)).split())
    assert (
        "MEDIUM The private attribute of a batch is inferred. fc1 bits 1.70 [1.10, 1.80] (b), "
        in text
    )
    assert "HIGH not excluded; limit ≤ 1" in text
    assert text.count("of a batch") == 2  # and in the advice


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
    assert "leak (not applicable)" in " ".join(nothing.split())


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


SEEN = {"secret": "slant", "permuted": {"value": 0.5}, "effort": "quick", "batch_size": 32}


def ten_layers() -> Report:
    """A scan of ten layers in which every question has findings, shown and open."""
    names = [f"features.{i}" for i in range(9)] + ["classifier"]
    rows = [
        row("attack.relative_error", None, 1e-9, details={"closest": [1e-9] * 4, **SEEN}),
        row("copa-metric.c", None, 0.0),
        row("attack.record_auroc", None, 0.95, interval=(0.92, 0.97), details=SEEN),
    ]
    for name in names:
        rows += [
            row("attack.record_auroc", name, 0.7, interval=(0.65, 0.75), details=SEEN),
            row("vinfo.auroc", name, 0.79, interval=(0.65, 0.88), details=SEEN, n=100),
            row("sensitivity.label_f_decile", name, 1_014, interval=(876, 1_246)),
            row("copa-metric.rank_deficit", name, 0),
        ]
    return make_report(*rows, layers=[(name, "Conv2d", 36_864) for name in names])


def test_a_report_of_ten_layers_takes_at_most_40_lines_of_80_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()  # the installed audits, with their limits and sentences
    lines = shown(ten_layers()).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    starts = [line.split("  ")[0] for line in lines]
    order = ["FAILED by the default policy", "Findings", "HIGH", "OPEN", "Layers", "What to do"]
    places = [starts.index(word) for word in order]
    assert places == sorted(places)
    text = "\n".join(lines)
    assert "OPEN     Is the slant of a batch inferred?  every layer" in text
    assert "relative error 1.00e-9, 4 of 4 records [40 %, 100 %]; limit ≥ 0.1" in text
    assert text.index("What to do") < text.index("Assumptions") < text.index("Not tested")
