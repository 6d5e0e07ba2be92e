"""What holds for every adapter, and how a spec finds its own."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gradaudit.data import (
    DataAdapter,
    adapters,
    describe,
    expect_attributes,
    fingerprint,
    load_records,
)
from gradaudit.data.records import Attribute, Records
from gradaudit.errors import UsageError

Write = Callable[..., Path]
LINES = ("x,sex,who,part,y", "1,f,u,train,a", "2,m,v,test,b", "4,f,u,train,b")


def test_the_adapters_are_found() -> None:
    assert list(adapters()) == [
        "csv",
        "diabetes",
        "digits",
        "file",
        "hf-datasets",
        "images",
        "npz",
        "parquet",
        "sounds",
        "text",
        "torchvision",
    ]


@pytest.mark.parametrize("adapter", adapters().values(), ids=adapters())
def test_every_adapter_says_what_it_is(adapter: type[DataAdapter]) -> None:
    assert is_dataclass(adapter)
    assert adapter.__doc__
    assert adapter.summary
    options = {field.name for field in fields(adapter)}
    query = adapter.example.partition("?")[2]
    if adapter.name != "file":
        assert adapter.example.startswith(adapter.name)
        assert {pair.partition("=")[0] for pair in query.split("&") if pair} <= options
    assert adapter.needs_source == (":" in adapter.example)


def test_listing_the_adapters_imports_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from gradaudit.core.parts import summaries\n"
        "assert len(summaries('gradaudit.data', by='example')) >= 8\n"
        "print(sorted({'torch', 'numpy', 'sklearn', 'scipy', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("digit", "no such data (did you mean 'digits'?)"),
        ("cvs:table.csv?label=y", "no such data (did you mean 'csv'?)"),
        ("table.csv", "csv:table.csv?label=NAME"),
        ("", "nothing is named"),
        ("csv:?label=y", "write csv:FILE?label=COL"),
        ("npz", "write npz:FILE?inputs=KEY"),
        ("diabetes:table", "write diabetes"),
        ("digits?", None),
    ],
)
def test_specs_that_name_nothing(spec: str, message: str | None) -> None:
    if message is None:
        assert len(load_records(spec)) == 1797
        return
    with pytest.raises(UsageError) as caught:
        load_records(spec)
    assert message in str(caught.value)


def test_attributes_must_be_there() -> None:
    with pytest.raises(UsageError, match=r"'slan' \(did you mean 'slant'\?\); .*: slant, ink"):
        load_records("digits", attributes=["ink", "slan"])
    with pytest.raises(UsageError, match="no attribute 'member'"):
        load_records("digits", attributes=["member"])


def test_membership_that_does_not_vary_is_no_attribute(csv_file: Write) -> None:
    path = csv_file("x,part,y", "1,train,a", "2,train,b")
    records = load_records(f"csv:{path}?label=y&member=part")
    assert records.members is not None
    assert records.members.all()
    assert records.attributes == {}


def test_take_keeps_every_part_in_the_order_asked_for(csv_file: Write) -> None:
    path = csv_file(*LINES)
    records = load_records(
        f"csv:{path}?label=y&attribute=sex&user=who&member=part&scale=none&drop=sex"
    )
    taken = records.take(np.array([2, 0]))
    assert len(taken) == 2
    assert taken.inputs.tolist() == [[4], [1]]
    assert taken.labels.tolist() == [1, 0]
    assert taken.attributes["sex"].codes.tolist() == [0, 0]
    assert taken.users is not None
    assert taken.members is not None
    assert taken.users.tolist() == ["u", "u"]
    assert taken.members.tolist() == [True, True]
    assert (taken.classes, taken.features) == (records.classes, records.features)
    assert len(records) == 3


def test_the_description_of_a_small_table(csv_file: Write) -> None:
    path = csv_file(*LINES)
    records = load_records(f"csv:{path}?label=y&attribute=sex&user=who&member=part")
    assert describe(records) == {
        "adapter": "csv",
        "records": 3,
        "input_shape": [3],
        "input_type": "numbers",
        "inputs": {"mean": 1.111, "deviation": 1.197},
        "task": "classification",
        "classes": {"a": 1, "b": 2},
        "attributes": {"sex": {"f": 2, "m": 1}, "member": {"no": 1, "yes": 2}},
        "users": 2,
        "members": 2,
        "columns": 2,
        "notes": {"scale": "none", "numeric": 1, "one_hot": {"sex": 2}, "labels_encoded": True},
        "fingerprint": fingerprint(records),
    }


def test_the_description_of_tokens_and_targets() -> None:
    records = Records(inputs=torch.tensor([[1], [2]]), labels=torch.tensor([0.5, 1.5]))
    described = describe(records)
    assert (described["input_type"], described["task"]) == ("tokens", "regression")
    assert described["classes"] is None
    assert described["users"] is described["members"] is described["columns"] is None


def small() -> Records:
    return Records(
        inputs=torch.tensor([[1.0], [2.0]]),
        labels=torch.tensor([0, 1]),
        classes=("a", "b"),
        attributes={"s": Attribute(np.array([0, 1]), ("f", "m"))},
        users=np.array(["u", "v"]),
        members=np.array([True, False]),
    )


def test_the_fingerprint_is_the_same_in_every_run() -> None:
    expected = "51244563d44852f996c16da114ca2888831fbd16faea61bfb37b9f79761d14f0"
    assert fingerprint(small()) == expected
    assert fingerprint(load_records("digits")) == fingerprint(load_records("digits"))


@pytest.mark.parametrize(
    "changed",
    [
        {"inputs": torch.tensor([[1.0], [2.5]])},
        {"inputs": torch.tensor([[1], [2]])},
        {"inputs": torch.tensor([1.0, 2.0])},
        {"labels": torch.tensor([1, 1])},
        {"classes": ("a", "c")},
        {"attributes": {"t": Attribute(np.array([0, 1]), ("f", "m"))}},
        {"attributes": {"s": Attribute(np.array([0, 1]), ("m", "f"))}},
        {"attributes": {"s": Attribute(np.array([1, 1]), ("f", "m"))}},
        {"attributes": {}},
        {"users": np.array(["u", "w"])},
        {"users": None},
        {"members": np.array([True, True])},
    ],
)
def test_the_fingerprint_sees_every_part(changed: dict[str, object]) -> None:
    assert fingerprint(replace(small(), **changed)) != fingerprint(small())  # type: ignore[arg-type]


def test_the_fingerprint_sees_the_order_and_not_the_notes() -> None:
    assert fingerprint(small().take(np.array([1, 0]))) != fingerprint(small())
    assert fingerprint(replace(small(), notes={"a": 1}, adapter="x")) == fingerprint(small())


@pytest.mark.parametrize("names", [["slant", "ink"], ["slant,ink"], ["slant", "ink,slant"]])
def test_attributes_are_repeated_or_separated_by_commas(names: list[str]) -> None:
    records = load_records("digits", attributes=names)
    assert expect_attributes(records, names, "digits") == ("slant", "ink")


def test_a_comma_may_be_part_of_an_attributes_name() -> None:
    attribute = Attribute(np.zeros(2, dtype=np.int64), ("x",))
    records = Records(torch.zeros(2, 1), torch.zeros(2), attributes={"a,b": attribute})
    assert expect_attributes(records, ["a,b"], "data") == ("a,b",)
    with pytest.raises(UsageError, match="has no attribute 'c'"):
        expect_attributes(records, ["a,b", "c"], "data")
