"""Another name of an audit does what its plain name does, everywhere where it can be said."""

import json
from pathlib import Path
from typing import Any

import pytest

import gradaudit
from gradaudit.audits import audits, named
from tests.command_line import run

MODEL = ("-m", "zoo:mlp?inputs=10&hidden=3&classes=2", "-d", "diabetes", "-q", "-f", "json")
OPTIONS = {"batches": 2, "method": ["idlg"], "iterations": 2}
FLAGS = ("--batches", 2, "--method", "idlg", "--iterations", 2)
PLAIN, ALIAS = "attack labels", "attack membership"


def rows_of(*words: object) -> list[dict[str, Any]]:
    done = run(*words, *MODEL)
    assert done.status == 0, done.err
    rows: list[dict[str, Any]] = json.loads(done.out)["measurements"]
    return rows


@pytest.mark.slow
def test_the_command_and_its_sweep() -> None:
    rows = rows_of(*PLAIN.split(), *FLAGS)
    assert {row["metric"] for row in rows} == {"membership_distance"}
    assert rows_of(*ALIAS.split(), *FLAGS) == rows
    over = ("--over", "seed=0,1")
    assert rows_of("sweep", *ALIAS.split(), *FLAGS, *over) == rows_of(
        "sweep", *PLAIN.split(), *FLAGS, *over
    )


@pytest.mark.slow
@pytest.mark.parametrize("key", ["attack_labels", "attack_membership"])
def test_the_section_of_a_config_file(key: str, tmp_path: Path) -> None:
    file = tmp_path / "audit.yaml"
    file.write_text(json.dumps({key: OPTIONS}))
    assert rows_of(*PLAIN.split(), "--config", file) == rows_of(*PLAIN.split(), *FLAGS)


def test_the_plain_name_wins_in_a_file_that_has_both(tmp_path: Path) -> None:
    file = tmp_path / "audit.yaml"
    both = {"attack_membership": {**OPTIONS, "batches": 3}, "attack_labels": {"batches": 2}}
    file.write_text(json.dumps(both))
    assert rows_of(*PLAIN.split(), "--config", file) == rows_of(*PLAIN.split(), *FLAGS)


def test_python() -> None:
    target = gradaudit.Target(MODEL[1], MODEL[3])
    plain, alias = (gradaudit.audit(target, {name: OPTIONS}) for name in (PLAIN, ALIAS))
    assert alias.measurements == plain.measurements
    assert alias.provenance["audits"].keys() == {PLAIN}


@pytest.mark.parametrize("spoken", [PLAIN, ALIAS, "attack-labels", "attack-membership"])
def test_what_is_chosen_and_explained(spoken: str) -> None:
    dry = run("scan", "--dry-run", "--audits", spoken, *MODEL[:4])
    assert PLAIN in dry.out, dry.err
    assert "sensitivity" not in dry.out
    assert run("explain", spoken).out == run("explain", PLAIN).out


def test_help_lists_the_plain_name_alone() -> None:
    listed = run("attack", "--help").out
    assert "\n│ labels " in listed
    assert "\n│ membership " not in listed
    assert ALIAS not in run("list", "audits").out


def test_names_are_no_aliases_of_others() -> None:
    known = audits()
    aliases = [alias for audit in known.values() for alias in audit.aliases]
    assert len({*known, *aliases}) == len(known) + len(aliases)
    assert {named(name) for name in (*known, *aliases)} == set(known)
    assert named("nothing") == "nothing"
