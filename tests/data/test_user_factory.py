"""Data from a user's own function, in every form it may return."""

from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from gradaudit.data import load_records
from gradaudit.data.common.packing import arguments
from gradaudit.data.common.user_data import records_of
from gradaudit.data.records import Attribute, Feature, Records, fingerprint
from gradaudit.errors import DataError, UsageError

Program = Callable[[str], Path]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    def write(source: str) -> Path:
        path = tmp_path / "mine.py"
        path.write_text(dedent(source))
        return path

    return write


def test_a_function_is_called_with_the_options_of_the_spec(program: Program) -> None:
    path = program("""
        import numpy as np
        def make(rows: int, *, half: bool = False):
            inputs = np.arange(rows * 2.0).reshape(rows, 2)
            return {"inputs": inputs / (2 if half else 1), "labels": np.arange(rows) % 2,
                    "attributes": {"big": inputs[:, 0] > 3}}
    """)
    records = load_records(f"{path}:make?rows=3&half=true", attributes=["big"])
    assert records.inputs.tolist() == [[0, 0.5], [1, 1.5], [2, 2.5]]
    assert records.labels.tolist() == [0, 1, 0]
    assert records.attributes["big"].codes.tolist() == [0, 0, 1]
    assert records.features == (Feature("0", (0,), (0, 2)), Feature("1", (1,), (0.5, 2.5)))
    assert records.adapter == "file"


