"""Grids of defenses."""

import pytest

from gradaudit.audits.tradeoff.mechanisms import read_mechanism
from gradaudit.errors import UsageError


def test_a_grid_has_every_value_in_order() -> None:
    mechanism = read_mechanism(["dp:clip=1,sigma=0.01|0.1|0.5,per=release"], "--defense")
    assert [setting.values for setting in mechanism.settings] == [
        {"dp.sigma": "0.01"},
        {"dp.sigma": "0.1"},
        {"dp.sigma": "0.5"},
    ]
    assert [setting.defenses[0].options.sigma for setting in mechanism.settings] == [0.01, 0.1, 0.5]
    assert all(setting.defenses[0].options.per == "release" for setting in mechanism.settings)


def test_defenses_are_chained_by_repetition_and_by_then() -> None:
    parts = ["selective:0.05|0.3", "dp:clip=1,sigma=0.1|0.5,per=release"]
    mechanism = read_mechanism(parts, "--defense")
    assert read_mechanism([" then ".join(parts)], "--against").text == mechanism.text
    assert [str(setting) for setting in mechanism.settings] == [
        "selective.share=0.05, dp.sigma=0.1",
        "selective.share=0.05, dp.sigma=0.5",
        "selective.share=0.3, dp.sigma=0.1",
        "selective.share=0.3, dp.sigma=0.5",
    ]
    assert [d.name for d in mechanism.settings[0].defenses] == ["selective", "dp"]


def test_the_same_defense_twice_keeps_both_values_apart() -> None:
    (setting, *_) = read_mechanism(["prune:0.1|0.2", "prune:0.3|0.4"], "--defense").settings
    assert setting.values == {"prune.share": "0.1", "2.prune.share": "0.3"}


def test_without_a_grid_there_is_one_setting_named_by_its_defenses() -> None:
    (setting,) = read_mechanism(["sign", "prune:0.5"], "--defense").settings
    assert str(setting) == "sign then prune:0.5"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dp:clip=1,sigma=0.1||1", "a value is missing"),
        ("dp:clip=1,sigma=0.1|0.1", "stands twice"),
        ("selectiv:0.1|1", "did you mean 'selective'"),
        ("dp:clip=1,sigma=0.1|x", "--defense dp:clip=1,sigma=x"),
        ("prune:" + "|".join(f"0.{n:03d}" for n in range(1, 102)), "101 settings"),
    ],
)
def test_wrong_specs_are_refused(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("|", r"\|")):
        read_mechanism([spec], "--defense")
