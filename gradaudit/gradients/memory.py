"""How much memory a computation takes at its peak, on any device, by watching its tensors."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_bytes(function: Callable[[], object]) -> int:
    """Bytes in storages that a call made and held at one time, its result among them.

    Sees every operator's output, in ``torch.func`` transforms and backward passes too, but no
    scratch memory inside an operator.
    """
    watch = _Watch()
    with watch:
        function()
    return watch.peak


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for storage in _storages((args, kwargs)):
            self._meet(storage, 0)
        output = func(*args, **kwargs)
        for storage in _storages(output):
            self._meet(storage, storage.nbytes())
        return output

    def _meet(self, storage: torch.UntypedStorage, size: int) -> None:
        """Count a storage where it is new; one that comes in unknown was there before."""
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
    return [
        leaf.untyped_storage()
        for leaf in tree_leaves(tree)
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided
    ]
