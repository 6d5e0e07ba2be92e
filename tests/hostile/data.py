"""Tables, NumPy archives, pictures and texts that are none."""

import gzip
import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from hostile.case import MODEL, OUTPUT, Case, Touch

AUDIT = f"forward -m '{MODEL}' {OUTPUT} -d"
SOUND = b"a,b,y\n" + b"1,2,no\n3,5,yes\n" * 8

Content = bytes | Callable[[Path], object]
Row = tuple[Content, str] | tuple[Content, str, str]
"""A file, what its refusal says, and further options of the data's spec."""
USAGE = frozenset(
    {
        *("no column 'y'", "no column 'text'", "no column 'z'", "no key 'y'", "no key 'x'"),
        *("no such folder", "length is at least 1"),
    }
)
"""Words of the refusals that end with the status of wrong usage."""


def names(count: int) -> bytes:
    """A table whose label is another in every record."""
    return b"a,y\n" + b"".join(b"%d,name-%d\n" % (i % 7, i) for i in range(count))


def packed(content: bytes, times: int) -> Callable[[Path], object]:
    """A file of something many times over, compressed."""

    def write(path: Path) -> None:
        with gzip.open(path, "wb", compresslevel=6) as stream:
            stream.write(b"a,b,y\n")
            for _ in range(times):
                stream.write(content)

    return write


TABLES: dict[str, Row] = {
    "nothing": (b"", "is empty"),
    "a header alone": (b"a,b,y\n", "no records after the header"),
    "no header": (SOUND.partition(b"\n")[2], "no column 'y'"),
    "one column": (b"y\nno\nyes\n", "no column is left"),
    "ragged lines": (b"a,b,y\n1,2\n", "2 cells where the header has 3"),
    "a column twice": (b"a,a,y\n1,2,no\n", "both called 'a'"),
    "an open quote": (b'a,y\n"1,no\n2,yes\n', "is not a CSV file"),
    "zero bytes": (b"a,y\n1\0,no\n2,yes\n", "holds zero bytes"),
    "bytes of no text": (b"a,y\n\xff\xfe,no\n", "not text in UTF-8"),
    "UTF-16": ("a,y\n1,no\n".encode("utf-16"), "not text in UTF-8"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(64), "not text in UTF-8"),
    "one line of 5 MiB": (lambda path: path.write_bytes(b"a" * (5 << 20)), "field larger than"),
    "a cell of 200 KB": (b"a,y\n" + b"1" * 200_000 + b",no\n", "every record has the label 'no'"),
    "200,000 columns": (lambda path: path.write_bytes(b"a," * 200_000), "over the limit"),
    "a bomb": (packed(b"0" * (1 << 20), 800), "takes more than"),
    "a bomb of records": (packed(b"1,2,no\n" * (1 << 17), 60), "takes more than"),
    "a bomb of lines": (packed(b"\n" * (1 << 20), 8), "no records after the header"),
    "damaged gzip": (gzip.compress(SOUND * 9)[:-20], "is damaged"),
    "one class": (b"a,y\n1,x\n2,x\n", "every record has the label 'x'"),
    "a class for every record": (names(3000), "are no categories"),
    "infinite numbers": (b"a,y\n1e400,0\n2,1\n", "infinite or too large"),
    "names of escapes": (b"\x1b[31m,a\n1,2\n", "no column 'y'"),
    "a formula for a name": (b"=cmd|'/c calc'!A1,a\n1,2\n", "no column 'y'"),
    "a label that is missing": (b"a,y\n1,\n2,yes\n", "labels are missing"),
    "JSON of lists in lists": (b'{"a": 1, "y": 0}\n{"a": ' + b"[" * 200_000, "line 2: is no JSON"),
    "JSON of a long number": (b'{"a": 1, "y": 0}\n{"a": ' + b"9" * 9000 + b"}\n", "line 2: is no"),
    "JSON of more and more keys": (
        b'{"y": 0}\n' + b"".join(b'{"k%d": 1, "y": 1}\n' % k for k in range(9000)),
        "over 20000000 cells",
    ),
    "JSON with a key twice": (b'{"a": 1, "y": 0}\n{"a": 1, "a": 2, "y": 1}\n', "key 'a' twice"),
}


