"""``render``, ``compare``, ``list`` and ``schema`` as a user meets them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import HANGS, Result, expect_light, invoke_raw, run
from report_builder import make_report, row, saved, skipped_row

from gradaudit.cli import build
from gradaudit.cli.commands.listing import KINDS, SCHEMAS, schema_of
from gradaudit.formats import format_named

pytestmark = pytest.mark.usefixtures("two_audits")

M = "leak.bits"


def test_render_prints_the_table(tmp_path: Path) -> None:
    report = saved(tmp_path, row(M, "fc1", 1.5))
    done = run("render", report)
    assert done.status == 0
    assert done.out == format_named("table").render(make_report(row(M, "fc1", 1.5)))
    assert done.err == ""


def test_render_writes_files_and_prints_only_what_is_asked_for(tmp_path: Path) -> None:
    report = saved(tmp_path, row(M, "fc1", 1.5))
    markdown, copy = tmp_path / "r.md", tmp_path / "copy.json"
    assert run("render", report, "-o", markdown, "-o", copy) == Result(0, "", "")
    assert copy.read_bytes() == report.read_bytes()
    done = run("render", report, "-f", "markdown", "-o", tmp_path / "r.txt")
    assert done.out == markdown.read_text()
    assert (tmp_path / "r.txt").read_text() == run("render", report).out


def test_render_refuses_an_unknown_suffix_before_it_writes(tmp_path: Path) -> None:
    report = saved(tmp_path, row(M, "fc1", 1.5))
    done = run("render", report, "-o", tmp_path / "r.md", "-o", tmp_path / "r.doc")
    assert done.status == 2
    assert not (tmp_path / "r.md").exists()


@pytest.mark.parametrize("width", [10, 40, 80])
def test_names_are_whole_at_any_width(tmp_path: Path, width: int) -> None:
    name = "encoder.layers.0.self_attn.out_proj"
    layers = [(name, "Linear", 1)]
    report = saved(tmp_path, row(M, name, 1.5), layers=layers)
    later = saved(tmp_path, row(M, name, 2.5), name="later.json", layers=layers)
    for command in (["render", report], ["gate", report], ["compare", report, later]):
        assert name in run(*command, width=width).out


COMPARED = """\
1 worse, 0 better, 1 crossed a limit; 5 rows changed, 1 not beyond their error
layer          metric        old → new       change        reading
─────────────  ────────────  ──────────────  ────────────  ───────────────────
fc1            leak.bits     1 → 3           +2 (+200 %)   worse, beyond max 2
fc2            rank.deficit  7 → 6           -1 (-14.3 %)
fc2            leak.bits     absent → 0.500
(whole model)  leak.total    2 → skipped
conv1          leak.bits     0.100 → absent
"""


def two_reports(folder: Path) -> list[Path]:
    old = saved(
        folder,
        row(M, "conv1", 0.1),
        row(M, "fc1", 1, interval=(0.5, 1.5)),
        row("leak.total", None, 2),
        row("rank.deficit", "fc1", 7),
        row("rank.deficit", "fc2", 7),
        row(M, "fc1", 1, variant={"round": 1}),
        name="old.json",
    )
    new = saved(
        folder,
        row(M, "fc2", 0.5),
        row("rank.deficit", "fc2", 6),
        row(M, "fc1", 3, interval=(2.5, 3.5)),
        skipped_row("leak.total", None, "no"),
        row("rank.deficit", "fc1", 7),
        row(M, "fc1", 2, variant={"round": 1}),
        name="new.json",
    )
    return [old, new]


def compared(*arguments: object, width: int = 100) -> str:
    """What `compare` prints below the verdicts."""
    done = run("compare", *arguments, width=width)
    assert (done.status, done.err) == (0, "")
    return done.out.split("\n\n", 1)[1]


def test_compare_shows_what_changed(tmp_path: Path) -> None:
    assert compared(*two_reports(tmp_path), width=80) == COMPARED
    above = run("compare", *two_reports(tmp_path)).out.splitlines()[:3]
    assert [line.rpartition("/")[2] for line in above] == [
        "old.json: FAILED by the default policy",
        "new.json: FAILED by the default policy",
        "came: HIGH The private attribute of a batch is inferred (fc1), was open",
    ]
    wide = run("compare", *two_reports(tmp_path)).out
    assert "  1 [0.500, 1.50] → 3 [2.50, 3.50]  +2 (+200 %)" in wide
    bands = run("compare", *two_reports(tmp_path), width=60).out.splitlines()
    assert [line.split()[:2] for line in bands].count(["fc1", "leak.bits"]) == 2
    assert "leak.bits (round=1)" in run("compare", *two_reports(tmp_path), "--variants").out


def test_compare_as_json_and_markdown(tmp_path: Path) -> None:
    reports = two_reports(tmp_path)
    listed = json.loads(run("compare", *reports, "-f", "json").out)
    assert [(entry["layer"], entry["difference"]) for entry in listed] == [
        ("fc2", None),
        ("fc2", -1.0),
        ("fc1", 2.0),
        (None, None),
        ("fc1", 0.0),
        ("conv1", None),
    ]
    assert compared(*reports, "-f", "markdown") == (
        "1 worse, 0 better, 1 crossed a limit; 5 rows changed, 1 not beyond their error\n"
        "\n"
        "| layer | metric | old → new | change | reading |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| `fc1` | `leak.bits` | 1 [0.500, 1.50] → 3 [2.50, 3.50] | +2 (+200 %) | "
        "worse, beyond max 2 |\n"
        "| `fc2` | `rank.deficit` | 7 → 6 | -1 (-14.3 %) |  |\n"
        "| `fc2` | `leak.bits` | absent → 0.500 |  |  |\n"
        "| `(whole model)` | `leak.total` | 2 → skipped |  |  |\n"
        "| `conv1` | `leak.bits` | 0.100 → absent |  |  |\n"
    )


def test_compare_of_a_report_with_itself(tmp_path: Path) -> None:
    old, _ = two_reports(tmp_path)
    assert compared(old, old) == (
        "0 worse, 0 better, 0 crossed a limit; 0 rows changed, 5 not beyond their error\n"
    )


def test_compare_shows_ten_rows_unless_all_are_asked_for(tmp_path: Path) -> None:
    old, new = (
        saved(tmp_path, *(row(M, f"fc{i}", 0.1 * j) for i in range(30)), name=f"{j}.json")
        for j in (1, 2)
    )
    short = compared(old, new).splitlines()
    assert short[0] == (
        "30 worse, 0 better, 0 crossed a limit; 30 rows changed, 0 not beyond their error"
    )
    assert (len(short), short[-1]) == (14, "20 more rows changed (--all shows them)")
    assert len(compared(old, new, "--all").splitlines()) == 33
    marked = compared(old, new, "-f", "markdown").splitlines()
    assert (len(marked), marked[-1]) == (16, "20 more rows changed (--all shows them)")


def rounds(folder: Path, *values: float) -> list[Path]:
    """Reports with one layer that has these values, half a bit to either side, and one at rest."""
    return [
        saved(
            folder,
            row(M, "fc1", value, interval=(value - 0.5, value + 0.5)),
            row("leak.effort", "fc2", value, details={"known_to": [value - 9, value + 9]}),
            name=f"r{number}.json",
        )
        for number, value in enumerate(values, start=1)
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, 1.2, 0.9), []),
        ((1, 1, 3), [(1, 3, "worse")]),
        ((3, 1, 3), [(1, 2, "better"), (2, 3, "worse")]),
        ((1, 1.6, 2.2, 2.8), [(1, 3, "worse")]),
    ],
)
def test_compare_of_several_reports_counts_a_slow_drift(
    values: tuple[float, ...], expected: list[tuple[int, int, str]], tmp_path: Path
) -> None:
    found = json.loads(run("compare", *rounds(tmp_path, *values), "-f", "json").out)
    turns = {
        entry["layer"]: [(x["from"], x["to"], x["direction"]) for x in entry["turns"]]
        for entry in found["rows"]
    }
    assert turns == {"fc1": expected, "fc2": []}
    assert [entry["value"] for entry in found["rows"][0]["rows"]] == list(values)


def test_compare_of_several_reports_shows_each_layers_trend(tmp_path: Path) -> None:
    reports = rounds(tmp_path, 0.6, 3, 3.1)
    lines = compared(*reports, width=400).splitlines()
    assert lines[0] == (
        f"1 {reports[0]}, 2 {reports[1]}, 3 {reports[2]}: 1 changes for the worse, 0 for the "
        "better; luck alone would show about 0.0 of 2 comparisons"
    )
    assert [line.split()[0] for line in lines[1:]] == ["layer", "─────", "fc1"]
    trend = "worse 1 → 2, beyond max 2"
    assert lines[3].split("  ")[-1] == trend
    marked = compared(*reports, "-f", "markdown").splitlines()
    values = "0.600 [0.100, 1.10] → 3 [2.50, 3.50] → 3.10 [2.60, 3.60]"
    assert marked[2:] == [
        "| layer | metric | values | trend |",
        "| --- | --- | --- | --- |",
        f"| `fc1` | `leak.bits` | {values} | {trend} |",
    ]


def test_compare_of_one_report_is_refused(tmp_path: Path) -> None:
    old, _ = two_reports(tmp_path)
    done = run("compare", old)
    assert (done.status, done.err) == (
        2,
        f"gradaudit: {old}: is one report; name a later one too\n",
    )


def test_compare_tells_that_models_differ(tmp_path: Path) -> None:
    old = saved(tmp_path, name="old.json", layers=[("fc1", "Linear", 1)])
    new = saved(tmp_path, name="new.json", layers=[("fc1", "Linear", 2)])
    done = run("compare", old, new)
    note = f"{old} has other kinds or sizes of the layers fc1"
    assert (note in done.out.splitlines(), done.err) == (True, "")
    assert f"gradaudit: {note}\n" in run("compare", old, new, "-f", "json").err
    assert run("compare", old, new, "-f", "json", "-q").err == ""
    other = saved(tmp_path, name="other.json", layers=[("a", "Linear", 1)], model="zoo:mlp")
    assert run("compare", old, other).status == 0


def test_list_shows_every_kind() -> None:
    done = run("list", width=200)
    assert done.status == 0
    headings = [line.rstrip(":") for line in done.out.splitlines() if not line.startswith(" ")]
    assert headings == list(KINDS)
    assert "  markdown (.md)" in done.out
    assert "  lenet " in done.out
    assert "  digits " in done.out
    assert "  leak.bits     Leaked bits (bit)\n" in done.out


@pytest.mark.parametrize("kind", list(KINDS))
def test_list_of_one_kind(kind: str) -> None:
    done = run("list", kind, "-f", "json")
    assert done.status == 0
    assert json.loads(done.out) == {kind: dict(KINDS[kind]())}
    assert all(summary for summary in json.loads(done.out)[kind].values())


def test_methods_are_reconstructions() -> None:
    assert run("list", "methods") == run("list", "reconstructions")


def test_list_of_an_unknown_kind() -> None:
    done = run("list", "nonsense")
    assert done.status == 2
    assert done.err.startswith("gradaudit: list nonsense: no such kind; there are: audits,")


def test_the_listed_losses_are_those_there_are() -> None:
    from gradaudit.models.losses import BUILT_IN

    assert sorted(KINDS["losses"]()) == sorted(BUILT_IN)


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_prints_what_is_published(name: str) -> None:
    done = run("schema", name)
    assert done.status == 0
    assert json.loads(done.out) == schema_of(name)


def test_schema_is_of_the_report_unless_told() -> None:
    assert run("schema").out == run("schema", "report").out
    assert run("schema", "nonsense").status == 2


@pytest.mark.slow
def test_nothing_here_imports_torch(tmp_path: Path) -> None:
    updates = {"closest": [0.05] + [0.9] * 35, "closest_by_chance": [0.9] * 36}
    method = {"attack": "reconstruct", "method": "dlg"}
    error = row("attack.relative_error", None, 0.5, details=updates)
    copied = row("attack.relative_error", None, 0.5, variant=method, details=updates)
    report = saved(tmp_path, row(M, "fc1", 1.5), error, copied)
    expect_light(
        [
            ["schema", "config"],
            ["list"],
            ["render", report],
            ["compare", report, report],
            ["gate", report, "-o", tmp_path / "o.md", "--baseline", report],
            ["gate", report, "-o", tmp_path / "o.html", "-o", tmp_path / "o.sarif"],
        ],
        {"torch", "numpy", "scipy", "sklearn"},
    )


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A report with a name that not every encoding has."""
    return saved(tmp_path, row(M, "größe層", 1.5), layers=[("größe層", "Linear", 1)])


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_any_encoding_of_standard_output_will_do(
    encoding: str, foreign: Path, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules: [{metric: leak.bits, max: 1}]")
    gate = ["gate", "--policy", policy]
    for arguments in (["render"], gate, ["render", "-f", "markdown"], ["render", "-f", "json"]):
        status, out, err = invoke_raw(build(), *arguments, foreign, encoding=encoding, COLUMNS="60")
        assert status in (0, 1), err
        assert err == b""
        text = out.decode("utf-8" if "-f" in arguments else encoding)
        assert ("größe層" in text) == ("-f" in arguments or encoding == "utf-8")


@pytest.mark.slow
def test_a_process_whose_standard_output_is_ascii(foreign: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gradaudit", "render", str(foreign)],
        capture_output=True,
        timeout=HANGS,
        check=True,
        env={"PYTHONIOENCODING": "ascii", "COLUMNS": "60"},
    )
    assert done.stderr == b""
    assert "1.5" in done.stdout.decode("ascii")
