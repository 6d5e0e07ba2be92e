"""The label of a row and how often it is in the batch, from the last usable layer's gradient.

M = Σ_i c_i δ_i [a_i; 1]ᵀ with linearly independent a_i and δ_i has c = 1/([a; 1]ᵀ M⁺ δ) for each of
its own terms (Wedderburn's rank reduction), and δ follows from a row and a label. So the right
label is the one whose δ lies in the column space and whose c is a multiple of 1/b.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradaudit.attacks.reconstruction.base import AttackerView, Update
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.polishing import SpanTest
from gradaudit.audits.attack_table.structure import bias_of


@dataclass(frozen=True)
class RankOneLabels:
    """Tells labels by a model that is known.

    Attributes:
        view: of the update, in float64.
        columns: of the table.
        tolerance: how far a multiplicity may be from a whole number.
    """

    view: AttackerView
    columns: TableColumns
    tolerance: float

    def of(self, test: SpanTest, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Labels and multiplicities of rows, (rows,) each; 0 times where no label fits."""
        times, misfit = self._coefficients(test, cells)
        whole = times.round().clamp(1, self.view.batch)
        off = (times - whole).abs()
        best = (off + misfit).nan_to_num(torch.inf).argmin(dim=1, keepdim=True)
        close = off.gather(1, best)[:, 0] < self.tolerance
        return self._targets[best[:, 0]], torch.where(close, whole.gather(1, best)[:, 0], 0.0)

    def nearest(self, test: SpanTest, cells: Tensor) -> Tensor:
        """The label whose δ fits the column space best with a positive coefficient, (rows,)."""
        times, misfit = self._coefficients(test, cells)
        return self._targets[torch.where(times > 0, misfit, torch.inf).argmin(dim=1)]

    def _coefficients(self, test: SpanTest, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Of each label b c, and the share of δ outside the column space: (rows, labels) each."""
        count, entered = len(self._targets), test.layers.entered(cells)
        if test.second is None:
            space, layer, vectors = test.first, test.layers.first, entered
        else:
            space, layer = test.second, str(test.layers.second)
            vectors = test.layers.hidden(entered)
        targets = self._targets.repeat(len(cells))
        bias = bias_of(layer)
        deltas = self.gradients(cells.repeat_interleave(count, 0), targets, (bias,))[bias]
        times = space.coefficient(vectors.repeat_interleave(count, 0), deltas) * self.view.batch
        shape = len(cells), count
        return times.reshape(shape), space.outside_columns(deltas).reshape(shape)

    def gradients(self, cells: Tensor, labels: Tensor, names: tuple[str, ...]) -> Update:
        """Each row's own gradient by some parameters, (rows, …) each."""
        model = self.view.model
        chosen = {name: model.parameters[name] for name in names}
        records = model.cast(self.columns.inputs(cells))
        one = torch.func.grad(model.record_loss)
        gradients: Update = torch.func.vmap(one, (None, 0, 0))(chosen, records, labels)
        return gradients

    @cached_property
    def _targets(self) -> Tensor:
        """Every label that a record may have."""
        return torch.arange(max(2, self.view.classes))
