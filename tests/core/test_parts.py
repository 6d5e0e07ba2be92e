import gc
import time
import warnings
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any, ClassVar

import pytest

import gradaudit.core.parts
from gradaudit.attacks.reconstruction import reconstructions
from gradaudit.audits.attack_reconstruct.options import PACKAGE, names_in_words
from gradaudit.audits.dp_audit.mechanisms import mechanisms
from gradaudit.core.parts import (
    discover,
    forms,
    name_unknown_groups,
    offered,
    parsed,
    part_named,
    summaries,
    without_garbage_collection,
)
from gradaudit.data import adapters
from gradaudit.defenses import defenses
from gradaudit.errors import PartWarning
from gradaudit.families import families
from gradaudit.federation.algorithms import algorithms


class Fruit(ABC):
    name: ClassVar[str]

    @abstractmethod
    def taste(self) -> str: ...


class Copy(Fruit):
    name = "apple"

    def taste(self) -> str:
        return "artificial"


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
    monkeypatch.setattr(gradaudit.core.parts, "_entry_points", lambda _: EntryPoints([entry]))


def test_a_part_is_found_by_living_in_the_package(orchard: str) -> None:
    found = discover(orchard, Fruit)
    assert list(found) == ["apple"]
    assert found["apple"]().taste() == "sour"


def test_a_part_is_found_by_its_entry_point(orchard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, orchard, f"{__name__}:Plum")
    assert list(discover(orchard, Fruit)) == ["apple", "plum"]


def test_where_a_name_is_known_no_module_of_others_is_imported(
    orchard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / orchard / "apple.py").write_text(
        f"from {__name__} import Fruit\n"
        "class Apple(Fruit):\n    name = 'apple'\n    summary = ''\n    taste = None\n"
    )
    (tmp_path / orchard / "pear.py").write_text(
        "class Pear:\n    name = 'pear'\n    summary = ''\nraise ImportError\n"
    )
    offer(monkeypatch, orchard, f"{__name__}:Plum")
    assert list(discover(orchard, Fruit, "apple")) == ["apple", "plum"]
    assert list(discover(orchard, Fruit, "quince")) == ["plum"]