def arrays(**content: Any) -> bytes:
    """What numpy.savez_compressed writes, packed in less time."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, value in content.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(value))
    return stream.getvalue()


def declared(descr: str, shape: tuple[int, ...], body: bytes = b"") -> bytes:
    """An archive of inputs whose header declares what its body does not hold."""
    stream = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)  # type: ignore[arg-type]
    return members(x=stream.getvalue() + body)


def header(text: bytes) -> bytes:
    """The beginning of an array file."""
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text


def members(**content: bytes) -> bytes:
    """An archive of files that are no arrays, or not what they seem."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, each in content.items():
            archive.writestr(f"{name}.npy", each)
    return stream.getvalue()


def plain(array: Any) -> bytes:
    """What numpy.save writes."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


GOOD: dict[str, Any] = {"x": np.zeros((4, 2), np.float32), "y": [0, 1, 0, 1]}

ARRAYS: dict[str, Row] = {
    "nothing": (b"", "no sound .npz archive"),
    "one array": (plain(np.zeros((4, 2))), "no sound .npz archive"),
    "a pickle": (plain(np.array([Touch()], dtype=object)), "no sound .npz archive"),
    "objects as inputs": (
        arrays(**{**GOOD, "x": np.array([[Touch()]] * 4, dtype=object)}),
        "key 'x': holds Python objects",
    ),
    "objects as labels": (
        arrays(**{**GOOD, "y": np.array([Touch()] * 4, dtype=object)}),
        "key 'y': holds Python objects",
    ),
    "objects as names": (
        arrays(**GOOD, y_names=np.array([Touch()] * 2, dtype=object)),
        "holds Python objects",
    ),
    "a bomb of labels": (
        lambda path: path.write_bytes(arrays(**{**GOOD, "y": np.zeros(1 << 25, np.int8)})),
        "has 33554432 entries for 4 records",
    ),
    "a bomb of inputs": (
        lambda path: path.write_bytes(arrays(**{**GOOD, "x": np.zeros((4, 200 << 20), np.int8)})),
        "takes more than",
    ),
    "an array of 7 TiB": (declared("<f8", (10**9, 1000)), "takes more than"),
    "a size beyond all bounds": (declared("<f8", (1 << 62, 1 << 62)), "no sound .npz archive"),
    "a size below zero": (declared("<f8", (-4, 2)), "no sound .npz archive"),
    "a size that is not there": (declared("<f8", (4, 2), bytes(8)), "no sound .npz archive"),
    "a deep header": (members(x=header(b"(" * 9_000)), "no sound .npz archive"),
    "a header of 320 MiB": (lambda path: long_header(path), "takes more than"),
    "a directory of 5 MiB": (lambda path: many_entries(path), "no key 'x'"),
    "a header that is code": (
        members(x=header(b"{'descr': __import__('os').abort()}")),
        "no sound .npz archive",
    ),
    "records of fields": (
        arrays(**{**GOOD, "x": np.zeros(4, [("a", "<f4"), ("b", "<f4")])}),
        "is of type",
    ),
    "complex numbers": (arrays(**{**GOOD, "x": np.zeros((4, 2), complex)}), "complex128"),
    "text": (arrays(**{**GOOD, "x": np.full((4, 2), "a")}), "inputs are numbers"),
    "numbers that are not finite": (
        arrays(**{**GOOD, "x": np.full((4, 2), np.nan)}),
        "hold NaN or infinity",
    ),
    "numbers that are too large": (
        arrays(**{**GOOD, "x": np.full((4, 2), 1e300)}),
        "hold NaN or infinity",
    ),
    "a header of Python 2, which numpy warns of": (
        members(x=header(b"{'descr': '<f8', 'fortran_order': False, 'shape': (4L, 2L)}") + b"0"),
        "no sound .npz archive",
    ),
    "no records": (arrays(x=np.zeros((0, 2)), y=np.zeros(0)), "shape (0, 2)"),
    "one dimension": (arrays(x=np.zeros(4), y=[0, 1, 0, 1]), "shape (4,)"),
    "a label too few": (arrays(**{**GOOD, "y": [0, 1, 0]}), "has 3 entries for 4 records"),
    "a class of a billion": (
        arrays(**{**GOOD, "y": [0, 1, 0, 10**9]}),
        "class index 1000000000 is too large",
    ),
    "no such key": (arrays(x=GOOD["x"]), "no key 'y'"),
    "an entry twice": (lambda path: twice(path), "keys twice"),
    "a name that leads out": (members(**{"../x": b""}), "no key 'x'"),
}


def long_header(path: Path) -> None:
    """An array whose header takes more than any array, compressed."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w") as stream,
    ):
        stream.write(b"\x93NUMPY\2\0" + struct.pack("<I", 320 << 20))
        for _ in range(320):
            stream.write(b" " * (1 << 20))


