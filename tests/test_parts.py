from abc import ABC, abstractmethod
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import pytest

import gradaudit.parts
from gradaudit.audits import Audit, audits
from gradaudit.errors import UsageError
from gradaudit.parts import discover


class Fruit(ABC):
    name: ClassVar[str]

    @abstractmethod
    def taste(self) -> str: ...


class Plum(Fruit):
    name = "plum"

    def taste(self) -> str:
        return "sweet"


@pytest.fixture
def orchard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with one part and one abstract class, named anew for every test."""
    name = f"orchard_{tmp_path.name}"
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "apple.py").write_text(
        f"from {__name__} import Fruit\n"
        "class Pome(Fruit):\n    name = 'pome'\n"
        "class Apple(Pome):\n    name = 'apple'\n    def taste(self): return 'sour'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return name


def offer(monkeypatch: pytest.MonkeyPatch, group: str, value: str) -> None:
    entry = EntryPoint("offered", value, group)
    monkeypatch.setattr(
        gradaudit.parts, "entry_points", lambda group: [entry] if group == entry.group else []
    )


def test_a_part_is_found_by_living_in_the_package(orchard: str) -> None:
    found = discover(orchard, Fruit)
    assert list(found) == ["apple"]
    assert found["apple"]().taste() == "sour"


def test_a_part_is_found_by_its_entry_point(orchard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, orchard, f"{__name__}:Plum")
    assert list(discover(orchard, Fruit)) == ["apple", "plum"]


def test_two_parts_of_one_name_are_refused(orchard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plum, "name", "apple")
    offer(monkeypatch, orchard, f"{__name__}:Plum")
    with pytest.raises(UsageError, match="'apple'"):
        discover(orchard, Fruit)


def test_an_entry_point_of_another_kind_is_refused(
    orchard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, orchard, "pathlib:Path")
    with pytest.raises(UsageError, match="not a Fruit"):
        discover(orchard, Fruit)


@pytest.mark.parametrize("audit", audits().values(), ids=audits())
def test_every_audit_says_what_it_is(audit: type[Audit]) -> None:
    ids = [metric.id for metric in audit.metrics]
    assert audit.summary
    assert audit.__doc__
    assert len(set(ids)) == len(ids)
    assert set(audit.headline) <= set(ids)
    for metric in audit.metrics:
        limited = metric.warning is not None or metric.error is not None
        assert not limited or (metric.riskier and metric.why), metric.id
    for preset in (audit.quick, audit.plain, audit.thorough):
        audit.Options.model_validate(preset)
    for name, field in audit.Options.model_fields.items():
        assert field.description, f"{audit.name} --{name}"