class Nameless(Fruit):
    def taste(self) -> str:
        return ""


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (f"{__name__}:Copy", "offered in orchard.* has the name 'apple' of a part in .*apple"),
        ("pathlib:Path", "is no subclass of Fruit"),
        (f"{__name__}:Nameless", "no subclass of Fruit with a name"),
        ("no_such_module:Plum", "cannot be loaded .ModuleNotFoundError"),
        (f"{__name__}:no_such_class", "cannot be loaded .AttributeError"),
    ],
)
def test_a_part_that_cannot_be_used_is_left_out(
    orchard: str, monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    offer(monkeypatch, orchard, value)
    with pytest.warns(PartWarning, match=message):
        found = discover(orchard, Fruit)
    assert [part.__module__ for part in found.values()] == [f"{orchard}.apple"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PartWarning)
        assert summaries(orchard) == {}


@pytest.mark.parametrize(
    ("package", "found"),
    [
        ("gradaudit.data", adapters()),
        ("gradaudit.defenses", defenses()),
        ("gradaudit.federation.algorithms", algorithms()),
        ("gradaudit.attacks.reconstruction", reconstructions()),
        ("gradaudit.families", families()),
        ("gradaudit.audits.dp_audit.mechanisms", mechanisms()),
    ],
)
def test_summaries_are_read_from_the_source(package: str, found: dict[str, Any]) -> None:
    assert summaries(package) == {name: part.summary for name, part in found.items()}


def test_summaries_of_another_distribution_are_imported(
    orchard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plum, "summary", "a stone fruit", raising=False)
    offer(monkeypatch, orchard, f"{__name__}:Plum")
    assert summaries(orchard) == {"plum": "a stone fruit"}


@pytest.mark.parametrize("place", ["nursery.py", "nursery/sour.py", "nursery/sour/__init__.py"])
def test_a_part_of_another_distribution_is_read_and_not_imported(
    orchard: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / place.replace("nursery", f"nursery_{tmp_path.name}")
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(
        "class Other:\n    name, summary = 'other', ''\n"
        "class Quince:\n    name = 'quince'\n    summary = 'sour'\n    example = 'quince:2'\n"
        "raise ImportError\n"
    )
    module = ".".join(source.relative_to(tmp_path).with_suffix("").parts)
    offer(monkeypatch, orchard, f"{module.removesuffix('.__init__')}:Quince")
    assert list(offered(orchard)) == ["quince"]
    assert forms(orchard) == "quince:2"
    assert summaries(orchard, "example") == {"quince:2": "sour"}


def test_a_part_is_imported_by_its_name(orchard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, orchard, f"{__name__}:Plum")
    assert part_named(orchard, "plum") is Plum
    assert part_named(orchard, "medlar") is None
    own = part_named("gradaudit.defenses", "prune")
    assert own is defenses()["prune"]
    assert part_named("gradaudit.models.losses", "mse") is not None


def test_help_names_the_methods_of_other_distributions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"methods_{tmp_path.name}.py").write_text(
        "class Zero:\n    name = 'zero'\n    summary = 'Hand in nothing.'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    offer(monkeypatch, PACKAGE, f"methods_{tmp_path.name}:Zero")
    assert names_in_words().endswith("r-gap or zero")


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_afterwards_as_before(enabled: bool) -> None:
    try:
        if not enabled:
            gc.disable()
        with without_garbage_collection():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_one_thread_at_a_time_parses(monkeypatch: pytest.MonkeyPatch) -> None:
    together: list[int] = []
    running: list[str] = []

    def slow(source: str) -> str:
        running.append(source)
        together.append(len(running))
        time.sleep(0.01)
        running.remove(source)
        return source

    monkeypatch.setattr(gradaudit.core.parts.ast, "parse", slow)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(parsed, "abcdefgh")) == [*"abcdefgh"]
    assert max(together) == 1


@pytest.mark.parametrize("listed", [["gradaudit.audits", "gradaudit.data"], ["gradaudit.data"]])
def test_a_group_of_no_kind_is_named_where_its_kind_is_listed(
    monkeypatch: pytest.MonkeyPatch, listed: list[str]
) -> None:
    groups = ("gradaudit.audit", "gradaudit.dp.mechanisms", "other.audit")
    entries = EntryPoints(EntryPoint("x", "x:X", group) for group in groups)
    monkeypatch.setattr(gradaudit.core.parts, "_entry_points", lambda _: entries)
    packages = {"gradaudit.audits", "gradaudit.data", "gradaudit.audits.dp_audit.mechanisms"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        name_unknown_groups(packages, listed)
    said = [str(warning.message) for warning in caught]
    assert said == (len(listed) - 1) * [
        "entry point x in gradaudit.audit: the group is of no kind of part (did you mean "
        "'gradaudit.audits'?), and is left out; docs/parts.md lists the groups"
    ]


class Second(Plum):
    summary = "a second plum"


def test_a_list_names_a_name_that_is_taken_and_the_distribution(
    orchard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plum, "summary", "a stone fruit", raising=False)
    folder = tmp_path / "prunes-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: prunes\nVersion: 1\n")
    offered = "".join(f"{name} = {__name__}:{name}\n" for name in ("Plum", "Second"))
    (folder / "entry_points.txt").write_text(f"[{orchard}]\n{offered}")
    told = f"entry point Second in {orchard} of prunes has the name 'plum' of a part in {__name__}"
    with pytest.warns(PartWarning, match=told):
        assert summaries(orchard) == {"plum": "a stone fruit"}
    with pytest.warns(PartWarning, match=told):
        assert discover(orchard, Fruit)["plum"] is Plum
