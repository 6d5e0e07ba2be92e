"""Pickles and archives made byte by byte, which torch.save never writes."""

import io
import struct
import zipfile
from collections.abc import Callable

STORAGE = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x06tQ"
HOOKS = b"ccollections\nOrderedDict\n)R"


def called(name: str, *arguments: bytes) -> bytes:
    """A call of ``module.name``."""
    return (
        b"c"
        + b"\n".join(name.encode().rpartition(b".")[::2])
        + b"\n("
        + b"".join(arguments)
        + b"tR"
    )


def rebuilt(
    offset: bytes = b"K\0",
    size: bytes = b"K\x02K\x03\x86",
    stride: bytes = b"K\x03K\x01\x86",
    storage: bytes = STORAGE,
    hooks: bytes = HOOKS,
    more: bytes = b"",
) -> bytes:
    """A tensor."""
    name = "torch._utils._rebuild_tensor_v2"
    return called(name, storage, offset, size, stride, b"\x89", hooks, more)


def entry(value: bytes, key: bytes = b"X\x01\0\0\0w") -> bytes:
    """A pickled dict of one item."""
    return b"\x80\x02}" + key + value + b"s."


def whole(number: int) -> bytes:
    """A whole number of any size."""
    encoded = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(encoded)]) + encoded


NESTED = b")" + b"".join(b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(60))

PICKLES = {
    "a nested tuple that takes for ever to hash": (entry(b"N", NESTED), "cannot read it"),
    "a shallow one": (entry(b"N", b"K\x01\x85"), "holds no named tensors"),
    "deep tuples": (entry(b")" + b"\x85" * 100_000), "holds no named tensors"),
    "a float as key": (entry(b"N", b"G" + bytes(8)), "holds no named tensors"),
    "a truth value as key": (entry(b"N", b"\x88"), "holds no named tensors"),
    "none as key": (entry(b"N", b"N"), "holds no named tensors"),
    "a tensor as key": (entry(b"N", rebuilt()), "holds no named tensors"),
    "3 GB of bytes": (entry(called("__builtin__.bytearray", whole(3 * 10**9))), "cannot read it"),
    "bytes of python 3": (entry(called("builtins.bytearray", whole(3 * 10**9))), "cannot read it"),
    "sets": (entry(called("__builtin__.set", b"]")), "holds no named tensors"),
    "an empty set": (entry(b"\x8f"), "holds no named tensors"),
    "complex numbers": (
        entry(called("__builtin__.complex", b"K\x01", b"K\x01")),
        "holds no named tensors",
    ),
    "attributes of a class": (
        entry(called("__builtin__.getattr", b"cpathlib\nPosixPath\n", b"X\x05\0\0\0touch")),
        "asks to run",
    ),
    "an inert value that is called": (entry(b"cdatetime\ndate\n)R)R"), "cannot read it"),
    "a value filled like a dict": (entry(b"cdatetime\ndate\n)RK\x01Ns"), "cannot read it"),
    "a tensor of an inert size": (
        entry(rebuilt(size=b"cnumpy\ndtype\n)RK\x03\x86")),
        "cannot read it",
    ),
    "attributes on a dict that stands in": (
        entry(b"ccollections\ndefaultdict\n)R}X\x05\0\0\0itemsNsb"),
        "cannot read it",
    ),
    "an inert value as key": (entry(b"N", b"cpathlib\nPosixPath\n)R"), "holds no named tensors"),
    "bytes by encoding": (entry(called("_codecs.encode", b"N", b"N")), "cannot read it"),
    "a storage by its size": (
        entry(called("torch.FloatStorage", whole(1 << 40))),
        "cannot read it",
    ),
    "a tensor by its size": (
        entry(called("torch.FloatTensor", whole(1 << 40))),
        "cannot read it",
    ),
    "an untyped storage": (
        entry(called("torch.storage.UntypedStorage", whole(1 << 40))),
        "cannot read it",
    ),
    "a tensor class": (entry(called("torch.Tensor", whole(1 << 40))), "cannot read it"),
    "a tensor without data": (
        entry(called("torch._utils._rebuild_meta_tensor_no_storage", b"N")),
        "cannot read it",
    ),
    "a sparse tensor": (
        entry(called("torch._utils._rebuild_sparse_tensor", b"N")),
        "cannot read it",
    ),
    "a nested tensor": (
        entry(called("torch._utils._rebuild_nested_tensor", b"N")),
        "cannot read it",
    ),
    "a tensor with attributes": (
        entry(called("torch._utils._rebuild_parameter_with_state", b"N")),
        "cannot read it",
    ),
    "attributes on a tensor": (entry(rebuilt() + b"}X\x06\0\0\0detachNsb"), "cannot read it"),
    "attributes on a dict": (
        b"\x80\x02" + HOOKS + b"}X\x05\0\0\0itemsNsb.",
        "cannot read it",
    ),
    "attributes by a tuple": (b"\x80\x02" + HOOKS + b"N}\x86b.", "cannot read it"),
    "a size below zero": (entry(rebuilt(size=b"J\xff\xff\xff\xffK\x03\x86")), "cannot read it"),
    "a size of 2000 bits": (entry(rebuilt(size=whole(1 << 2000) + b"K\x03\x86")), "cannot read it"),
    "a size of text": (entry(rebuilt(size=b"X\x01\0\0\0aK\x03\x86")), "cannot read it"),
    "an offset below zero": (entry(rebuilt(offset=b"J\xff\xff\xff\xff")), "cannot read it"),
    "fewer strides": (entry(rebuilt(stride=b"K\x03\x85")), "cannot read it"),
    "a size beyond the storage": (entry(rebuilt(size=b"K\x02K\x04\x86")), "larger than itself"),
    "an offset beyond it": (entry(rebuilt(offset=b"K\x01")), "larger than itself"),
    "strides beyond it": (entry(rebuilt(stride=b"K\x04K\x01\x86")), "larger than itself"),
    "a storage beyond the file": (
        entry(rebuilt(storage=STORAGE.replace(b"K\x06", b"K\x07"))),
        "larger than itself",
    ),
    "a storage that is not there": (
        entry(rebuilt(storage=STORAGE.replace(b"X\x01\0\0\x000", b"X\x01\0\0\x001"))),
        "cannot read it",
    ),
    "a storage that is none": (entry(rebuilt(storage=b"N")), "cannot read it"),
    "something else that is kept outside": (entry(b"K\x01Q"), "cannot read it"),
    "a call of a number": (entry(b"K\x01)R"), "cannot read it"),
    "a call of a type": (entry(b"ctorch\nfloat32\n)R"), "cannot read it"),
    "sizes of sizes": (entry(called("torch.Size", b"K\x01\x85\x85")), "cannot read it"),
    "a device of numbers": (entry(called("torch.device", b"K\x01")), "cannot read it"),
    "a count of a list": (entry(called("collections.Counter", b"]")), "holds no named tensors"),
    "items put into a list": (b"\x80\x02]K\x01K\x02s.", "cannot read it"),
    "a value appended to a dict": (b"\x80\x02}K\x01a.", "cannot read it"),
    "a mark as a value": (b"\x80\x02}(q\x00.", "cannot read it"),
    "a mark in a tuple": (b"\x80\x02}(\x85.", "cannot read it"),
    "nothing on the stack": (b"\x80\x02.", "cannot read it"),
    "two values": (b"\x80\x02}}.", "holds no named tensors"),
    "no end": (b"\x80\x02}", "cannot read it"),
    "nothing": (b"", "cannot read it"),
    "what was never kept": (b"\x80\x02h\x07.", "cannot read it"),
    "another protocol": (b"\x80\x04}.", "holds no named tensors"),
    "a class made": (b"\x80\x02cos\nsystem\n)\x81.", "os.system"),
    "an old instance": (b"\x80\x02(ios\nsystem\n.", "cannot read it"),
    "a name from the stack": (b"\x80\x02X\x02\0\0\0osX\x06\0\0\0system\x93.", "cannot read it"),
    "a name like one allowed": (entry(b"ctorch._utils\n_rebuild_tensor_v2 \n"), "more than plain"),
    "a dunder of torch": (entry(b"ctorch\n__builtins__\n"), "torch.__builtins__"),
}


