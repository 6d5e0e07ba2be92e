"""CSV tables: exact encodings, what is done about gaps, and what bad files get."""

import csv
import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradaudit.data import load_records
from gradaudit.data.common import checks
from gradaudit.data.common.table_columns import DataColumn, encode, standardise
from gradaudit.data.common.tables import read_table
from gradaudit.data.records import Feature
from gradaudit.errors import DataError, UsageError

Write = Callable[..., Path]

PEOPLE = (
    "age,job,sex,pay",
    "20,clerk,f,low",
    "40,?,m,high",
    ",cook,f,low",
    "60,clerk,m,high",
)


def test_the_encoding_of_a_small_table(csv_file: Write) -> None:
    records = load_records(f"csv:{csv_file(*PEOPLE)}?label=pay&attribute=sex&scale=standard")
    third = np.sqrt(2) * 10  # the deviation of 20, 40, 40, 60
    expected = [
        [-20 / third, 0, 1, 0, 1, 0],
        [0, 1, 0, 0, 0, 1],
        [0, 0, 0, 1, 1, 0],
        [20 / third, 0, 1, 0, 0, 1],
    ]
    np.testing.assert_allclose(records.inputs.numpy(), expected, rtol=1e-6)
    assert records.inputs.dtype.is_floating_point
    assert records.labels.tolist() == [1, 0, 1, 0]
    assert records.classes == ("high", "low")
    assert records.attributes["sex"].values == ("f", "m")
    assert records.attributes["sex"].codes.tolist() == [0, 1, 0, 1]
    low, high = records.features[0].range or (0, 0)
    assert (low, high) == pytest.approx((-20 / third, 20 / third))
    assert records.features[1:] == (
        Feature("job", (1, 2, 3), values=("(missing)", "clerk", "cook")),
        Feature("sex", (4, 5), values=("f", "m")),
    )
    assert records.notes == {
        "scale": "standard",
        "numeric": 1,
        "one_hot": {"job": 3, "sex": 2},
        "imputed_by_median": {"age": 1},
        "missing_as_category": {"job": 1},
        "labels_encoded": True,
    }
    assert records.adapter == "csv"


def test_categories_as_codes(csv_file: Write) -> None:
    records = load_records(f"csv:{csv_file(*PEOPLE)}?label=pay&columns=codes&scale=none")
    assert records.inputs.tolist() == [[20, 1, 0], [40, 0, 1], [40, 2, 0], [60, 1, 1]]
    assert records.features[1:] == (
        Feature("job", (1,), values=("(missing)", "clerk", "cook"), coded=True),
        Feature("sex", (2,), values=("f", "m"), coded=True),
    )
    assert records.notes["codes"] == {"job": 3, "sex": 2}
    alone = load_records(f"csv:{csv_file(*PEOPLE)}?label=pay&columns=codes&drop=age")
    assert alone.inputs.tolist() == [[1, 0], [0, 1], [2, 0], [1, 1]]
    assert alone.discrete
    assert records.looked_up


def test_numbers_stay_as_they_are_without_scaling(csv_file: Write) -> None:
    records = load_records(f"csv:{csv_file(*PEOPLE)}?label=pay&scale=none")
    assert records.inputs[:, 0].tolist() == [20, 40, 40, 60]
    assert records.features[0].range == (20, 60)


def test_dropped_columns_are_no_inputs_but_can_be_attributes(csv_file: Write) -> None:
    records = load_records(f"csv:{csv_file(*PEOPLE)}?label=pay&attribute=sex&drop=sex,job")
    assert [feature.name for feature in records.features] == ["age"]
    assert list(records.attributes) == ["sex"]
    assert records.notes["dropped"] == ["sex", "job"]


@pytest.mark.parametrize(
    "query", ["attribute=sex&attribute=job", "attribute=sex,job", "attribute=job,sex,job"]
)
def test_several_attributes_repeated_or_with_commas(csv_file: Write, query: str) -> None:
    records = load_records(f"csv:{csv_file(*PEOPLE)}?label=pay&{query}")
    assert set(records.attributes) == {"sex", "job"}
    assert records.attributes["job"].values == ("(missing)", "clerk", "cook")


def test_attributes_asked_for_from_outside_join_those_of_the_spec(csv_file: Write) -> None:
    spec = f"csv:{csv_file(*PEOPLE)}?label=pay&attribute=sex"
    assert set(load_records(spec, attributes=["job", "sex"]).attributes) == {"sex", "job"}


