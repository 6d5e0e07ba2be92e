"""A mistake in a command ends in one line, without a report."""

from pathlib import Path

import pytest

from gradaudit.audits.base import methods_at_commas
from tests.command_line import run

TABLE = ("-m", "zoo:mlp?inputs=10", "-d", "diabetes")
MECHANISM = "class Mechanism:\n    def __call__(self, gradients, generator): ...\n"


@pytest.mark.parametrize(
    ("command", "status", "line"),
    [
        (
            ("dp-audit", *TABLE, "--mechanism", "dp:clip=1,sigma=1"),
            3,
            "name a column of the inputs",
        ),
        (
            ("vinfo", *TABLE, "-a", "gender"),
            2,
            "has no attribute 'gender'; its attributes are: sex",
        ),
        (("vinfo", *TABLE, "-a", "sex", "--batch-size", "400"), 3, "about 1734 are needed"),
        (("sensitivity", *TABLE, "--samplez", "5"), 2, " (gradaudit sensitivity --help)"),
        (("scn", *TABLE), 2, "No such command 'scn'. Did you mean 'scan'? (gradaudit --help)"),
        (("gate",), 2, "gradaudit gate: Missing argument 'REPORT...' (gradaudit gate --help)"),
        (("sensitivity", *TABLE, "--budget", "5"), 2, "with its unit, as 90s, 5m or 2h (got '5')"),
        (("sensitivity", *TABLE, "--samples", "443"), 2, "--samples 443: there are 442 records"),
        (("sensitivity", *TABLE[:2], "-d", "heart.csv"), 2, "csv:heart.csv?label=NAME"),
        (("sensitivity", *TABLE, "--config", "c.yaml"), 2, "c.yaml, line 1: modle: unknown key"),
        (("dp-audit", *TABLE, "-a", "sex", "--mechanism", "m.py:Mechanism"), 2, "m.py:Mechanism"),
        (("attack", "reconstruct", *TABLE, "--save-examples", "p"), 3, "these records are none"),
    ],
)
def test_a_mistake_is_one_line_and_no_table(
    command: tuple[str, ...],
    status: int,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.py").write_text(MECHANISM)
    Path("c.yaml").write_text("modle: zoo:mlp\n")
    done = run(*command)
    assert (done.status, done.out) == (status, "")
    assert done.err.count("\n") == 1
    assert line in done.err
    assert len(done.err) < 300


def test_methods_stand_between_commas_with_their_options() -> None:
    given = ("dlg:iterations=1,restarts=2,idlg", "copa")
    assert methods_at_commas(given) == ("dlg:iterations=1,restarts=2", "idlg", "copa")
    done = run("attack", "reconstruct", *TABLE, "--batches", "1", "--method", "closed-form,dl")
    assert "no such method (did you mean 'dlg'?)" in done.err


def test_verbose_may_stand_before_the_command() -> None:
    done = run("-v", "vinfo", *TABLE, "-a", "gender")
    assert done.status == 2
    assert done.err.startswith("Traceback (most recent call last):\n")
