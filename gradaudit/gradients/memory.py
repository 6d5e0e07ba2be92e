"""Estimates a computation's memory and operations, and divides layers into fitting blocks.

What compares all records needs all of an element at once, while models give all elements of some
records: a layer that does not fit is taken in ranges of elements, at one run for each.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from gradaudit.gradients.capture import OperatorMode

Array = NDArray[np.float64]
Stream = Callable[[Sequence[str]], Iterable[Mapping[str, Tensor]]]
"""From names of layers to their values, chunk by chunk in the order of the records: a dict from
each layer's name to (chunk, elements)."""

_BYTES = 8
_OF_A_GPU = 8
_USUAL = 1 << 30


def device_memory(device: torch.device, memory: int) -> int:
    """Bytes that a chunk of work may take on a device, where ``memory`` bytes are for one on a CPU.

    On a GPU an eighth of all its memory, or half of what is free if that is less, stands for 1 GiB,
    and other amounts go with it, up to that half: kernels of small chunks take longer to start than
    to run.
    """
    if device.type != "cuda":
        return memory
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    most = free // 2
    return min(min(total // _OF_A_GPU, most) * memory // _USUAL, most)


def keep_freed_memory() -> None:
    """Free a block of just under 32 MiB, the largest that glibc learns from.

    Until it has seen one that large, it gives every freed block back to the system, and work spends
    more time on page faults than on arithmetic: a first gradient of Swin at 224×224 takes 0.54
    seconds of the processor in place of 1.17, and later ones 0.42 in place of 0.49.
    """
    torch.empty(31 << 20, dtype=torch.uint8)


def peak_bytes(function: Callable[[], object]) -> int:
    """Bytes in storages that a call made and held at one time, its result among them.

    Sees every operator's output, in ``torch.func`` transforms and backward passes too, but no
    scratch memory inside an operator.
    """
    watch = _Watch()
    with watch:
        function()
    return watch.peak


class _Watch(OperatorMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def call(self, operator: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        for storage in _storages((args, kwargs)):
            self._meet(storage, 0)
        output = operator(*args, **kwargs)
        for storage in _storages(output):
            self._meet(storage, storage.nbytes())
        return output

    def _meet(self, storage: torch.UntypedStorage, size: int) -> None:
        """Count a storage once; an unknown one among the inputs existed before."""
        key = storage._cdata
        if key not in self._known:
            self._known.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._lose, key, size)

    def _lose(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def _storages(tree: object) -> list[torch.UntypedStorage]:
    """Storages of the tensors that an operator takes or gives, in lists and tuples of them too."""
    return [leaf.untyped_storage() for leaf in _tensors(tree) if leaf.layout == torch.strided]


def _tensors(tree: object) -> Iterator[Tensor]:
    """The tensors among what operators take and give: several times as quick as torch's own way."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | list | dict):
        for branch in tree.values() if isinstance(tree, dict) else tree:
            yield from _tensors(branch)


@dataclass(frozen=True)
class ColumnRange:
    """A range of a layer's columns (or of whatever else is counted)."""

    layer: str
    start: int
    stop: int

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.stop - self.start


def column_blocks(
    stream: Stream, widths: Mapping[str, int], records: int, memory: int
) -> Iterator[tuple[ColumnRange, Array]]:
    """Every layer's columns, in blocks that hold all records.

    The stream is run once for each pass; ``widths`` are the elements of each layer, and blocks held
    at one time take ``memory`` bytes at most. Pieces come in the order of the layers and their
    elements, with their blocks (records, width).
    """
    for pieces in passes(widths, memory // (_BYTES * records)):
        held = [np.empty((records, piece.width)) for piece in pieces]
        for rows, chunk in counted(stream(names(pieces))):
            for piece, block in zip(pieces, held, strict=True):
                block[rows] = as_array(chunk[piece.layer][:, piece.start : piece.stop])
        for piece in pieces:
            yield piece, held.pop(0)


def counted(chunks: Iterable[Mapping[str, Tensor]]) -> Iterator[tuple[slice, Mapping[str, Tensor]]]:
    """Chunks with the range of records that they hold."""
    begun = 0
    for chunk in chunks:
        size = len(next(iter(chunk.values())))
        yield slice(begun, begun + size), chunk
        begun += size


def passes(
    counts: Mapping[str, int], budget: int, costs: Mapping[str, int] | None = None
) -> Iterator[list[ColumnRange]]:
    """Ranges in the order of the layers, grouped so that a group fits a budget.

    ``counts`` are the columns of each layer, ``costs`` those of a column of each, one without it; a
    group holds at least one column.
    """
    group: list[ColumnRange] = []
    room = budget
    for layer, count in counts.items():
        cost = 1 if costs is None else costs[layer]
        start = 0
        while start < count:
            if group and room < cost:
                yield group
                group, room = [], budget
            stop = min(count, start + max(1, room // cost))
            group.append(ColumnRange(layer, start, stop))
            room -= (stop - start) * cost
            start = stop
    if group:
        yield group


def names(pieces: Iterable[ColumnRange]) -> list[str]:
    """The layers of some pieces, each once."""
    return list(dict.fromkeys(piece.layer for piece in pieces))


def as_array(values: Tensor) -> Array:
    """A tensor as a float64 array on the CPU."""
    array: Array = values.detach().cpu().to(torch.float64).numpy()
    return array


def flops(function: Callable[[], object]) -> int:
    """Operations of the matrix products, convolutions and attention that a call carries out.

    Two for each multiplication, by torch's formulas: what ``FlopCounterMode`` counts, which loads
    the compiler. All else counts nothing.
    """
    counter = Counter()
    with counter:
        function()
    return counter.total


class Counter(OperatorMode):  # type: ignore[no-untyped-call]
    """Counts what is carried out within it; ``total`` is the operations so far."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def call(self, operator: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Carry out an operator and count it."""
        output = operator(*args, **kwargs)
        formula: Any = flop_registry.get(getattr(operator, "_overloadpacket", operator))
        if formula is not None:
            self.total += formula(*args, **kwargs, out_val=output)
        return output
