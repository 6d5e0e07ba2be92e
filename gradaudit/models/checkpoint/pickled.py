"""Follows a checkpoint's pickle step by step on stand-ins before torch interprets it.

Nothing is built but numbers, text and shallow tuples; of lists, dicts and tensors there is a
stand-in. What weights never need is refused: globals other than those of plain tensors and of the
inert values that scripts save beside them (torch is given stand-ins for these), calls with other
arguments than ``torch.save`` writes, keys other than text and whole numbers (a nested tuple takes
for ever to hash), attributes on tensors and dicts, deep tuples, and more than ``MAX_STEPS`` steps.

Inert values are data but not tensors: paths, arguments, times, numbers. Reading them needs their
classes to be called, so they are not read: an object that keeps nothing stands for each. Nothing of
the classes is imported, and none of them runs code even where it is: what could is not on these
lists. Nor is what the loader makes itself: sets could take for ever to hash.
"""

import math
import pickletools
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from gradaudit.core.text import printable
from gradaudit.errors import one_line

_PLAIN = r"list|dict|int|float|str|bool|tuple"
_OBJECTS = re.compile(
    r"pathlib(?:\._local)? (?:Pure)?(?:Posix|Windows)?Path"
    r"|argparse Namespace|types SimpleNamespace|typing Any"
    rf"|(?:__builtin__|builtins) (?:{_PLAIN})"
    r"|datetime (?:datetime|date|time|timedelta|timezone)"
    r"|decimal Decimal|fractions Fraction|uuid UUID"
    r"|numpy (?:dtype|ndarray)|numpy\._?core\.multiarray (?:scalar|_reconstruct)"
    r"|numpy\.dtypes \w+DType"
    r"|omegaconf\.(?:dictconfig DictConfig|listconfig ListConfig|nodes \w+Node"
    r"|base (?:ContainerMetadata|Metadata))"
)
_DICTS = re.compile(
    r"collections defaultdict|easydict EasyDict|addict\.addict Dict"
    r"|(?:lightning|lightning_fabric|lightning\.fabric|pytorch_lightning|lightning\.pytorch)"
    r"\.utilities\.(?:data|parsing) AttributeDict"
)
MAX_STEPS = 1_000_000
"""Largest number of opcodes; a tensor takes about 30, so that 30,000 tensors fit."""
MAX_DEPTH = 32
"""Largest depth of tuples within tuples."""
_MAX_DIMENSIONS = 64
_BYTES = {
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Char", "Byte", "Bool", "Untyped"), 1),
    "ComplexDouble": 16,
}
"""Bytes of an element of a storage, by the storage's type."""
_STORAGE = re.compile(rf"torch(?:\.storage)? ({'|'.join(_BYTES)})Storage")
_MARK = object()
_LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"}


def is_object(name: str) -> bool:
    """Whether a pickle's ``module name`` makes a value that is ignored."""
    return bool(_OBJECTS.fullmatch(name))


def is_dict(name: str) -> bool:
    """Whether a pickle's ``module name`` makes a dict that is filled afterwards."""
    return bool(_DICTS.fullmatch(name))