def test_a_column_name_with_a_comma_is_understood_whole(csv_file: Write) -> None:
    path = csv_file('"a,b",y', "p,0", "q,1")
    assert list(load_records(f"csv:{path}?label=y&attribute=a,b").attributes) == ["a,b"]


def test_users_and_members_are_no_inputs(csv_file: Write) -> None:
    path = csv_file("who,x,part,y", "ann,1,train,0", "bob,2,test,1", "ann,3,train,1")
    records = load_records(f"csv:{path}?label=y&user=who&member=part", attributes=["member"])
    assert records.users is not None
    assert records.members is not None
    assert records.users.tolist() == ["ann", "bob", "ann"]
    assert records.members.tolist() == [True, False, True]
    assert [feature.name for feature in records.features] == ["x"]
    assert records.attributes["member"].values == ("no", "yes")
    assert records.attributes["member"].codes.tolist() == [1, 0, 1]


def test_a_label_of_many_numbers_is_a_target(csv_file: Write) -> None:
    path = csv_file("x,y", *(f"{i % 3},{i}.5" for i in range(30)))
    records = load_records(f"csv:{path}?label=y")
    assert records.classes == ()
    assert records.labels.tolist() == [i + 0.5 for i in range(30)]
    forced = load_records(f"csv:{path}?label=x&task=regression")
    assert forced.labels.dtype.is_floating_point


def test_constant_columns_are_kept_and_noted(csv_file: Write) -> None:
    path = csv_file(",k,t,y", "5,7,a,0", "6,7,a,1", "7,7,a,0")
    records = load_records(f"csv:{path}?label=y&scale=standard")
    assert [feature.name for feature in records.features] == ["unnamed-1", "k", "t"]
    assert records.inputs[:, 1].tolist() == [0, 0, 0]
    assert records.inputs[:, 2].tolist() == [1, 1, 1]
    assert records.notes["constant"] == ["k", "t"]


@pytest.mark.parametrize(("first", "kept"), [("0", []), ("1", ["unnamed-1"])])
def test_the_index_that_pandas_writes_is_no_input(
    csv_file: Write, first: str, kept: list[str]
) -> None:
    path = csv_file(",k,y", f"{first},7,0", "1,5,1", "2,9,0")
    records = load_records(f"csv:{path}?label=y")
    assert [feature.name for feature in records.features] == [*kept, "k"]
    assert records.notes.get("index") == (None if kept else "unnamed-1")


def test_truth_values_quotes_marks_and_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    text = '\ufeff"ok","says","y"\r\nTrue,"a ""b"", c\nd",0\r\n\r\nFalse, e ,1\r\n'
    path.write_bytes(text.encode())
    records = load_records(f"csv:{path}?label=y&attribute=ok")
    assert records.features[0] == Feature("ok", (0, 1), values=("False", "True"))
    assert records.features[1].values == ('a "b", c\nd', "e")


@pytest.mark.parametrize("name", ["table.csv.gz", "table.csv"])
def test_compression_is_told_by_content(csv_file: Write, tmp_path: Path, name: str) -> None:
    plain = load_records(f"csv:{csv_file(*PEOPLE, name='plain.csv')}?label=pay")
    (tmp_path / name).write_bytes(gzip.compress(b"\n".join(line.encode() for line in PEOPLE)))
    packed = load_records(f"csv:{tmp_path / name}?label=pay")
    assert packed.inputs.equal(plain.inputs)


@pytest.mark.parametrize(("sep", "sign"), [(";", ";"), ("tab", "\t")])
def test_other_separators_named_or_not(csv_file: Write, sep: str, sign: str) -> None:
    plain = load_records(f"csv:{csv_file(*PEOPLE)}?label=pay")
    path = csv_file(*(line.replace(",", sign) for line in PEOPLE))
    called = {";": "semicolon", "tab": "tab"}[sep]
    for option in ("", f"&sep={sep}"):
        records = load_records(f"csv:{path}?label=pay{option}")
        assert records.inputs.equal(plain.inputs)
        assert records.notes["separator"] == called


def test_signs_in_quotes_separate_no_cells(csv_file: Write) -> None:
    path = csv_file('"a;b;c",y', "1,0", "2,1")
    assert load_records(f"csv:{path}?label=y").features[0].name == "a;b;c"


