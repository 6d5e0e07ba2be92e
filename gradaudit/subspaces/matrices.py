"""A layer's gradient as a matrix (C_out × rest), from its elements in a row."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.nn.modules.conv import _ConvTransposeNd

from gradaudit.errors import NotApplicable
from gradaudit.models.target import Layer

Array = NDArray[np.float64]


@dataclass(frozen=True)
class MatrixForm:
    """How the elements of a layer's gradient lie in a matrix of one row an output.

    Attributes:
        shapes: of the layer's parameters, in the order of its elements.
        outputs_second: whether a parameter's second dimension counts outputs, as in transposed
            convolutions.
    """

    shapes: tuple[tuple[int, ...], ...]
    outputs_second: bool = False

    @classmethod
    def of(cls, layer: Layer, model: nn.Module) -> "MatrixForm":
        """The form of a layer; several parameters (of a recurrent cell) lie side by side.

        Raises:
            NotApplicable: its parameters have different numbers of outputs.
        """
        parameters = dict(model.named_parameters())
        shapes = tuple(tuple(parameters[name].shape) or (1,) for name in layer.parameter_names)
        module = model.get_submodule("" if layer.name == "(model)" else layer.name)
        form = cls(shapes, isinstance(module, _ConvTransposeNd))
        if len({form._outputs(shape) for shape in shapes}) > 1:
            raise NotApplicable(
                "its parameters have different numbers of outputs and make no matrix; "
                "use --reading samples"
            )
        return form

    @property
    def rows(self) -> int:
        """C_out."""
        return self._outputs(self.shapes[0])

    @property
    def columns(self) -> int:
        """The rest: what lies behind one output, 1 for a vector of gains."""
        return sum(math.prod(shape) for shape in self.shapes) // self.rows

    def matrix(self, elements: Array) -> Array:
        """(…, elements) as (…, rows, columns)."""
        leading = elements.shape[:-1]
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        parts = []
        for part, shape in zip(np.split(elements, ends, axis=-1), self.shapes, strict=True):
            whole = part.reshape(*leading, *shape)
            if self.outputs_second:
                whole = np.moveaxis(whole, len(leading) + 1, len(leading))
            parts.append(whole.reshape(*leading, self.rows, -1))
        return np.concatenate(parts, axis=-1)

    def _outputs(self, shape: tuple[int, ...]) -> int:
        return shape[1] if self.outputs_second else shape[0]
