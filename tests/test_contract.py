"""What every part owes, whoever wrote it: documented, listed, and called by its name."""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command_line import run

from gradaudit.attacks.reconstruction import load_method, reconstructions
from gradaudit.audits import audits
from gradaudit.audits.dp_audit.mechanisms import load_mechanism, mechanisms
from gradaudit.data import adapters
from gradaudit.defenses import defenses, parse_defense
from gradaudit.families import families, family
from gradaudit.federation.algorithms import algorithms, choose_algorithm
from gradaudit.formats import format_for, format_named, formats
from gradaudit.testing import declaration_faults

KINDS: Mapping[str, Mapping[str, type[Any]]] = {
    "audits": audits(),
    "reconstructions": reconstructions(),
    "defenses": defenses(),
    "families": families(),
    "mechanisms": mechanisms(),
    "algorithms": algorithms(),
    "data": adapters(),
    "formats": formats(),
}
OF_PAPERS = ("audits", "reconstructions", "defenses", "families", "mechanisms", "algorithms")
YEAR = re.compile(r"\b(19|20)\d\d\b")
PLACE = re.compile(r"\b(eq\.|equation|section|algorithm|definition|theorem|lemma|table|appendi)")


class Part(NamedTuple):
    kind: str
    name: str
    cls: type[Any]

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}"


PARTS = [Part(kind, name, cls) for kind, found in KINDS.items() for name, cls in found.items()]


def parts(*kinds: str) -> Callable[[Callable[[Part], None]], Callable[[], None]]:
    """Run a test over all parts of these kinds, or of every kind; what fails names its part."""
    chosen = [part for part in PARTS if not kinds or part.kind in kinds]
    assert chosen

    def over_all(test: Callable[[Part], None]) -> Callable[[], None]:
        def run_over_all() -> None:
            for part in chosen:
                try:
                    test(part)
                except Exception as error:
                    error.add_note(f"of {part}")
                    raise

        run_over_all.__doc__ = test.__doc__
        return run_over_all

    return over_all


@cache
def listed() -> dict[str, dict[str, str]]:
    """What ``gradaudit list`` prints, by kind."""
    kinds: dict[str, dict[str, str]] = json.loads(run("list", "-f", "json").out)
    return kinds


def documentation(cls: type[Any]) -> str:
    """A class's own docstring, not that of the class it extends."""
    return inspect.cleandoc(cls.__dict__.get("__doc__") or "")


def described(cls: type[Any]) -> set[str]:
    """Names under ``Attributes:`` in the docstrings of a class and of those it extends."""
    return {
        name
        for base in cls.__mro__
        for section in documentation(base).split("Attributes:\n")[1:]
        for names in re.findall(r"^    ([\w, ]+):", section, re.MULTILINE)
        for name in names.split(", ")
    }


def parameters(cls: type[Any]) -> Iterator[str]:
    """What a part that is made from a spec takes; ``source`` is what the spec names."""
    for name in inspect.signature(cls).parameters:
        if name not in ("source", "factory"):
            yield name


@parts()
def test_it_declares_what_its_kind_owes(part: Part) -> None:
    assert not [fault for _, fault in declaration_faults(part.cls)]
    assert part.cls.name == part.name


@parts(*OF_PAPERS)
def test_its_docstring_names_a_paper_and_the_place_in_it(part: Part) -> None:
    text = documentation(part.cls)
    assert YEAR.search(text)
    assert PLACE.search(text) or re.search(r"\d, [IVX]+-[A-Z]\b|[ (]\d+\.\d", text)


@parts("data", "mechanisms")
def test_every_option_is_in_a_docstring(part: Part) -> None:
    text = documentation(part.cls)
    for name in parameters(part.cls):
        assert name in described(part.cls) or f"``{name}=" in text, name


@parts("audits")
def test_it_answers_a_question_and_its_paper_can_be_read(part: Part) -> None:
    assert re.fullmatch(r"https://arxiv\.org/abs/\d{4}\.\d{5}", part.cls.paper)


@parts("audits")
def test_what_a_metric_says_has_known_places_alone(part: Part) -> None:
    for metric in part.cls.metrics:
        assert not re.search(r"[{}]", (metric.finding + metric.asks).replace("{secret}", ""))
        assert not metric.finding or metric.finding.endswith(".") is metric.asks.endswith("?")


@parts()
def test_it_is_listed_with_its_summary(part: Part) -> None:
    shown = {
        "defenses": lambda: part.cls.example,
        "data": lambda: part.cls.example,
        "mechanisms": lambda: part.cls.example,
        "formats": lambda: f"{part.name} ({part.cls.suffix})",
    }.get(part.kind, lambda: part.name)()
    assert listed()[part.kind][shown] == part.cls.summary


def test_every_metric_is_listed() -> None:
    declared = {
        f"{audit.reports_as()}.{metric.id}"
        for audit in audits().values()
        for metric in audit.metrics
    }
    assert declared == set(listed()["metrics"])


@pytest.mark.slow
@parts("audits")
def test_its_name_is_its_command_and_help_shows_its_options(part: Part) -> None:
    module = part.cls.__module__.rpartition(".")[2]
    together = [audit for audit in audits().values() if audit.__module__ == part.cls.__module__]
    if len(together) == 1:
        assert module == part.name.replace(" ", "_").replace("-", "_")
    else:
        assert {audit.reports_as() for audit in together} == {module.partition("_")[0]}
    done = run(*part.name.split(), "--help-all", width=200)
    assert done.status == 0
    for name in part.cls.Options.model_fields:
        assert f"--{name.replace('_', '-')}" in done.out


@parts("defenses")
def test_its_example_is_a_spec_of_it(part: Part) -> None:
    defense = parse_defense(part.cls.example)
    assert type(defense) is part.cls
    assert parse_defense(str(defense)).options == defense.options


@parts("data")
def test_its_example_begins_with_its_name(part: Part) -> None:
    begin = "path/to/file.py:" if part.name == "file" else part.name
    assert part.cls.example.startswith(begin)


@parts("reconstructions")
def test_its_name_is_a_method(part: Part) -> None:
    assert type(load_method(part.name, {}, 1)) is part.cls


@parts("families")
def test_its_name_is_a_family(part: Part) -> None:
    assert type(family(part.name)) is part.cls


@parts("algorithms")
def test_its_name_is_an_algorithm(part: Part) -> None:
    assert type(choose_algorithm(part.name)) is part.cls


@parts("mechanisms")
def test_its_name_is_a_mechanism(part: Part) -> None:
    mechanism = load_mechanism(part.cls.example)
    assert type(mechanism) is part.cls
    assert mechanism.description.startswith(f"{part.name}:")


@parts("formats")
def test_its_name_and_its_suffix_are_a_format(part: Part) -> None:
    assert type(format_named(part.name)) is part.cls
    assert type(format_for(Path(f"report{part.cls.suffix}"))) is part.cls