def archived(pickle: bytes) -> bytes:
    """An archive of torch.save around a pickle, with six numbers."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a/data.pkl", pickle)
        archive.writestr("a/byteorder", "little")
        archive.writestr("a/data/0", struct.pack("<6f", *range(6)))
        archive.writestr("a/version", "3")
    return stream.getvalue()


def central(data: bytes) -> int:
    """Where the directory of an archive starts."""
    return int.from_bytes(data[-6:-2], "little")


def zip64(data: bytes, **other: int) -> bytes:
    """The archive with a zip64 end record beside its own, true where ``other`` does not differ."""
    count, length, start = struct.unpack("<H2L", data[-12:-2])
    true = {"place": len(data) - 22, "size": 44, "count": count, "length": length, "start": start}
    value = true | other
    record = struct.pack(
        "<4sQ2H2L4Q", b"PK\x06\x06", value["size"], 45, 45, 0, 0, value["count"], value["count"],
        value["length"], value["start"],
    )  # fmt: skip
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, value["place"], 1)
    return data[:-22] + record + locator + data[-22:]


def two_directories(data: bytes) -> bytes:
    """A reader that believes the locator finds another directory than one that looks before it."""
    start, place = central(data), len(data) - 22
    grown = data[:place] + data[start:place]
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 4, 4, place - start, place)
    other = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 4, 4, place - start, start)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, len(grown), 1)
    return grown + record + other + locator + data[-22:]


def changed(offset: int, value: int, size: int = 2) -> Callable[[bytes], bytes]:
    """Put another number into the directory's first entry."""

    def change(data: bytes) -> bytes:
        at = central(data) + offset
        return data[:at] + value.to_bytes(size, "little") + data[at + size :]

    return change


DOUBTFUL: dict[str, Callable[[bytes], bytes]] = {
    "a locator that points elsewhere": lambda data: zip64(data, place=0),
    "a longer zip64 record": lambda data: zip64(data, size=60),
    "other counts": lambda data: zip64(data, count=1),
    "another directory": lambda data: zip64(data, start=0),
    "two directories": two_directories,
    "a gap before the end": lambda data: data[:-22] + b"x" + data[-22:],
    "several parts": lambda data: data[:-18] + b"\x01\0" + data[-16:],
    "a comment of an entry": changed(32, 4),
    "a field of an entry": changed(30, 4),
    "an entry in another part": changed(34, 1),
    "a patch": changed(8, 0x20),
    "a masked entry": changed(8, 0x2000),
    "a size in 64 bits that is not there": changed(24, 0xFFFFFFFF, 4),
    "a name that the entry itself does not have": lambda data: data[:32] + b"D" + data[33:],
}