def test_decimal_commas(csv_file: Write) -> None:
    path = csv_file("a;t;y", "1,5;x,y;0", "-2,25e1;z;1", "3;z;0")
    records = load_records(f"csv:{path}?label=y&decimal=,")
    assert records.inputs[:, 0].tolist() == [1.5, -22.5, 3]
    assert records.features[1].values == ("x,y", "z")
    assert records.notes["decimal"] == "comma"
    mixed = csv_file("a;y", "1,5;0", "1.234;1")
    with pytest.raises(DataError, match=r"column 'a': '1\.234' has a point, and decimal=, says"):
        load_records(f"csv:{mixed}?label=y&decimal=,")


@pytest.mark.parametrize("cell", ['"{},50"', '"{},234.50"', "${}"])
def test_numbers_of_other_spelling_are_named_with_their_remedy(csv_file: Write, cell: str) -> None:
    path = csv_file("income,y", *(f"{cell.format(i)},{i % 2}" for i in range(10, 99)))
    words = r"column 'income': 89 different .* in record 1,.* write plain numbers such as 1234\.5"
    with pytest.raises(DataError, match=words) as refused:
        load_records(f"csv:{path}?label=y")
    assert "drop=" not in str(refused.value)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16"])
def test_other_encodings(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("größe,ort,y\n1,Köln,0\n2,Bonn,1\n".encode(encoding))
    records = load_records(f"csv:{path}?label=y&encoding={encoding}")
    assert [feature.name for feature in records.features] == ["größe", "ort"]
    assert records.notes["encoding"] == encoding
    with pytest.raises(DataError, match=r"not text in UTF-8 .*encoding=latin-1"):
        load_records(f"csv:{path}?label=y")
    with pytest.raises(UsageError, match="encoding=klingon: Python knows no such encoding"):
        load_records(f"csv:{path}?label=y&encoding=klingon")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (("1,2,x", "1,2"), "line 3: 2 cells where the header has 3"),
        (("1,2,x", "1,2,x,4"), "Expected 3 fields in line 3, saw 4"),
        (("r,1,2,x", "r,1,2"), "line 2: 4 cells where the header has 3"),
        (("r,1,2,x", "r,1,2,x,5"), "Expected 4 fields in line 3, saw 5"),
        (("p,r,1,2,x", "p,r,1,2,x"), "line 2: 5 cells where the header has 3"),
        (("1,2,", "1,,x", ",,"), None),
    ],
    ids=["short", "long", "short behind names", "long behind names", "two names", "empty cells"],
)
def test_no_line_is_filled_up_or_cut(
    csv_file: Write, rows: tuple[str, ...], words: str | None
) -> None:
    path = csv_file("a,b,y", *rows)
    if words is None:
        assert read_table(path).texts("y") == ["", "x", ""]
        return
    with pytest.raises(DataError, match=words):
        read_table(path)


@pytest.mark.parametrize(
    ("lines", "options", "error", "message"),
    [
        (PEOPLE, "", UsageError, "option 'label' is missing"),
        (PEOPLE, "label=pya", UsageError, "no column 'pya' (did you mean 'pay'?); it has age, job"),
        (PEOPLE, "label=pay&attribute=sxe", UsageError, "(did you mean 'sex'?)"),
        (PEOPLE, "label=pay&drop=jobs", UsageError, "(did you mean 'job'?)"),
        (PEOPLE, "label=pay&user=nobody", UsageError, "no column 'nobody'"),
        (PEOPLE, "label=pay&member=nobody", UsageError, "no column 'nobody'"),
        (PEOPLE, "label=pay&member=job", DataError, "column 'job': '(missing)' does not say"),
        (PEOPLE, "label=pay&scale=minmax", UsageError, "one of none, standard"),
        (PEOPLE, "label=pay&task=ranking", UsageError, "one of classification, regression"),
        (PEOPLE, "label=pay&task=regression", UsageError, "column 'pay': holds text such as"),
        (PEOPLE, "label=pay&sep=colon", UsageError, "one of ,, ;, tab"),
        (PEOPLE, "label=pay&colour=red", UsageError, "unknown option 'colour'"),
        (PEOPLE, "label=pay&sep=tab", UsageError, "no column 'pay'"),
        (PEOPLE, "label=job", DataError, "column 'job': 1 of 4 labels are missing"),
        (PEOPLE, "label=pay&drop=age,job,sex", DataError, "no column is left"),
        (("a,b,a", "1,2,3"), "label=b", DataError, "columns 1 and 3 are both called 'a'"),
        (("a,b", "1,2", "3"), "label=b", DataError, "line 3: 1 cells where the header has 2"),
        (
            ("a,b", "1e39,0", "3,1"),
            "label=b",
            DataError,
            "column 'a': 1 values are infinite or too large",
        ),
    ],
)
def test_bad_requests_and_bad_files(
    csv_file: Write, lines: tuple[str, ...], options: str, error: type[Exception], message: str
) -> None:
    path = csv_file(*lines)
    with pytest.raises(error) as caught:
        load_records(f"csv:{path}?{options}")
    assert message in str(caught.value)
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_column_of_names_is_refused_with_the_remedy(csv_file: Write) -> None:
    path = csv_file("name,x,y", *(f"n{i},{i},{i % 2}" for i in range(200)))
    with pytest.raises(DataError, match=r"column 'name': 200 different .*or fewer categories"):
        load_records(f"csv:{path}?label=y")
    assert load_records(f"csv:{path}?label=y&drop=name").inputs.shape == (200, 1)


