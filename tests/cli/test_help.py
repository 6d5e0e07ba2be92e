"""``--help`` at 80 columns: panels, two examples, few options, and every word whole."""

import re

import pytest
from command_line import command, run

from gradaudit.cli import build, listed_commands
from gradaudit.cli.help import FIRST, MOST_OPTIONS, examples_in

WIDTH = 80
COMMANDS = {each.name: each for each in listed_commands()}


def unframed(text: str) -> str:
    """The text without the lines of panels."""
    return re.sub(r"[│╭╮╰╯─]", " ", text)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_two_examples_and_cuts_nothing(name: str) -> None:
    done = run(*name.split(), "--help-all", width=WIDTH)
    assert (done.status, done.err) == (0, "")
    shown = " ".join(done.out.replace("\\", " ").split())
    examples = examples_in(COMMANDS[name].text or "")
    assert len(examples) == 2
    for example in examples:
        assert " ".join(example.replace("\\", " ").split()) in shown
    assert "more options" not in done.out
    assert not re.search(r"[\w=/]…", done.out), "a word is cut"
    assert all(len(line) <= WIDTH for line in done.out.splitlines())


def flags_in(text: str) -> list[str]:
    """The long flag of each option that help lists."""
    return re.findall(r"^│ (?:[* ]  )?(--[a-z][a-z0-9-]*)", text, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_the_first_options_and_names_how_to_see_all(name: str) -> None:
    few, every = (run(*name.split(), flag, width=WIDTH).out for flag in ("--help", "--help-all"))
    first, all_of_them = flags_in(few), flags_in(every)
    asked = command(build())
    for word in name.split():
        asked = asked.commands[word]
    options = {max(each.opts, key=len) for each in asked.params if each.opts[0].startswith("-")}
    assert set(all_of_them) == options | {"--help"}
    assert 0 < len(first) <= MOST_OPTIONS
    left = len(all_of_them) - len(first)
    assert (f"{left} more options: gradaudit {name} --help-all" in few) is (left > 0)
    assert {f"--{word}" for word in FIRST} & set(all_of_them) <= set(first)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_described_in_the_words_of_python(name: str) -> None:
    text = unframed(run(*name.split(), "--help-all", width=WIDTH).out)
    assert not re.search(r"\b(True|False|None)\b|\('|e-0\d| / --no-|\\\[", text)


def test_commands_stand_in_four_groups() -> None:
    text = run("--help", width=WIDTH).out
    places = [text.index(f"─ {panel} ─") for panel in ("Audit", "Federation", "Report", "Learn")]
    assert places == sorted(places)
    assert len(text.splitlines()) <= 52


@pytest.mark.slow
@pytest.mark.parametrize("words", [("scna",), ("attack", "txt")])
def test_a_similar_command_is_proposed_once(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert (done.status, done.err.lower().count("did you mean")) == (2, 1)
