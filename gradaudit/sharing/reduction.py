"""Reductions of a gradient before it is given to a classifier, without importing torch."""

from dataclasses import dataclass
from typing import Literal

from gradaudit.core.specs import suggest
from gradaudit.errors import UsageError

Kind = Literal["none", "maxpool", "pca", "subset"]
_SIZES: dict[str, int | None] = {"none": None, "maxpool": 3, "pca": 50, "subset": 48}
LARGEST_WHOLE = 10_000
"""Elements up to which a gradient is not reduced, unless it is asked for."""
_SHORT_OF_MEMORY, _FEW = 1 << 29, 2_000
"""Bytes for gradients below which no more elements than so many are kept of a larger one."""


@dataclass(frozen=True)
class Reduction:
    """Reduction of each layer's flattened gradient.

    - ``none``: nothing.
    - ``maxpool:k``: the maximum of every k consecutive elements, the last ones with what is left
      (Li et al. 2024, section 5.1.3: 3 for tables, 10 for other data).
    - ``pca:n``: the first n principal components of the adversary's records' gradients.
    - ``subset:n``: n elements at random, the same in every gradient.

    Attributes:
        kind: which.
        size: its number (0 for ``none``).
    """

    kind: Kind = "none"
    size: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.size}" if self.size else self.kind

    @property
    def linear(self) -> bool:
        """Whether the reduced mean of gradients is the mean of the reduced ones."""
        return self.kind != "maxpool"

    def features(self, elements: int) -> int:
        """The number of features that it makes of so many elements, at most."""
        if self.kind == "maxpool":
            return -(-elements // self.size)
        return min(self.size, elements) if self.size else elements


def parse_reduction(text: str | None, option: str = "--reduce") -> Reduction | None:
    """The reduction that ``none``, ``maxpool:3``, ``pca:50`` or ``subset:48`` names.

    None leaves it to ``reduction_for``.

    Raises:
        UsageError: there is no such reduction, or its number is no positive whole one.
    """
    if text is None:
        return None
    kind, colon, size = text.partition(":")
    if kind not in _SIZES:
        raise UsageError(
            f"{option} {text}: no such reduction{suggest(kind, _SIZES)}; there are: "
            "none, maxpool:3, maxpool:10, pca:50, subset:48"
        )
    default = _SIZES[kind]
    if default is None:
        if colon:
            raise UsageError(f"{option} {text}: none takes no number")
        return Reduction()
    if colon and not (size.isascii() and size.isdigit() and int(size) > 0):
        raise UsageError(f"{option} {text}: write a positive whole number, as {kind}:{default}")
    return Reduction(kind, int(size) if colon else default)  # type: ignore[arg-type]


def reduction_for(
    elements: int, asked: Reduction | None, memory: int = _SHORT_OF_MEMORY
) -> Reduction:
    """The requested reduction; else none up to 10,000 elements, and a random 10,000 above.

    A forest finds what single elements show, and components hide it: of two face data sets' fc1,
    ``subset:10000`` had an AUROC of .805 and .809 where ``pca:50`` had .625 and .706, and all
    elements .801 and .793. Below 512 MiB of memory for gradients a random 2,000 are kept.
    """
    if asked is not None:
        return asked
    if elements <= LARGEST_WHOLE:
        return Reduction()
    return Reduction("subset", LARGEST_WHOLE if memory >= _SHORT_OF_MEMORY else _FEW)
