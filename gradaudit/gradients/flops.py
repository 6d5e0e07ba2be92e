"""Floating-point operations of a computation, counted from the shapes of what it multiplies."""

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


def flops(function: Callable[[], object]) -> int:
    """Operations of the matrix products, convolutions and attention that a call carries out.

    Two for each multiplication, by torch's formulas: what ``FlopCounterMode`` counts, which loads
    the compiler. All else counts nothing.
    """
    counter = Counter()
    with counter:
        function()
    return counter.total


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what is carried out within it; ``total`` is the operations so far."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        formula: Any = flop_registry.get(getattr(func, "_overloadpacket", func))
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=output)
        return output
