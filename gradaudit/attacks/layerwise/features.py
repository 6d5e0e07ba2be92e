"""What a fully connected layer reads, and the record behind it where that is not the record.

Fan et al. 2020, theorem 2.1: the closed form gives the layer's input o; with Ψ the layers before
it the record is Ψ⁻¹(o), which is determined near the record where Ψ's Jacobian has full column
rank (condition 1).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, aslinearoperator
from torch import Tensor, nn

from gradaudit.attacks.layerwise.systems import Vector
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.ranks.observe import watching

MATRIX_ELEMENTS = 1_000_000
"""The largest Jacobian that is formed for a search."""

JACOBIAN_ELEMENTS = 20_000_000
"""The largest Jacobian whose rank is taken."""


@dataclass(frozen=True)
class Reader:
    """A fully connected layer and what it reads of one record.

    Attributes:
        of_record: whether it reads the record itself.
        times: how many vectors it is applied to for one record.
    """

    layer: str
    bias: bool
    of_record: bool
    times: int


def readers(model: FunctionalModel, record: Tensor) -> list[Reader]:
    """The fully connected layers of a model, in the order in which they first run.

    Args:
        model: a functional copy.
        record: (1, …), any values that differ from each other.
    """
    layers = {name: m for name, m in model.module.named_modules() if type(m) is nn.Linear}
    seen: dict[str, list[Tensor]] = {}

    def look(name: str, inputs: Tensor, output: Tensor) -> Tensor:
        seen.setdefault(name, []).append(inputs.detach())
        return output

    with torch.no_grad(), watching(layers, look):
        model.outputs({}, record)
    return [
        Reader(
            layer=name,
            bias=layers[name].bias is not None,
            of_record=torch.equal(reads[0].flatten(), record.flatten()),
            times=sum(read.numel() for read in reads) // layers[name].in_features,
        )
        for name, reads in seen.items()
    ]


def layer_input(model: FunctionalModel, layer: str) -> Callable[[Tensor], Tensor]:
    """Ψ: what a layer reads, flat, of a record (1, …)."""
    module = model.module.get_submodule(layer)

    def read(record: Tensor) -> Tensor:
        seen: list[Tensor] = []

        def look(_: str, inputs: Tensor, output: Tensor) -> Tensor:
            seen.append(inputs)
            return output

        with watching({layer: module}, look):
            model.outputs({}, record)
        return seen[0].flatten()

    return read


@dataclass(frozen=True)
class Inversion:
    """Ψ(x) = o as a least squares problem in the flat record x.

    Attributes:
        read: Ψ.
        wanted: o, (inputs of the layer,).
    """

    read: Callable[[Tensor], Tensor]
    wanted: Tensor
    shape: tuple[int, ...]

    @cached_property
    def scale(self) -> float:
        """‖o‖."""
        return float(self.wanted.norm()) or 1.0

    def residuals(self, z: Vector) -> Vector:
        """Ψ(x) − o."""
        with torch.no_grad():
            return _vector(self.read(self._record(z)) - self.wanted)

    def jacobian(self, z: Vector) -> LinearOperator:
        """Of Ψ at x, as a matrix where it is small."""
        record = self._record(z)
        if len(z) * len(self.wanted) <= MATRIX_ELEMENTS:
            return aslinearoperator(_vector(self._matrix(record)))
        pull = torch.func.vjp(self.read, record)[1]

        def apply(step: Vector) -> Vector:
            return _vector(torch.func.jvp(self.read, (record,), (self._record(step),))[1])

        def transposed(left: Vector) -> Vector:
            return _vector(pull(torch.from_numpy(left.ravel()).to(record))[0].flatten())

        shape = (len(self.wanted), len(z))
        return LinearOperator(shape, matvec=apply, rmatvec=transposed, dtype=np.float64)

    def rank(self, z: Vector) -> int | None:
        """Rank of Ψ's Jacobian at x; None where it is larger than ``JACOBIAN_ELEMENTS``."""
        if prod(self.shape) * len(self.wanted) > JACOBIAN_ELEMENTS:
            return None
        return int(torch.linalg.matrix_rank(self._matrix(self._record(z))))

    def _matrix(self, record: Tensor) -> Tensor:
        """The Jacobian, (inputs of the layer, elements of the record)."""
        jacobian: Tensor = torch.func.jacrev(self.read, chunk_size=64)(record)
        return jacobian.reshape(len(self.wanted), -1)

    def _record(self, z: Vector) -> Tensor:
        return torch.from_numpy(z.ravel()).to(self.wanted).reshape(1, *self.shape)


def _vector(tensor: Tensor) -> Vector:
    return np.asarray(tensor.detach().to("cpu", torch.float64).numpy())