def many_entries(path: Path) -> None:
    """An archive of empty arrays, with a directory that is longer than its content."""
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(90):
            archive.writestr(zipfile.ZipInfo(f"{number:060000}.npy"), b"")


def twice(path: Path) -> None:
    """An archive in which a name occurs twice, with other inputs."""
    path.write_bytes(arrays(**GOOD))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x.npy", plain(np.array([Touch()], dtype=object)))


def picture(path: Path, size: tuple[int, int] = (4, 4), **options: Any) -> Path:
    """A grey picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size).save(path, **options)
    return path


def classes(spoil: Callable[[Path], object]) -> Callable[[Path], object]:
    """A folder of two classes, of which one picture is spoilt."""

    def write(folder: Path) -> None:
        picture(folder / "cats" / "1.png")
        spoil(picture(folder / "dogs" / "2.png"))

    return write


def described(table: str) -> Callable[[Path], object]:
    """A folder of pictures with a table."""

    def write(folder: Path) -> None:
        picture(folder / "1.png")
        (folder / "inside.csv").write_text(table)

    return write


def bomb(path: Path) -> None:
    """A picture of 400 million pixels in some hundred kilobytes."""
    size = 20_000
    pixels = zlib.compress(bytes(size * (1 + size // 8)), 1)
    chunks = (b"IHDR" + struct.pack(">2L5B", size, size, 1, 0, 0, 0, 0), b"IDAT" + pixels, b"IEND")
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">L", len(chunk) - 4) + chunk + struct.pack(">L", zlib.crc32(chunk))
            for chunk in chunks
        )
    )


def tiff(tag: int, value: int) -> bytes:
    """A TIFF of a directory of sizes, and one tag more."""
    tags = {256: 4, 257: 4, 258: 8, 259: 1, 262: 1, 273: 8, 278: 4, 279: 16, tag: value}
    entries = b"".join(struct.pack("<2HLL", t, 3, 1, v) for t, v in sorted(tags.items()))
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4)


def escaping(path: Path) -> None:
    """A picture whose name holds what a terminal obeys."""
    path.with_name("\x1b[31mred\n.png").write_bytes(b"none")


def sounds(samples: int, declared: int) -> Callable[[Path], None]:
    """Two sounds in two classes, whose headers declare more than there is."""

    def write(path: Path) -> None:
        data = struct.pack("<4sL", b"data", 2 * declared) + bytes(2 * samples)
        form = struct.pack("<4sLHHLLHH", b"fmt ", 16, 1, 1, 8000, 16000, 2, 16)
        content = b"WAVE" + form + data
        for kind in "ab":
            (path / kind).mkdir(parents=True)
            (path / kind / "1.wav").write_bytes(b"RIFF" + struct.pack("<L", len(content)) + content)

    return write


SOUNDS: dict[str, Row] = {
    "a length that would not fit": (sounds(50, 1 << 30), "takes more than"),
    "a length that is not there": (sounds(50, 90), "samples and ends before", "?length=100"),
    "no samples": (sounds(0, 0), "holds no samples"),
}

PICTURES: dict[str, Row] = {
    "a file for a folder": (b"", "no such folder"),
    "nothing": (lambda path: path.mkdir(), "0 sub-folders hold pictures"),
    "one class": (lambda path: picture(path / "a" / "1.png"), "1 sub-folders"),
    "a picture of too many pixels": (classes(bomb), "too many pixels"),
    "a picture cut short": (
        classes(lambda path: path.write_bytes(path.read_bytes()[:-30])),
        "cannot be read as a picture",
    ),
    "an empty picture": (classes(lambda p: p.write_bytes(b"")), "cannot be read"),
    "a drawing": (
        classes(lambda path: path.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")),
        "cannot be read as a picture",
    ),
    "a program of PostScript": (
        classes(lambda path: Image.new("RGB", (5, 4)).save(path, format="EPS")),
        "cannot be read as a picture",
    ),
    "a picture of many samples, which a decoder logs": (
        classes(lambda path: path.write_bytes(tiff(277, 99))),
        "cannot be read as a picture",
    ),
    "a picture of a cut directory, which a decoder warns of": (
        classes(lambda path: path.write_bytes(tiff(256, 5)[:-9])),
        "resize all",
    ),
    "floats as pixels": (
        classes(lambda path: Image.fromarray(np.zeros((4, 4), np.float32)).save(path, "TIFF")),
        "pixels of mode F",
    ),
    "pictures of other sizes": (classes(lambda p: picture(p, (5, 5))), "resize all"),
    "a name of escapes": (classes(escaping), "cannot be read as a picture"),
    "a pipe for a picture": (
        classes(lambda path: (path.unlink(), os.mkfifo(path))),
        "no regular file",
    ),
    "a link to itself": (
        classes(lambda path: (path.unlink(), path.symlink_to(path))),
        "cannot be read",
    ),
    "a picture outside": (
        described("file,y\n../table.csv,0\n1.png,1\n"),
        "is not inside",
        "?table=inside.csv&label=y",
    ),
    "a picture from the root": (
        described("file,y\n/etc/passwd,0\n1.png,1\n"),
        "is not inside",
        "?table=inside.csv&label=y",
    ),
    "a picture that is not there": (
        described("file,y\n2.png,0\n1.png,1\n"),
        "No such file",
        "?table=inside.csv&label=y",
    ),
}

TEXTS: dict[str, Row] = {
    "nothing": (b"", "is empty"),
    "bytes": (bytes(range(256)), "not text in UTF-8"),
    "another column": (b"words,y\nx,0\n", "no column 'text'"),
    "tokens beyond memory": (b"text,y\na,0\nb,1\n", "more than 4 GiB", "&length=9999999999"),
    "no words": (b"text,y\n,0\n,1\n", "length is at least 1", "&length=0"),
}


def frame(**columns: Any) -> Any:
    """A table with a label."""
    return pa.table({"a": [1, 2] * 8, "y": ["no", "yes"] * 8, **columns})


def parquet(content: Any, **options: Any) -> bytes:
    """What pyarrow writes."""
    stream = io.BytesIO()
    pq.write_table(content, stream, **options)
    return stream.getvalue()


def arrow(content: Any, codec: str | None = None) -> bytes:
    """A stream of Arrow."""
    stream = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(stream, content.schema, options=options) as writer:
        writer.write_table(content)
    return stream.getvalue()


def repeated(**options: Any) -> bytes:
    """11 million records of the same, in little space."""
    pieces = pa.chunked_array([pa.array(np.zeros(1 << 20, np.int8))] * 11)
    return parquet(pa.table({"a": pieces, "y": pieces}), **options)


def one_list(length: int) -> bytes:
    """A record of a list of noughts, in some thousand bytes."""
    values = pa.array(np.zeros(length, np.int8))
    noughts = pa.ListArray.from_arrays(pa.array([0, length], pa.int32()), values)
    table = pa.table({"a": noughts, "y": ["no"]})
    return parquet(table, compression="zstd", use_dictionary=False, write_statistics=False)


PARQUET = parquet(frame())
STREAM = arrow(frame())


def wide(path: Path) -> None:
    """A table of 2,000 columns and two records, of which no label is known."""
    columns: dict[str, list[Any]] = {f"c{number}": [1.5, 2.5] for number in range(2_000)}
    path.write_bytes(parquet(pa.table({**columns, "y": ["no", None]})))


FRAMES: dict[str, Row] = {
    "nothing": (b"", "is empty"),
    "a header alone": (b"PAR1", "no sound Parquet"),
    "noise": (b"PAR1" + bytes(range(256)) * 9 + b"PAR1", "no sound Parquet"),
    "a footer of 4 GiB": (PARQUET[:-8] + b"\xff\xff\xff\xffPAR1", "no sound Parquet"),
    "a footer of nothing": (PARQUET[:-8] + bytes(4) + b"PAR1", "no sound Parquet"),
    "a footer that is cut": (PARQUET[:-40], "no sound Parquet"),
    "pages that are not there": (PARQUET[:4] + bytes(200) + PARQUET[204:], "no sound Parquet"),
    "records without end": (lambda path: path.write_bytes(repeated()), "cells (2 columns)"),
    "a list without end": (
        lambda path: path.write_bytes(one_list(1 << 28)),
        "takes more than",
    ),
    "2,000 columns": (wide, "labels are missing"),
    "no records": (parquet(frame().slice(0, 0)), "there are no records"),
    "bytes": (parquet(frame(b=[b"1"] * 16)), "column 'b' holds binary"),
    "lists": (parquet(frame(b=[[1]] * 16)), "column 'b' holds list"),
    "a name of escapes": (parquet(frame(**{"\x1b[31m\n": [[1]] * 16})), "holds list"),
    "times of a zone that is none": (
        parquet(frame(b=pa.array([1] * 16, pa.timestamp("s", "No/Where\x1b[31m")))),
        "column 'b' holds timestamp[ms, tz=No/Where",
    ),
    "times beyond the calendar": (
        parquet(frame(b=pa.array([1 << 60] * 16, pa.timestamp("ms")))),
        "column 'b' holds timestamp[",
    ),
    "a column twice": (arrow(pa.table([[1, 2], [3, 4]], names=["a", "a"])), "both called 'a'"),
    "no label": (parquet(frame().drop_columns("y")), "no column 'y'"),
    "a bomb of Arrow": (
        arrow(pa.table({"a": np.zeros(1 << 27), "y": np.zeros(1 << 27)}), "zstd"),
        "takes more than",
    ),
    "Arrow that is cut": (STREAM[:-300], "no sound Parquet or Arrow file"),
    "Arrow's first bytes": (b"ARROW1\0\0", "no sound Parquet or Arrow file"),
    "a message of 2 GiB": (
        b"\xff\xff\xff\xff" + struct.pack("<i", (1 << 31) - 1),
        "no sound Parquet or Arrow file",
    ),
    "offsets that lead out": (
        arrow(pa.table({"y": ["ab"] * 9})).replace(
            struct.pack("<3i", 2, 4, 6), struct.pack("<3i", 2, 1 << 30, 6)
        ),
        "no sound Parquet or Arrow file",
    ),
}


def saved(state: object, file: str = "data.arrow", info: object = None) -> Callable[[Path], object]:
    """A folder as Hugging Face's datasets write it, with this state."""

    def write(folder: Path) -> None:
        folder.mkdir()
        (folder / file).write_bytes(STREAM)
        (folder / "state.json").write_text(state if isinstance(state, str) else json.dumps(state))
        (folder / "dataset_info.json").write_text(json.dumps(info or {}))

    return write