class RefusedValue:
    """Stands in for a refused value: it accepts any call and keeps nothing."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


class _Dict:
    """Stands in for a dict that a pickle fills: it is a plain dict."""

    def __new__(cls, *_: Any) -> Any:
        return OrderedDict()


def stand_ins(names: Collection[str]) -> list[Any]:
    """Returns pairs of a stand-in and a name for the weights-only loader."""
    kinds = {name: _Dict if is_dict(name) else RefusedValue for name in names}
    return [
        (kind, name.replace("__builtin__", "builtins").replace(" ", "."))
        for name, kind in kinds.items()
    ]


class RefusedError(Exception):
    """The pickle is not that of plain weights; the message says why."""


class UnsafeGlobalsError(RefusedError):
    """The pickle names code that would run when it is loaded.

    Attributes:
        names: of the globals, ``module.name``.
    """

    def __init__(self, names: set[str]) -> None:
        super().__init__(*sorted(names))
        self.names = sorted(names)


@dataclass(frozen=True)
class _Global:
    name: str


@dataclass(frozen=True)
class _Storage:
    elements: int


@dataclass(frozen=True)
class _Tuple:
    items: tuple[Any, ...]
    depth: int


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": _Tuple((), 0)}


@dataclass
class _Box:
    """A value on the stack: a list, a dict, a tensor or an ignored value."""

    kind: str
    keys: set[str | int] = field(default_factory=set)


def follow(pickle: bytes, sizes: Mapping[str, int]) -> frozenset[str]:
    """Checks a ``data.pkl`` without running it, beside files of these sizes in bytes, by name.

    Returns:
        The classes of inert values in it, ``module name``.

    Raises:
        UnsafeGlobalsError: it names globals that are not those of plain tensors.
        RefusedError: it is damaged, or does what ``torch.save`` of weights never does.
    """
    machine = _Machine(sizes)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in text
            for step, (opcode, argument, _) in enumerate(pickletools.genops(pickle)):
                if step >= MAX_STEPS:
                    raise RefusedError(f"it has more than {MAX_STEPS:,} steps")
                machine.step(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if not machine.unsafe:
            why = printable(one_line(error), 120)
            raise RefusedError(f"its steps cannot be followed ({why})") from error
    except RefusedError:
        if not machine.unsafe:
            raise
    if machine.unsafe:
        raise UnsafeGlobalsError(machine.unsafe)
    return frozenset(machine.inert)


class _Machine:
    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.unsafe: set[str] = set()
        self.inert: set[str] = set()

    def step(self, name: str, argument: Any) -> None:
        if name in _LITERALS:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in ("BINPUT", "LONG_BINPUT"):
            (self.memo[argument],) = self.popped(1)
            self.stack.append(self.memo[argument])
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif name in _STEPS:
            _STEPS[name](self, argument)
        else:
            raise RefusedError(f"{name} is no step of torch.save's protocol 2")

    def marked(self) -> list[Any]:
        """Pop the values above the last mark, with the mark."""
        items: list[Any] = []
        while (top := self.stack.pop()) is not _MARK:
            items.append(top)
        return items[::-1]

    def tuple_of(self, items: list[Any]) -> None:
        depth = 1 + max((x.depth for x in items if isinstance(x, _Tuple)), default=0)
        if depth > MAX_DEPTH:
            raise RefusedError(f"it nests tuples more than {MAX_DEPTH} deep")
        self.stack.append(_Tuple(tuple(items), depth))

    def popped(self, count: int) -> list[Any]:
        items = [self.stack.pop() for _ in range(count)][::-1]
        if any(item is _MARK for item in items):
            raise RefusedError("it uses a mark of the stack as a value")
        return items

    def put(self, pairs: list[Any]) -> None:
        box = self.stack[-1]
        if isinstance(box, _Global) and self.unsafe:
            return
        if not isinstance(box, _Box) or box.kind not in ("dict", "ordered") or len(pairs) % 2:
            raise RefusedError("it puts items into a value that is not a dict")
        for key in pairs[::2]:
            if type(key) not in (str, int):
                raise RefusedError("it has keys that are neither text nor whole numbers")
            box.keys.add(key)

    def append(self, items: list[Any]) -> None:
        """Append items to the list on top of the stack; they are not kept."""
        if not (isinstance(self.stack[-1], _Box) and self.stack[-1].kind == "list"):
            raise RefusedError("it appends to a value that is not a list")

    def named(self, argument: str) -> None:
        if is_object(argument) or is_dict(argument):
            self.inert.add(argument)
        elif not (argument in _CALLS or _STORAGE.fullmatch(argument) or _is_dtype(argument)):
            self.unsafe.add(argument.replace(" ", "."))
        self.stack.append(_Global(argument))

    def called(self) -> None:
        """Check a call, and keep only the kind of its result."""
        function, arguments = self.popped(2)
        if isinstance(function, _Global) and function.name.replace(" ", ".") in self.unsafe:
            self.stack.append(function)
            return
        call = _call_of(function.name)
        if call is None or not isinstance(arguments, _Tuple):
            raise RefusedError("it calls a value that is not a function")
        self.stack.append(call(*arguments.items))

    def stored(self) -> None:
        """Check a storage: the archive must hold as many bytes as it declares."""
        (identity,) = self.popped(1)
        word, kind, key, place, elements = identity.items
        storage = _STORAGE.fullmatch(kind.name)
        if word != "storage" or not storage or type(key) is not str or type(place) is not str:
            raise RefusedError("it refers to something else than a storage")
        if not _counts((elements,)) or elements * _BYTES[storage[1]] > self.sizes[f"data/{key}"]:
            raise RefusedError("it declares tensors larger than itself")
        size = elements * _BYTES[storage[1]]
        self.stack.append(_Storage(size if storage[1] == "Untyped" else elements))

    def built(self) -> None:
        """Check attributes: only the metadata of a state dict is allowed."""
        state = self.stack.pop()
        box = self.stack[-1]
        if (isinstance(box, _Global) and self.unsafe) or box.kind == "inert":
            return
        plain = isinstance(state, _Box) and state.kind in ("dict", "ordered")
        if not plain or box.kind != "ordered" or not state.keys <= {"_metadata"}:
            raise RefusedError("it gives attributes to its tensors or dicts")

    def stopped(self) -> None:
        if len(self.stack) != 1:
            raise RefusedError("it does not end with exactly one value")


def _counts(numbers: tuple[Any, ...]) -> bool:
    return all(type(number) is int and 0 <= number < 1 << 62 for number in numbers)


def _is_dtype(name: str) -> bool:
    module, _, attribute = name.partition(" ")
    return module == "torch" and isinstance(vars(torch).get(attribute), torch.dtype)


def _tensor(
    storage: _Storage, offset: Any, size: _Tuple, stride: _Tuple, grad: Any, hooks: _Box, *more: Any
) -> _Box:
    """Checks a call of ``_rebuild_tensor_v2``, or v3, which adds the dtype."""
    numbers = (offset, *size.items, *stride.items)
    if not _counts(numbers) or len(size.items) != len(stride.items) or type(grad) is not bool:
        raise RefusedError("it rebuilds a tensor from values that are not sizes")
    if len(size.items) > _MAX_DIMENSIONS or hooks.kind != "ordered":
        raise RefusedError("it rebuilds a tensor from values that are not sizes")
    if any(not isinstance(x, _Global) or not _is_dtype(x.name) for x in more) or len(more) > 1:
        raise RefusedError("it rebuilds a tensor with metadata")
    width = getattr(torch, more[0].name.partition(" ")[2]).itemsize if more else 1
    steps = zip(size.items, stride.items, strict=True)
    last = offset + sum((length - 1) * step for length, step in steps)
    if math.prod(size.items) and (last + 1) * width > storage.elements:
        raise RefusedError("it declares tensors larger than itself")
    return _Box("tensor")


def _parameter(data: _Box, grad: Any, hooks: _Box) -> _Box:
    if data.kind != "tensor" or type(grad) is not bool or hooks.kind != "ordered":
        raise RefusedError("it rebuilds a parameter from a value that is not a tensor")
    return _Box("tensor")


def _size(items: _Tuple) -> _Box:
    if not _counts(items.items):
        raise RefusedError("it has sizes that are not numbers")
    return _Box("size")


def _device(*names: Any) -> _Box:
    if not names or type(names[0]) is not str or len(names) > 2 or not _counts(names[1:]):
        raise RefusedError("it has devices without a name")
    return _Box("device")


def _counter(counts: _Box) -> _Box:
    if counts.kind != "dict":
        raise RefusedError("it counts the items of a value that is not a dict")
    return _Box("dict")


def _bytes(text: Any, encoding: Any) -> _Box:
    """Checks a call that makes bytes, which protocol 2 writes as text."""
    if type(text) is not str or encoding != "latin1":
        raise RefusedError("it calls _codecs.encode for something else than bytes")
    return _Box("inert")


def _call_of(name: str) -> Callable[..., Any] | None:
    if is_object(name):
        return lambda *_: _Box("inert")
    if is_dict(name):
        return lambda *_: _Box("ordered")
    return _CALLS.get(name)


_CALLS: Mapping[str, Callable[..., Any]] = {
    "collections OrderedDict": lambda: _Box("ordered"),
    "collections Counter": _counter,
    "_codecs encode": _bytes,
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_tensor_v3": _tensor,
    "torch._utils _rebuild_parameter": _parameter,
    "torch Size": _size,
    "torch device": _device,
}


def _protocol(machine: _Machine, argument: Any) -> None:
    if argument != 2:
        raise RefusedError("it is not of torch.save's protocol 2")


_STEPS: Mapping[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _protocol,
    "MARK": lambda machine, _: machine.stack.append(_MARK),
    "GLOBAL": _Machine.named,
    "REDUCE": lambda machine, _: machine.called(),
    "NEWOBJ": lambda machine, _: machine.called(),
    "BUILD": lambda machine, _: machine.built(),
    "BINPERSID": lambda machine, _: machine.stored(),
    "STOP": lambda machine, _: machine.stopped(),
    "TUPLE": lambda machine, _: machine.tuple_of(machine.marked()),
    "TUPLE1": lambda machine, _: machine.tuple_of(machine.popped(1)),
    "TUPLE2": lambda machine, _: machine.tuple_of(machine.popped(2)),
    "TUPLE3": lambda machine, _: machine.tuple_of(machine.popped(3)),
    "EMPTY_LIST": lambda machine, _: machine.stack.append(_Box("list")),
    "EMPTY_DICT": lambda machine, _: machine.stack.append(_Box("dict")),
    "SETITEM": lambda machine, _: machine.put(machine.popped(2)),
    "SETITEMS": lambda machine, _: machine.put(machine.marked()),
    "APPEND": lambda machine, _: machine.append(machine.popped(1)),
    "APPENDS": lambda machine, _: machine.append(machine.marked()),
}
