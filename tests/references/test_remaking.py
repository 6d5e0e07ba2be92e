"""The reference models that are kept are those that the recipes make, and the page shows them."""

import pytest
import yaml

from benchmarks.reference.audited import AUDITS, POLICY, differences, kept_report
from benchmarks.reference.page import BEGIN, END, PAGE, tables
from benchmarks.reference.recipes import RECIPES
from gradaudit.references import COMPARED, FOLDER, references
from gradaudit.report import Report

TEXT = PAGE.read_text(encoding="utf-8")


@pytest.fixture
def digits() -> Report:
    return Report.from_file(FOLDER / "digits-cnn.json")


@pytest.mark.slow
def test_a_reference_is_made_again_within_the_tolerance(
    digits: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer repetitions, which are free: comparable reports may differ in them."""
    monkeypatch.setitem(AUDITS, "vinfo", {**AUDITS["vinfo"], **(fewer := {"repeats": 2})})
    assert fewer.keys() <= COMPARED["vinfo.auroc"].free
    made = kept_report("digits-cnn", RECIPES["digits-cnn"])
    assert differences(digits, made) == []
    assert made.target == digits.target
    audits = digits.provenance["audits"]
    assert isinstance(audits, dict)
    assert made.provenance["audits"] == {**audits, "vinfo": {**audits["vinfo"], **fewer}}


def test_a_value_that_moved_and_a_row_that_is_gone_are_told(digits: Report) -> None:
    first, second, *others, last = digits.measurements
    assert first.value is not None
    assert second.value is not None
    by = COMPARED["vinfo.auroc"].tolerance
    moved = first.model_copy(update={"value": first.value - 1.01 * by})
    little = second.model_copy(update={"value": second.value - 0.99 * by})
    made = digits.model_copy(update={"measurements": [moved, little, *others]})
    kinds = {layer.name: layer.kind for layer in digits.target.layers}
    assert (first.id, second.id) == ("vinfo.auroc", "vinfo.auroc")
    assert differences(digits, made) == [
        f"{last.id} of the whole model: not in both",
        f"vinfo.auroc of {kinds[first.layer or '']}: {first.value:.4g} became {moved.value:.4g}",
    ]


def test_every_recipe_has_its_report() -> None:
    assert {file.stem for file in FOLDER.glob("*.json")} == RECIPES.keys()
    assert {report.target.model for report in references()} == RECIPES.keys()


def test_the_page_shows_the_reports() -> None:
    assert TEXT.split(BEGIN)[1].split(END)[0] == tables()


def test_the_page_shows_the_policy() -> None:
    shown = TEXT.split("```yaml\n")[1].split("```")[0]
    assert yaml.safe_load(shown) == yaml.safe_load(POLICY.read_text(encoding="utf-8"))