def files(*names: object) -> dict[str, object]:
    """The state of a saved data set."""
    return {"_data_files": [{"filename": name} for name in names]}


FOLDERS: dict[str, Row] = {
    "a file": (b"", "no such folder"),
    "nothing": (lambda path: path.mkdir(), "no state.json"),
    "a file outside": (saved(files("../table.csv")), "is not beside it"),
    "a file from the root": (saved(files("/etc/passwd")), "is not beside it"),
    "a number for a file": (saved(files(3)), "is not beside it"),
    "no files": (saved(files()), "names no files"),
    "a list for a state": (saved([1]), "is not what datasets writes"),
    "a deep state": (saved('{"a":' * 100_000), "is damaged"),
    "a file that is not there": (saved(files("gone.arrow")), "No such file"),
    "a link that leads out": (
        lambda path: (saved(files("out"))(path), (path / "out").symlink_to("../table.csv")),
        "is not inside",
    ),
    "two files of other columns": (
        lambda path: (
            saved(files("data.arrow", "b.arrow"))(path),
            (path / "b.arrow").write_bytes(arrow(frame(b=["x"] * 16))),
        ),
        "has other columns than",
    ),
    "a split outside": (
        lambda path: (
            path.mkdir(),
            (path / "dataset_dict.json").write_text('{"splits": ["../x"]}'),
        ),
        "is not beside it",
    ),
    "features that are none": (
        saved(files("data.arrow"), info={"features": {"a": {"_type": "ClassLabel", "names": 3}}}),
        "no column 'z'",
        "&attribute=z",
    ),
}