@pytest.mark.parametrize("option", ["sep=tab", "decimal=,"])
def test_options_of_csv_are_refused_for_json_lines(tmp_path: Path, option: str) -> None:
    (tmp_path / "t.jsonl").write_text('{"a": 1, "y": 0}\n{"a": 2, "y": 1}\n')
    with pytest.raises(UsageError, match="is no CSV file; leave out sep= and decimal="):
        load_records(f"csv:{tmp_path / 't.jsonl'}?label=y&{option}")


def test_an_encoding_that_would_not_fit_is_refused(
    csv_file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "MAX_BYTES", 80)
    assert load_records(f"csv:{csv_file(*PEOPLE)}?label=pay&drop=job").inputs.numel() == 12
    with pytest.raises(DataError, match=r"numbers of shape \(4, 6\)"):
        load_records(f"csv:{csv_file(*PEOPLE)}?label=pay")


def test_names_with_control_characters_reach_no_message(csv_file: Write) -> None:
    names = csv_file("a\x1b[31mb,y", *(f"n{i},{i % 2}" for i in range(99)))
    with pytest.raises(DataError, match="column 'a\ufffd") as refused:
        load_records(f"csv:{names}?label=y")
    assert "\x1b" not in str(refused.value)


def test_standardising_against_the_definition() -> None:
    numbers = np.random.default_rng(0).lognormal(3, 2, (50, 3))
    expected = (numbers - numbers.mean(axis=0)) / np.sqrt(
        ((numbers - numbers.mean(axis=0)) ** 2).mean(axis=0)
    )
    np.testing.assert_allclose(standardise(numbers), expected, rtol=1e-6)
    tenth = np.full((7, 1), 0.1)  # its computed mean is not exactly 0.1
    assert standardise(tenth).tolist() == [[0.0]] * 7


@pytest.mark.slow
@given(
    rows=st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cs", "Cc"])), st.floats(-1e6, 1e6)),
        min_size=1,
        max_size=20,
    )
)
def test_what_a_csv_writer_wrote_is_found_again_in_the_inputs(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, float]]
) -> None:
    path = tmp_path_factory.mktemp("csv") / "table.csv"
    rows = [("text", 0.0), *rows]
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("words", "number"), *rows])
    table = read_table(path)
    found = zip(*map(table.texts, table.cells), strict=True)
    assert list(found) == [(t, str(n)) for t, n in rows]
    words, number = map(table.column, table.cells)
    encoded = encode((words, number), "table", "none")
    chosen = encoded.array[:, :-1].argmax(axis=1)
    assert [words.values[i] for i in chosen] == [words.values[i] for i in words.codes]
    np.testing.assert_array_equal(encoded.array[:, :-1].sum(axis=1), 1)
    np.testing.assert_array_equal(encoded.array[:, -1], np.float32([n for _, n in rows]))


def test_missing_text_and_a_column_beside_it_do_not_touch() -> None:
    first = DataColumn.of_text("a", "a", ["x", "", "y"])
    second = DataColumn.of_text("b", "b", ["", "2", "4"])
    encoded = encode((first, second), "table", "none")
    assert encoded.array.tolist() == [[0, 1, 0, 3], [1, 0, 0, 2], [0, 0, 1, 4]]
