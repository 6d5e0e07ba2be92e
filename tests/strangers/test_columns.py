"""A table's columns reach the model as the file has them, and what is done to them is said."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import run
from report_builder import make_report
from torch import nn

from gradaudit.config import read_file
from gradaudit.data import describe, load_records
from gradaudit.errors import UsageError
from gradaudit.evidence.redaction import redact
from gradaudit.formats import format_named
from gradaudit.report import Report
from gradaudit.view import view

TABLE = (
    "age,joined,job,height,y",
    "20,2020-01-31,clerk,1.5,low",
    "40,2020-02-28,?,1.6,high",
    ",2020-01-31,cook,1.7,low",
    "70,2020-02-28,clerk,1.8,high",
)
"""A missing number (median 40), a missing text, dates, and a quantity as the attribute."""
SAID = (
    "labels encoded: high → 0 and low → 1; "
    "columns as the file has them; missing numbers filled with the median of their column: age (1);"
    " categories as one-hot groups: joined (2) and job (3); a missing text is a category of its "
    "own: job (1); private quantities split at their median: height"
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    path.write_text("\n".join(TABLE) + "\n")
    return path


def report_of(spec: str) -> Report:
    return make_report(data=describe(load_records(spec)))


def test_numbers_are_as_in_the_file_unless_asked_otherwise(table: Path) -> None:
    records = load_records(f"csv:{table}?label=y&drop=joined,job")
    assert records.inputs.tolist() == [
        [20, 1.5],
        [40, pytest.approx(1.6)],
        [40, pytest.approx(1.7)],
        [70, pytest.approx(1.8)],
    ]
    ages = np.array([20, 40, 40, 70], dtype=np.float64)
    standard = load_records(f"csv:{table}?label=y&drop=joined,job&scale=standard")
    np.testing.assert_allclose(
        standard.inputs[:, 0].numpy(), (ages - ages.mean()) / ages.std(), atol=1e-6
    )


def test_a_parquet_file_gives_the_same_columns(table: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    csv, parquet = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.parquet")
    read = csv.read_csv(table, convert_options=csv.ConvertOptions(null_values=["", "?"]))
    parquet.write_table(arrow.table(read), table.with_suffix(".parquet"))
    one = load_records(f"csv:{table}?label=y&attribute=height")
    other = load_records(f"parquet:{table.with_suffix('.parquet')}?label=y&attribute=height")
    assert torch.equal(one.inputs, other.inputs)
    assert one.notes == other.notes


def test_the_scope_says_every_imputation_encoding_and_scaling(table: Path) -> None:
    report = report_of(f"csv:{table}?label=y&attribute=height")
    assert dict(view(report).scope.changes)["data"] == SAID
    scaled = report_of(f"csv:{table}?label=y&scale=standard&columns=codes&drop=joined")
    assert dict(view(scaled).scope.changes)["data"] == (
        "labels encoded: high → 0 and low → 1; "
        "number columns standardised over these records (mean 0, deviation 1); missing numbers "
        "filled with the median of their column: age (1); categories as codes: job (3); a missing "
        "text is a category of its own: job (1); left out on request: joined"
    )


@pytest.mark.parametrize("name", ["table", "markdown", "html", "junit", "sarif"])
def test_every_format_says_so(table: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(f"csv:{table}?label=y&attribute=height")
    format_named(name, every=False).show(report, None)
    shown = " ".join(capsys.readouterr().out.split())
    for clause in ("columns as the file has them", "joined (2)", "median"):
        assert clause in shown


def test_columns_in_the_notes_are_private_words(table: Path) -> None:
    text = redact(report_of(f"csv:{table}?label=y&attribute=height")).model_dump_json()
    for name in ("age", "joined", "job", "height"):
        assert f'"{name}"' not in text


Make = Callable[[float, float], None]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A table of incomes, and a linear model of (income − centre) / spread > 0."""
    monkeypatch.chdir(tmp_path)
    incomes = np.random.default_rng(0).normal(50_000, 20_000, 200).round(2)
    lines = [f"{income},{'rich' if income > incomes.mean() else 'poor'}" for income in incomes]
    Path("t.csv").write_text("\n".join(["income,y", *lines]) + "\n")
    Path("net.py").write_text("from torch import nn\ndef net():\n    return nn.Linear(1, 2)\n")

    def make(centre: float, spread: float) -> None:
        net = nn.Linear(1, 2)
        with torch.no_grad():
            net.weight.copy_(torch.tensor([[0.0], [5 / spread]]))
            net.bias.copy_(torch.tensor([0.0, -5 * centre / spread]))
        torch.save(net.state_dict(), "w.pt")

    return make


INIT = ("init", "-m", "net.py:net", "-c", "w.pt", "-d", "csv:t.csv?label=y")


@pytest.mark.slow
def test_init_writes_the_scale_that_the_model_was_trained_with(model: Make) -> None:
    model(0, 1)
    assert run(*INIT).status == 0
    text = Path("gradaudit.yaml").read_text()
    assert read_file(Path("gradaudit.yaml"))["data"] == "csv:t.csv?label=y&scale=standard"
    comments = " ".join(text.replace("\n# ", " ").split())
    assert "The model does better with scale=standard." in comments
    assert "scale=none: columns from" in comments
    assert "task accuracy 1" in comments


@pytest.mark.slow
def test_init_keeps_the_columns_of_a_model_of_raw_ones(model: Make) -> None:
    model(50_000, 20_000)
    assert run(*INIT).status == 0
    assert read_file(Path("gradaudit.yaml"))["data"] == "csv:t.csv?label=y&scale=none"
    assert "The model does better with scale=none." in Path("gradaudit.yaml").read_text()


@pytest.mark.slow
def test_init_says_where_nothing_tells_the_scales_apart(model: Make) -> None:
    model(10 * 50_000, 1e9)
    assert run(*INIT).status == 0
    comments = " ".join(Path("gradaudit.yaml").read_text().replace("\n# ", " ").split())
    assert "The model does as well with either scale" in comments


@pytest.mark.slow
def test_init_leaves_a_scale_that_was_said(model: Make) -> None:
    model(0, 1)
    assert run(*INIT[:-1], f"{INIT[-1]}&scale=none").status == 0
    assert read_file(Path("gradaudit.yaml"))["data"] == "csv:t.csv?label=y&scale=none"
    assert "does better" not in Path("gradaudit.yaml").read_text()


@pytest.mark.slow
def test_a_model_at_chance_is_told_of_the_other_scale(model: Make) -> None:
    model(0, 1)
    done = run("forward", *INIT[1:], "-q", width=1000)
    assert "the columns are as the file has them; say scale=standard in --data" in done.out


def test_pictures_are_not_standardised_without_a_word(tmp_path: Path) -> None:
    pictures = np.zeros((4, 5, 5), dtype=np.uint8)
    np.savez(tmp_path / "p.npz", x=pictures, y=np.arange(4) % 2)
    with pytest.raises(UsageError, match="scale=standard is for a table"):
        load_records(f"npz:{tmp_path / 'p.npz'}?inputs=x&label=y&scale=standard&normalize=0.5,0.5")
