import pytest

from gradaudit.errors import UsageError
from gradaudit.sweeping.grid import Axis, GridPoint, expect_known, points, read_axes


def test_values_are_separated_by_commas_or_by_bars() -> None:
    assert read_axes(["batch-size=1, 4,16", "defense=sign|dp:clip=1,sigma=2"]) == (
        Axis("batch-size", ("1", "4", "16")),
        Axis("defense", ("sign", "dp:clip=1,sigma=2")),
    )


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([], "--over is needed"),
        (["others"], "give it as NAME=V1,V2"),
        (["others="], "give it as NAME=V1,V2"),
        (["=1,2"], "give it as NAME=V1,V2"),
        (["others=1,,2"], "give it as NAME=V1,V2"),
        (["others=1,1"], "a value stands twice"),
        (["others=1", "others=2"], "named twice"),
    ],
)
def test_what_is_no_axis_is_refused(specs: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_axes(specs)


def test_every_combination_comes_once_the_last_axis_fastest() -> None:
    grid = points([Axis("a", ("1", "2")), Axis("b", ("x", "y"))])
    assert [point.variant for point in grid] == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]


def test_a_grid_beyond_reason_is_refused() -> None:
    values = tuple(map(str, range(40)))
    with pytest.raises(UsageError, match=r"1,600 combinations"):
        points([Axis("a", values), Axis("b", values)])


def test_numbers_become_numbers_and_no_infinity_enters_a_report() -> None:
    values = {"a": "3", "b": "0.5", "c": "1e-3", "d": "nan", "e": "inf", "f": "sign"}
    assert GridPoint(values).variant == {
        "a": 3,
        "b": 0.5,
        "c": 0.001,
        "d": "nan",
        "e": "inf",
        "f": "sign",
    }


def test_a_point_sets_options_and_fills_placeholders() -> None:
    point = GridPoint({"batch-size": "4", "sigma": "0.1"})
    flags = {"defense": ["dp:clip=1,sigma={sigma}", "sign"], "model": "zoo:mlp?x={other}", "n": 3}
    assert point.filled(flags, {"batch_size", "defense", "model", "n"}) == {
        "defense": ["dp:clip=1,sigma=0.1", "sign"],
        "model": "zoo:mlp?x={other}",
        "n": 3,
        "batch_size": "4",
    }


def test_an_axis_that_would_change_nothing_is_refused() -> None:
    flags = {"defense": ["dp:sigma={sigma}"], "model": None}
    expect_known([Axis("sigma", ("1",)), Axis("batch-size", ("1",))], {"batch_size"}, flags)
    with pytest.raises(UsageError, match=r"no such option \(did you mean 'batch-size'\?\)"):
        expect_known([Axis("batchsize", ("1",))], {"batch_size"}, flags)