_KINDS = {
    "a folder": (lambda path: path.mkdir(), "Is a directory"),
    "a pipe": (os.mkfifo, "no regular file"),
    "an endless device": (lambda path: path.symlink_to("/dev/zero"), "no regular file"),
    "a link to itself": (lambda path: path.symlink_to(path), "symbolic links"),
}

MEMORY = 768 << 20
"""What a child process may take, and a fifth of it."""

_TABLE = "csv:hostile.csv?label=y"
_ARRAY = "npz:hostile.npz?inputs=x&label=y"


def _cases(kind: str, file: str, table: dict[str, Row], spec: str) -> list[Case]:
    return [
        Case(
            f"{kind}, {name}",
            file,
            content,
            f"{AUDIT} '{spec}{''.join(more)}'",
            words,
            2 if words in USAGE else 3,
            memory=MEMORY,
        )
        for name, (content, words, *more) in table.items()
    ]


DATA_CASES = [
    *_cases("frames", "hostile.parquet", FRAMES, "parquet:hostile.parquet?label=y"),
    *_cases("saved data", "hostile", FOLDERS, "hf-datasets:hostile?label=y"),
    *_cases("table", "hostile.csv", TABLES, _TABLE),
    *_cases("arrays", "hostile.npz", ARRAYS, _ARRAY),
    *_cases("pictures", "hostile", PICTURES, "images:hostile"),
    *_cases("sounds", "hostile", SOUNDS, "sounds:hostile"),
    *_cases("texts", "hostile.csv", TEXTS, "text:hostile.csv?text=text&label=y"),
    *(
        Case(f"{name} for {kind}", "hostile.csv", content, f"{AUDIT} '{spec}'", words, 2)
        for kind, spec in (("a table", _TABLE), ("arrays", _ARRAY.replace("npz?", "csv?")))
        for name, (content, words) in _KINDS.items()
    ),
]
