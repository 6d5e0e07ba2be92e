"""Completion, as zsh asks for it."""

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import HANGS, command
from report_builder import make_report, row

from gradaudit.audits import audits
from gradaudit.cli import build
from gradaudit.cli.help import completer, whole_words
from gradaudit.families import families
from gradaudit.zoo import zoo_names


def asked(option: str, begun: str = "", **params: object) -> list[str]:
    """The words that an option is completed with."""
    complete = completer(option)
    assert complete is not None
    return [word for word, _ in complete(Context(params), begun)]  # type: ignore[arg-type]


class Context:
    """As much of the shell's command line as completers look at."""

    def __init__(self, params: dict[str, object]) -> None:
        self.params = params


def test_names_of_parts() -> None:
    assert asked("model", "zoo:") == [f"zoo:{name}" for name in zoo_names()]
    assert asked("audits", "attack-p") == ["attack-property"]
    assert asked("family") == sorted(families())
    assert "dlg" in asked("method")
    assert "prune:0.99" in asked("defense")
    assert {"digits", "csv:", "hf-datasets:"} <= set(asked("data"))
    assert asked("explained", "vinfo.au") == ["vinfo.auroc"]
    assert {name.replace(" ", "-") for name in audits()} <= set(asked("explained"))
    assert asked("explained", "prune") == ["prune"]
    assert completer("seed") is None


def test_kinds_of_list() -> None:
    (kind,) = (each for each in command(build()).commands["list"].params if each.name == "kind")
    words = [item.value for item in kind.shell_complete(Context({}), "de")]
    assert words == ["defenses"]


def test_attributes_are_those_of_the_data_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert asked("attribute", data="digits") == ["slant", "ink"]
    assert asked("attribute", data="diabetes?scale=standard") == ["sex"]
    Path("people.csv").write_text('age;"sex";job, held\n1;f;2\n', encoding="utf-8")
    assert asked("attribute", "s", data="csv:people.csv?label=age") == ["sex"]
    assert asked("attribute", data="csv:missing.csv") == []


def test_layers_and_attributes_are_those_of_a_named_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert asked("layer") == []
    data = {"attributes": {"sex": {"f": 1}}}
    report = make_report(row("a.m", "fc1", 1), data=data).to_json()
    Path("old.json").write_text(report)
    assert asked("layer", "fc", output=[Path("new.json"), Path("old.json")]) == ["fc1", "fc2"]
    assert asked("attribute", output=["old.json"]) == ["sex"]
    Path("report.json").write_text(report)
    assert asked("hide") == ["conv1", "fc1", "fc2"]
    Path("report.json").write_text("{}")
    assert asked("hide") == []


ZSH = {"_TYPER_COMPLETE_ARGS": "gradaudit scan --model zoo:len"}
BASH = {"COMP_WORDS": "gradaudit\nscan\n--model\nzoo\n:\nlen", "COMP_CWORD": "5"}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("shell", "words", "answer"),
    [("zsh", ZSH, r'"zoo\\:lenet":'), ("bash", BASH, "lenet\n")],
)
def test_the_shell_gets_them_without_torch(shell: str, words: dict[str, str], answer: str) -> None:
    code = (
        "import sys\nfrom gradaudit.cli import main\nsys.argv = ['gradaudit']\n"
        "try: main()\nfinally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            "_GRADAUDIT_COMPLETE": f"complete_{shell}",
            "PYTHONPATH": ":".join(sys.path),
            **words,
        },
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert answer in done.stdout
    assert ("zoo" in done.stdout) is (shell == "zsh")


@pytest.mark.parametrize(
    ("typed", "given", "answers", "shown"),
    [
        ("-m|zoo|:|le", "-m|zoo:le", "zoo:lenet\n", "lenet\n"),
        ("-m|zoo|:", "-m|zoo:", "zoo:mlp\nzoo:lenet\n", "mlp\nlenet\n"),
        ("-m|a|:|b|-d|csv|:|x:", "-m|a:b|-d|csv:x:", "csv:x:y\n", "y\n"),
        ("-a|se", "-a|se", "sex\n", "sex\n"),
    ],
)
def test_bash_gets_what_fits_its_pieces(
    typed: str, given: str, answers: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces = typed.split("|")
    environment = {"COMP_WORDS": "\n".join([*pieces, "later"]), "COMP_CWORD": str(len(pieces) - 1)}
    with whole_words(environment, "complete_bash"):
        print(answers, end="")
    assert environment["COMP_WORDS"].split("\n") == given.split("|")
    assert int(environment["COMP_CWORD"]) == given.count("|")
    assert capsys.readouterr().out == shown
