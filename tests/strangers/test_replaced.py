"""What the command line names in place of a file's model or data drops what was said of it."""

from pathlib import Path
from typing import Any

import pytest
from command_line import run

from gradaudit.cli.flags import without_replaced

FILE: dict[str, Any] = {
    "model": "zoo:mlp?inputs=10&classes=2",
    "checkpoint": (Path("a.pt"),),
    "prefix": "a.=",
    "data": "csv:people.csv?label=y",
    "attribute": ("sex",),
    "expected_accuracy": 0.9,
    "hide": ("fc1",),
    "seed": 3,
}


@pytest.mark.parametrize(
    ("flags", "dropped"),
    [
        ({}, set()),
        ({"model": None, "data": None}, set()),
        ({"data": "digits"}, {"attribute", "expected_accuracy"}),
        ({"data": "digits", "attribute": ["ink"]}, {"expected_accuracy"}),
        ({"data": "csv:people.csv?label=y&scale=standard"}, set()),
        ({"data": FILE["data"]}, set()),
        ({"model": FILE["model"]}, set()),
        ({"model": "zoo:lenet"}, {"checkpoint", "prefix", "hide", "expected_accuracy"}),
        (
            {"model": "zoo:lenet", "checkpoint": [Path("b.pt")]},
            {"prefix", "hide", "expected_accuracy"},
        ),
        ({"checkpoint": [Path("b.pt")]}, {"prefix", "expected_accuracy"}),
        ({"checkpoint": [Path("a.pt")]}, set()),
        ({"seed": 4}, set()),
    ],
)
def test_what_belonged_to_it_is_dropped(flags: dict[str, Any], dropped: set[str]) -> None:
    left, names = without_replaced(FILE, flags)
    assert set(names) == dropped
    assert left == {name: value for name, value in FILE.items() if name not in dropped}


def test_an_attribute_without_data_in_the_file_is_of_any_data() -> None:
    assert without_replaced({"attribute": ("sex",)}, {"data": "digits"})[1] == ()


@pytest.mark.slow
def test_other_data_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gradaudit.yaml").write_text(
        "model: zoo:mlp?inputs=10&classes=2\ndata: diabetes\nattribute: [sex]\n"
    )
    Path("t.csv").write_text("a,y\n" + "".join(f"{i % 7}.5,{i % 2}\n" for i in range(40)))
    told = ("scan", "--dry-run", "-m", "zoo:mlp?inputs=1&classes=2", "-d", "csv:t.csv?label=y")
    done = run(*told)
    assert done.status == 0, done.err
    assert "attribute of gradaudit.yaml left out: they describe what the command line" in done.err
    plain = run("scan", "--dry-run")
    assert plain.err == "gradaudit: options of gradaudit.yaml (flags win over it)\n"
    quiet = run(*told, "-q")
    assert (quiet.status, quiet.err) == (0, "")
    assert run(*told, "-a", "sex").status == 2
