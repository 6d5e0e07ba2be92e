"""Specs: parsing, escapes, and options in the types of a callable's parameters."""

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from gradaudit.core.specs import Spec, arguments, parse_spec
from gradaudit.errors import UsageError


@pytest.mark.parametrize(
    ("text", "scheme", "rest", "options"),
    [
        ("digits", "", "digits", {}),
        ("zoo:lenet", "zoo", "lenet", {}),
        ("zoo:lenet?", "zoo", "lenet", {}),
        (
            "zoo:lenet?classes=10&activation=tanh",
            "zoo",
            "lenet",
            {"classes": "10", "activation": "tanh"},
        ),
        ("csv:a/b.csv?label=COL", "csv", "a/b.csv", {"label": "COL"}),
        (r"C:\nets\net.py:make?x=1", "", r"C:\nets\net.py:make", {"x": "1"}),
        (r"csv:C:\data\50%20off.csv?label=y", "csv", r"C:\data\50%20off.csv", {"label": "y"}),
        (
            "csv:f.csv?label=a%26b%3Dc&drop=100%25",
            "csv",
            "f.csv",
            {"label": "a&b=c", "drop": "100%"},
        ),
        ("csv:f.csv?label=Employed?", "csv", "f.csv", {"label": "Employed?"}),
        ("csv:f.csv?label=a=b", "csv", "f.csv", {"label": "a=b"}),
        ("csv:f.csv?label=", "csv", "f.csv", {"label": ""}),
        ("csv:f.csv?label=a+b c", "csv", "f.csv", {"label": "a+b c"}),
    ],
)
def test_parse(text: str, scheme: str, rest: str, options: dict[str, str]) -> None:
    spec = parse_spec(text)
    assert (spec.text, spec.scheme, spec.rest, spec.options) == (text, scheme, rest, options)


def test_repeated_keys_are_kept_in_order_and_refused_where_one_is_meant() -> None:
    spec = parse_spec("csv:f.csv?attribute=sex&label=y&attribute=age,group")
    assert spec.values("attribute") == ("sex", "age,group")
    with pytest.raises(UsageError, match=r"'attribute' is given twice"):
        _ = spec.options


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nothing is named"),
        ("?classes=3", "nothing is named"),
        ("zoo:lenet?classes", "'classes' is no option; write key=value"),
        ("zoo:lenet?=3", "'=3' is no option"),
    ],
)
def test_parse_refuses(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_spec(text)
    assert "\n" not in str(caught.value)


def example(  # type: ignore[no-untyped-def]
    classes: int,
    rate: float = 0.1,
    shape: tuple[int, ...] = (3, 32, 32),
    size: tuple[int, int] | None = None,
    columns: tuple[str, ...] = (),
    scale: Literal["none", "standard"] = "none",
    bias: bool = True,
    name: str = "",
    folder: Path = Path(),
    depth=3,
    width=None,
) -> None:
    """A callable with every kind of parameter, some untyped as users may have them."""


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {}),
        ("rate=1e-3", {"rate": 1e-3}),
        ("shape=1x8x8", {"shape": (1, 8, 8)}),
        ("shape=1,8,8", {"shape": (1, 8, 8)}),
        ("shape=100", {"shape": (100,)}),
        ("size=2x3", {"size": (2, 3)}),
        ("size=none", {"size": None}),
        ("columns=a,b&columns=x", {"columns": ("a,b", "x")}),
        ("scale=standard", {"scale": "standard"}),
        ("bias=no", {"bias": False}),
        ("name=07", {"name": "07"}),
        ("folder=a/b", {"folder": Path("a/b")}),
        ("depth=4", {"depth": 4}),
        ("width=1.5", {"width": 1.5}),
        ("width=true", {"width": True}),
        ("width=wide", {"width": "wide"}),
    ],
)
def test_arguments_take_the_types_of_the_parameters(query: str, expected: dict[str, Any]) -> None:
    converted = arguments(parse_spec(f"f?classes=7&{query}"), example)
    assert converted == {"classes": 7, **expected}
    assert [type(value) for value in converted.values()][1:] == [type(v) for v in expected.values()]


def test_a_plural_whose_value_is_refused_names_the_singular() -> None:
    def adapter(label: str, labels: Literal["given", "none"] = "given") -> None: ...

    with pytest.raises(UsageError, match=r"is not one of given, none \(did you mean label=sex\?\)"):
        arguments(parse_spec("f?label=a&labels=sex"), adapter)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f?clases=7", "unknown option 'clases' (did you mean 'classes'?); it takes classes, rate"),
        ("f?zzz=7", "unknown option 'zzz'; it takes classes, rate"),
        ("f", "option 'classes' is missing"),
        ("f?classes=ten", "option classes='ten' is not a whole number"),
        ("f?classes=1&rate=fast", "option rate='fast' is not a number"),
        ("f?classes=1&rate=nan", "option rate='nan' is not a finite number"),
        ("f?classes=1&shape=3xx2", "option shape='3xx2' is not a list of values"),
        ("f?classes=1&size=1x2x3", "option size='1x2x3' is not a list of 2 values"),
        ("f?classes=1&bias=maybe", "option bias='maybe' is not true or false"),
        (
            "f?classes=1&scale=standart",
            "option scale='standart' is not one of none, standard (did you mean 'standard'?)",
        ),
        ("f?classes=1&classes=2", "option 'classes' is given twice"),
    ],
)
def test_arguments_refuse(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        arguments(parse_spec(text), example)
    assert str(caught.value).startswith(f"{text}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_parameters_that_the_caller_fills_are_no_options() -> None:
    assert arguments(parse_spec("f?rate=2"), example, given=("classes",)) == {"rate": 2.0}
    with pytest.raises(UsageError, match="option 'classes' cannot be set here"):
        arguments(parse_spec("f?classes=2"), example, given=("classes",))


def test_keyword_arguments_take_any_key() -> None:
    def torchvision_like(*, weights: object = None, **kwargs: object) -> None: ...

    converted = arguments(parse_spec("m?num_classes=3"), torchvision_like, given=("weights",))
    assert converted == {"num_classes": 3}
    with pytest.raises(UsageError, match="option 'weights' cannot be set here"):
        arguments(parse_spec("m?weights=x"), torchvision_like, given=("weights",))


def test_a_callable_without_parameters() -> None:
    assert arguments(Spec("f", "f"), lambda: None) == {}
    with pytest.raises(UsageError, match="it takes no options"):
        arguments(parse_spec("f?a=1"), lambda: None)


def test_annotations_that_cannot_be_evaluated_are_guessed() -> None:
    def factory(classes: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert arguments(parse_spec("f?classes=4"), factory) == {"classes": 4}


def test_specs_do_not_import_torch() -> None:
    code = "import gradaudit.core.specs, sys; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.strip() == "False"


def test_an_annotation_that_cannot_be_evaluated_is_passed_over() -> None:
    def build(width: "math.no_such_type" = 3) -> None: ...  # noqa: F821

    assert arguments(parse_spec("m?width=4"), build) == {"width": 4}


def test_a_builtin_without_a_signature_takes_no_options() -> None:
    assert arguments(parse_spec("m"), dict) == {}
    with pytest.raises(UsageError, match="it takes no options"):
        arguments(parse_spec("m?width=4"), dict)


def test_the_example_has_the_length_that_is_wanted() -> None:
    def resize(size: tuple[int, int]) -> None: ...

    with pytest.raises(UsageError, match=r"a list of 2 values such as 32x32 or 32,32$"):
        arguments(parse_spec("m?size=4"), resize)
