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

_SHARED = (1, 1), (1, 2), (2, 1)
"""How often one record may be there with two different labels."""
_TOLD = 0.05
"""How far multiplicities may be from whole numbers where two labels of one record are told."""


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

    def of(self, test: SpanTest, cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The terms that rows stand for in the gradient: a row, its label and its multiplicity.

        A row that fits no label may be there with two of them; it then has a term for each.

        Returns:
            (terms,) places among the rows, (terms,) labels and (terms,) multiplicities.
        """
        times, misfit = self._coefficients(test, cells, self._mixtures)
        whole, single = times.round().clamp(1, self.view.batch), len(self.targets)
        whole[:, single:] = 1
        off = (times - whole).abs()
        cost = (off + misfit).masked_fill(off.nan_to_num(torch.inf) >= self.tolerance, torch.inf)
        alone, mixed = cost[:, :single].min(dim=1), cost.nan_to_num(torch.inf).min(dim=1)
        best = torch.where(alone.values.isfinite(), alone.indices, mixed.indices)
        fits = cost.gather(1, best[:, None]).isfinite()
        parts = self._mixtures[best] * whole.gather(1, best[:, None]) * fits
        rows, labels = parts.nonzero(as_tuple=True)
        return rows, self.targets[labels], parts[rows, labels]

    def nearest(self, test: SpanTest, cells: Tensor) -> Tensor:
        """The label whose δ fits the column space best with a positive coefficient, (rows,)."""
        single = self._mixtures[: len(self.targets)]
        times, misfit = self._coefficients(test, cells, single)
        return self.targets[torch.where(times > 0, misfit, torch.inf).argmin(dim=1)]

    def _coefficients(
        self, test: SpanTest, cells: Tensor, mixtures: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Of each mixture b c, and the share of δ outside the column space: (rows, mixtures)."""
        count, entered = len(self.targets), test.layers.entered(cells)
        if test.second is None:
            space, layer, vectors = test.first, test.layers.first, entered
        else:
            space, layer = test.second, str(test.layers.second)
            vectors = test.layers.hidden(entered)
        targets = self.targets.repeat(len(cells))
        bias = bias_of(layer)
        one = self.gradients(cells.repeat_interleave(count, 0), targets, (bias,))[bias]
        deltas = (mixtures @ one.reshape(len(cells), count, -1)).flatten(0, 1)
        repeated = vectors.repeat_interleave(len(mixtures), 0)
        times = space.coefficient(repeated, deltas) * self.view.batch
        shape = len(cells), len(mixtures)
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
    def targets(self) -> Tensor:
        """Every label that a record may have."""
        return torch.arange(max(2, self.view.classes))

    @cached_property
    def _mixtures(self) -> Tensor:
        """How often a row may be there with each label: each alone, then two of them.

        Rows of (mixtures, labels); there are no pairs where multiplicities are not told well.
        """
        single = torch.eye(len(self.targets), dtype=torch.float64)
        if self.tolerance > _TOLD:
            return single
        one, other = torch.triu_indices(len(single), len(single), 1)
        pairs = [m * single[one] + n * single[other] for m, n in _SHARED]
        return torch.cat([single, *pairs])