def test_an_attribute_that_the_function_does_not_give(program: Program) -> None:
    path = program("def make():\n    return [[1.0], [2.0]], [0, 1]")
    with pytest.raises(UsageError, match=r"no attribute 'sex'; its attributes are: none"):
        load_records(f"{path}:make", attributes=["sex"])


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("def make():\n    return 3", DataError, "returns int; the forms are: Records"),
        ("def make():\n    return None", DataError, "returns NoneType"),
        ("def make():\n    1 / 0", DataError, "failed with ZeroDivisionError: division by zero"),
        ("def make():\n    exit(0)", DataError, "failed with SystemExit: 0"),
        ("def make(a):\n    return a", UsageError, "option 'a' is missing"),
        ("def mk():\n    pass", UsageError, "there is no 'make' in it"),
        ("make = 3", UsageError, "is a int and cannot be called"),
        ("def make(:", UsageError, "syntax error"),
        ("import nothing_like_it", UsageError, "importing it failed"),
    ],
)
def test_functions_that_fail(
    program: Program, source: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        load_records(f"{program(source)}:make")
    assert message in str(caught.value)
    assert "mine.py" in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load_records(f"{tmp_path / 'none.py'}:make")


INPUTS = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
LABELS = torch.tensor([1, 0])


class Pairs(Dataset[Any]):
    """A data set as users write them."""

    def __init__(self, *items: Any, classes: tuple[str, ...] = ()) -> None:
        self.items, self.classes = items, classes

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


@pytest.mark.parametrize(
    "found",
    [
        (INPUTS, LABELS),
        (INPUTS.double(), LABELS.int()),
        (INPUTS.bfloat16().requires_grad_(), LABELS),
        (INPUTS.numpy(), LABELS.tolist()),
        {"inputs": INPUTS, "labels": LABELS},
        TensorDataset(INPUTS, LABELS),
        Pairs((INPUTS[0], 1), (INPUTS[1].numpy(), np.int64(0))),
        Records(inputs=INPUTS, labels=LABELS),
    ],
    ids=["tensors", "float64", "bfloat16", "arrays", "dict", "TensorDataset", "Dataset", "Records"],
)
def test_every_form_gives_the_same_records(found: Any) -> None:
    records = records_of(found, "f")
    assert records.inputs.equal(INPUTS)
    assert records.inputs.dtype == torch.float32
    assert not records.inputs.requires_grad
    assert records.labels.equal(LABELS)
    assert records.classes == ("0", "1")


def test_whole_numbers_are_tokens_and_bytes_stay_as_they_are() -> None:
    assert records_of((torch.tensor([[1, 2], [3, 4]]), LABELS), "f").discrete
    bytes_last = records_of((torch.full((2, 4, 4, 3), 255, dtype=torch.uint8), LABELS), "f")
    assert bytes_last.inputs.shape == (2, 4, 4, 3)
    assert bytes_last.inputs.unique().tolist() == [255]
    assert bytes_last.inputs.dtype == torch.float32


def test_pictures_of_a_data_set_and_the_names_of_its_classes() -> None:
    pictures = [Image.new("L", (3, 2), color) for color in (0, 255)]
    data = Pairs((pictures[0], 2), (pictures[1], 0), classes=("a", "b", "c"))
    records = records_of(data, "f")
    assert records.inputs.shape == (2, 1, 2, 3)
    assert records.inputs[1].unique().tolist() == [1]
    assert (records.labels.tolist(), records.classes) == ([2, 0], ("a", "b", "c"))


def test_users_members_and_names_of_classes() -> None:
    parts = {
        "inputs": INPUTS,
        "labels": LABELS,
        "users": ["u", "v"],
        "members": np.array([True, False]),
        "classes": ["no", "yes"],
        "attributes": {"sex": ["m", "f"]},
    }
    records = records_of(parts, "f")
    assert records.users is not None
    assert records.members is not None
    assert records.users.tolist() == ["u", "v"]
    assert records.members.tolist() == [True, False]
    assert records.classes == ("no", "yes")
    assert records.attributes["sex"].codes.tolist() == [1, 0]


def attributed(codes: list[int]) -> Records:
    return Records(
        inputs=INPUTS,
        labels=LABELS,
        attributes={"a": Attribute(np.array(codes, dtype=np.int64), ("x", "y"))},
    )


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"inputs": INPUTS}, "inputs and labels are needed"),
        ({"inputs": INPUTS, "labels": LABELS, "user": [1, 2]}, "(did you mean 'users'?)"),
        ({"inputs": INPUTS, "labels": LABELS, "attributes": [1, 2]}, "attributes are a mapping"),
        (
            {"inputs": INPUTS, "labels": LABELS, "attributes": {"a": [1, 2, 3]}},
            "f: attribute a: has 3 entries for 2 records",
        ),
        ((INPUTS, [0, 1, 0]), "f: labels: has 3 entries for 2 records"),
        ((INPUTS, ["a", "a"]), "every record has the label 'a'"),
        ((INPUTS, []), "f: labels: there are no labels"),
        ((INPUTS * torch.inf, LABELS), "2 of 2 records hold NaN or infinity"),
        (([[1.0], [2.0, 3.0]], LABELS), "cannot become one array (numpy: "),
        ((np.array([[object()], [object()]]), LABELS), "is of type object"),
        ("a text", "returns str"),
        (INPUTS, "returns Tensor"),
        (Pairs(), "is empty"),
        (Pairs((INPUTS[0], 1, 2)), "item 0 is tuple of 3; the forms are"),
        (Pairs({"x": INPUTS[0], "y": 1, "a": 2}, {"x": INPUTS[1], "y": 0}), "'a' is missing in"),
        (Pairs({"pixels": INPUTS[0], "age": 1}), "item 0 has pixels, age; arrays and a label"),
        (Pairs({"age": 3, "y": 1}), "item 0 has age, y; arrays and a label"),
        (DataLoader(TensorDataset(INPUTS)), "item 0 is list of 1; the forms are"),
        (Pairs(({"a": INPUTS[0]}, 1), ({"b": INPUTS[1]}, 0)), "of item 1 are not those of item 0"),
        (Pairs((INPUTS[0], 1), 3), "item 1 is int; the forms are"),
        ((INPUTS, (LABELS,) * 3), "f: labels: has 3 entries for 2 records"),
        (Pairs((INPUTS[0], 1), (INPUTS[1][:1], 0)), "item 1 is of shape (1,) and item 0 of (2,)"),
        (Records(inputs=INPUTS[:0], labels=LABELS[:0]), "there are no records"),
        (Records(inputs=INPUTS, labels=LABELS[:1]), "labels: has 1 entries for 2 records"),
        (Records(inputs=INPUTS, labels=LABELS, users=np.array(["u"])), "users: has 1 entries"),
        (Records(inputs=INPUTS / 0, labels=LABELS), "inputs: 2 of 2 records hold NaN"),
        (Records(inputs=INPUTS, labels=LABELS, classes=("a",)), "from 0 to 1, but there are 1"),
        (Records(inputs=INPUTS, labels=LABELS - 1), "labels: run from -1 to 0"),
        (Records(inputs=INPUTS, labels=LABELS.int()), "labels: are torch.int32 of shape (2,)"),
        (Records(inputs=INPUTS, labels=LABELS / 2, classes=("a", "b")), "targets are floats"),
        (attributed([0]), "attribute 'a': has 1 entries"),
        (attributed([0, 2]), "attribute 'a': its codes are no places in its 2 values"),
    ],
)
def test_what_cannot_be_records(found: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        records_of(found, "f")
    assert message in str(caught.value)


PEOPLE = "age,sex,income\n31,female,1\n42,male,0\n19,male,1\n"
COLUMNS = {"age": None, "sex": ["female", "male"]}
AGES = [[31, 1, 0], [42, 0, 1], [19, 0, 1]]


def encoded(columns: Any, inputs: Any = None) -> dict[str, Any]:
    rows = np.array(AGES, dtype=np.float32) if inputs is None else np.array(inputs)
    return {"inputs": rows, "labels": [1, 0, 1], "columns": columns}


@pytest.mark.parametrize("codes", [False, True], ids=["one-hot", "codes"])
def test_columns_that_were_encoded_by_hand_are_those_of_the_table(
    tmp_path: Path, *, codes: bool
) -> None:
    header, *lines = PEOPLE.splitlines()
    rows = [
        header,
        *(line.replace("31", "b").replace("42", "a").replace("19", "b") for line in lines),
    ]
    (tmp_path / "people.csv").write_text("\n".join(rows) if codes else PEOPLE)
    spec = f"csv:{tmp_path}/people.csv?label=income" + ("&columns=codes" if codes else "")
    table = load_records(spec, attributes=["sex"])
    given = {**COLUMNS, "age": ["a", "b"]} if codes else COLUMNS
    made = records_of({**encoded(given), "inputs": table.inputs.numpy()}, "f")
    assert made.features == table.features
    assert [feature.coded for feature in made.features] == [codes, codes]
    assert torch.equal(made.inputs, table.inputs)


def test_columns_may_have_a_known_range_or_be_names_alone() -> None:
    made = records_of(encoded({"age": (17, 90), "sex": ("female", "male")}), "f")
    assert made.features[0] == Feature("age", (0,), (17, 90))
    named = records_of(encoded(["age", "female", "male"]), "f")
    assert named.features[0] == Feature("age", (0,), (19, 42))
    assert [feature.name for feature in named.features] == ["age", "female", "male"]


@pytest.mark.parametrize(
    ("columns", "inputs", "message"),
    [
        ({"age": None}, None, "f: inputs: have 3 positions, and the columns take 1;"),
        ({**COLUMNS, "b": None}, None, "have 3 positions, and the columns take more;"),
        ("age", None, "and columns a str; columns map each name"),
        ({"age": 3, "sex": ["f", "m"]}, None, "f: inputs: column 'age': is 3; columns map"),
        ({"age": (90, 17), "sex": ["f", "m"]}, None, "column 'age': is (90, 17); columns map"),
        ({"age": (20, 90), "sex": ["f", "m"]}, None, "record 3 holds [19.0], not a number"),
        (COLUMNS, [[1.0, 1, 0], [2, 0.5, 0.5], [3, 0, 1]], "record 2 holds [0.5, 0.5], not a"),
        (COLUMNS, [[1.0, 1, 1], [2, 0, 1], [3, 0, 1]], "record 1 holds [1.0, 1.0], not a single"),
        ({"a": ["x", "x"], "b": None}, None, "column 'a': columns 1 and 2 are both called 'x'"),
        (["age", "age", "b"], None, "columns 1 and 2 are both called 'age'"),
        ({"a": ["x", "y"]}, [[0], [1], [2]], "record 3 holds [2], not a code from 0 to 1"),
        (COLUMNS, [[[0.5]], [[1.0]], [[2.0]]], "f: inputs: are of shape (3, 1, 1), and columns"),
    ],
)
def test_columns_that_contradict_the_inputs_are_refused(
    columns: Any, inputs: Any, message: str
) -> None:
    with pytest.raises(DataError) as caught:
        records_of(encoded(columns, inputs), "f")
    assert message in str(caught.value)


@pytest.mark.parametrize("labels", [[7] * 60, [*range(0, 120, 2)]], ids=["one", "many"])
def test_whole_numbers_are_class_indices_however_few_or_many(labels: list[int]) -> None:
    records = records_of((torch.ones(60, 2), torch.tensor(labels)), "f")
    assert records.labels.tolist() == labels
    assert records.classes == tuple(map(str, range(max(labels) + 1)))


def test_a_data_set_may_hold_a_number_of_classes() -> None:
    class Counted(TensorDataset):
        classes = 2

    records = records_of(Counted(torch.ones(2, 3), torch.tensor([0, 1])), "f")
    assert records.classes == ("0", "1")


SEX = ["m", "f", "f", "m", "f", "m"]
X, Y = torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])


