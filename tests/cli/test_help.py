"""``--help`` at 80 columns: two examples, what is needed first, and every word whole."""

import re

import pytest
from command_line import command, run

from gradaudit.cli import build, listed_commands
from gradaudit.cli.help import FIRST, MOST_OPTIONS, NEEDED_FIRST, examples_in

WIDTH = 80
COMMANDS = {each.name: each for each in listed_commands()}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_two_examples_and_cuts_nothing(name: str) -> None:
    done = run(*name.split(), "--help-all", width=WIDTH)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"Usage: gradaudit {name} ")
    shown = " ".join(done.out.replace(" \\\n", " ").split())
    examples = examples_in(COMMANDS[name].text or "")
    assert len(examples) == 2
    assert " ".join(examples) in shown
    assert "more options" not in done.out
    assert "Positional arguments" not in done.out
    words = set(done.out.split())
    asked = command(build())
    for word in name.split():
        asked = asked.commands[word]
    for parameter in asked.params:
        assert parameter.help, parameter.name
        assert set(parameter.help.split()) <= words, parameter.name
        for flag in parameter.opts:
            if flag.startswith("-"):
                assert any(flag in word for word in words), flag
    assert all(len(line) <= WIDTH or len(line.split()) <= 2 for line in done.out.splitlines())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_the_first_options_and_names_how_to_see_all(name: str) -> None:
    few, every = (
        run(*name.split(), flag, width=WIDTH).out.splitlines() for flag in ("--help", "--help-all")
    )
    first, all_of_them = (flags_in(lines) for lines in (few, every))
    assert 0 < len(first) <= MOST_OPTIONS
    assert set(first) <= set(all_of_them)
    assert len(set(all_of_them)) == len(all_of_them)
    left = len(all_of_them) - len(first)
    assert (few[-1] == f"{left} more options: gradaudit {name} --help-all") is (left > 0)
    assert {"--help", "--help-all"} <= set(first)
    needed = {f"--{word}" for word in FIRST} & set(all_of_them)
    assert needed <= set(first)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_described_in_the_words_of_python(name: str) -> None:
    text = run(*name.split(), "--help-all", width=WIDTH).out
    assert not re.search(r"\b(True|False|None)\b|\('|\(\d+, \d+\)|e-0\d| / --no-|\\\[", text)


def flags_in(lines: list[str]) -> list[str]:
    """The long flag of each option that help lists."""
    begin = next(n for n, line in enumerate(lines) if re.match(r"[A-Z].*:$", line))
    entries = [re.match(r"  (?:-\w, )?(--[a-z-]+)", line) for line in lines[begin:]]
    return [match[1] for match in entries if match]


def test_what_is_needed_first_comes_first() -> None:
    lines = run("scan", "--help-all", width=WIDTH).out.splitlines()
    headings = [line.rstrip(":") for line in lines if line.endswith(":") and line[0] != " "]
    assert headings.index(NEEDED_FIRST) < headings.index("Scan") < headings.index("Output")
    first = lines[lines.index(f"{NEEDED_FIRST}:") :]
    flags = [line.split()[0] for line in first if line.startswith("  -")]
    assert flags[:4] == ["-m,", "-c,", "-d,", "-a,"]
    assert any(line.split()[:3] == ["--device", "[cpu|cuda|auto]", "Device"] for line in lines)


def test_a_group_names_its_commands_by_their_panels() -> None:
    text = run("--help", width=WIDTH).out
    for word in ("scan", "Single audits", "vinfo", "Reports", "gate"):
        assert word in text
    assert "membership, or an attribute for `vinfo`)." in " ".join(
        run("attack", "--help", width=WIDTH).out.split()
    ).replace("whether a record is behind an update is `attack record`, or", "membership, or")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("scna",), ("attack", "txt")])
def test_a_similar_command_is_proposed_once(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert (done.status, done.err.lower().count("did you mean")) == (2, 1)