class Streamed(IterableDataset[Any]):
    """Items that are given once, without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(
            [{"x": x, "y": int(y), "sex": sex} for x, y, sex in zip(X, Y, SEX, strict=True)]
        )


MAPPINGS = Pairs(
    *(
        {"pixel_values": x, "label": int(y), "sex": sex, "user": f"u{i // 2}"}
        for i, (x, y, sex) in enumerate(zip(X, Y, SEX, strict=True))
    )
)


@pytest.mark.parametrize(
    "returned",
    [
        MAPPINGS,
        Streamed(),
        DataLoader(MAPPINGS, batch_size=5),
        DataLoader(Streamed(), batch_size=2),
    ],
    ids=["mappings", "stream", "loader of mappings", "loader of a stream"],
)
def test_items_and_batches_of_them_are_the_same_records(returned: Any) -> None:
    records = records_of(returned, "f")
    assert torch.equal(records.inputs, X)
    assert torch.equal(records.labels, Y)
    found = records.attributes["sex"]
    assert [found.values[code] for code in found.codes] == SEX
    of_mappings = MAPPINGS in (returned, getattr(returned, "dataset", None))
    users = None if records.users is None else records.users.tolist()
    assert users == (["u0", "u0", "u1", "u1", "u2", "u2"] if of_mappings else None)


TOKENS, MASK = torch.arange(18).reshape(6, 3), torch.tensor([[True, True, False]] * 6)
FLAT = Pairs(
    *(
        {"input_ids": TOKENS[i], "mask": MASK[i], "numbers": X[i], "labels": int(Y[i]), "sex": sex}
        for i, sex in enumerate(SEX)
    )
)
NESTED = Pairs(
    *(
        {
            "inputs": {"input_ids": TOKENS[i], "mask": MASK[i], "numbers": X[i]},
            "labels": int(Y[i]),
            "sex": sex,
        }
        for i, sex in enumerate(SEX)
    )
)


@pytest.mark.parametrize("items", [FLAT, NESTED], ids=["side by side", "in a mapping"])
@pytest.mark.parametrize("given", [lambda items: items, lambda items: DataLoader(items, 4)])
def test_items_of_several_inputs_call_the_model_by_their_names(items: Any, given: Any) -> None:
    records = records_of(given(items), "f")
    positional, named = arguments(records.parts, records.inputs)
    assert positional == ()
    expected = {"input_ids": TOKENS, "mask": MASK, "numbers": X}
    assert set(named) == set(expected)
    for name, values in expected.items():
        assert named[name].dtype == values.dtype
        assert torch.equal(named[name], values)
    assert list(records.attributes) == ["sex"]
    assert torch.equal(records.labels, Y)


def test_a_loader_that_shuffles_gives_the_same_records_each_time() -> None:
    first, second = (records_of(DataLoader(MAPPINGS, 2, shuffle=True), "f") for _ in range(2))
    assert fingerprint(first) == fingerprint(second)
    assert sorted(first.labels.tolist()) == sorted(Y.tolist())


@pytest.mark.parametrize("shape", [(2,), (2, 3)])
def test_whole_numbers_beyond_those_of_torch_are_refused(shape: tuple[int, ...]) -> None:
    beyond = np.full(shape, 2**63, dtype=np.uint64)
    for data in ((INPUTS[:2], beyond), (beyond.reshape(2, -1), LABELS[:2])):
        with pytest.raises(DataError, match="9223372036854775808 is beyond int64"):
            records_of(data, "f")
