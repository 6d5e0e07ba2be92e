"""Terms of the gradient: each row's own gradient, its label and how often it is in the batch.

M = Σ_i c_i δ_i [a_i; 1]ᵀ with linearly independent a_i and δ_i has c = 1/([a; 1]ᵀ M⁺ δ) for each of
its own terms (Wedderburn's rank reduction), and δ follows from a row and a label. So the right
label is the one whose δ lies in the column space and whose c is a multiple of 1/b. Where the loss
weighs classes, c is a multiple of w_y/Σw instead, and Σw is read off the c of the first rows that
are found. A squared error has δ in proportion to its residual, so that c gives a real target.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.spans import SpanTest
from gradaudit.audits.attack_table.structure import bias_of
from gradaudit.errors import NotApplicable

if TYPE_CHECKING:
    from gradaudit.attacks.reconstruction.base import AttackerView, Update


_FITS = 1e-3
"""The share of δ outside the column space up to which it says what the batch weighs."""
_SQUARED = 1e-6


def local_steps(view: AttackerView) -> int:
    """How many gradients an update is the sum of."""
    return view.training.count(view.batch) if view.training else 1


def is_gradient(view: AttackerView) -> bool:
    """Whether an update is the gradient of all rows, and not of several local steps."""
    return view.training is None or view.training.gives_gradient(view.batch)


@dataclass
class GradientTerms:
    """Finds labels by a model that is known, and makes gradients of rows.

    Attributes:
        view: of the update, in float64.
        columns: of the table.
        tolerance: how far a multiplicity may be from a whole number.
        total: the batch's weight: its records, or Σw where classes have weights; None until rows
            tell it.
    """

    view: AttackerView
    columns: TableColumns
    tolerance: float
    total: float | None = None

    def __post_init__(self) -> None:
        """Set what the batch weighs where records weigh alike.

        Raises:
            NotApplicable: records have several real targets.
        """
        if self.weights is None:
            self.total = self.view.batch / local_steps(self.view)
        if not self.view.classes and self.view.label_shape not in ((), (1,)):
            raise NotApplicable("records have several real targets, which no multiple tells apart")

    def of(self, test: SpanTest, cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The terms that rows stand for in the gradient: a row, its label and its multiplicity.

        Returns:
            (terms,) places among the rows, (terms,) labels and (terms,) multiplicities.

        Raises:
            NotApplicable: targets are real, and the loss is no squared error.
        """
        if not self.view.classes:
            targets, misfit = self._real_targets(test, cells)
            rows = ((misfit < self.tolerance) & targets.isfinite()).nonzero()[:, 0]
            return rows, targets[rows], torch.ones(len(rows)).double()
        times, misfit = self._multiplicities(test, cells)
        whole = times.round().clamp(1, self.view.batch)
        off = (times - whole).abs()
        best = torch.where(off < self.tolerance, off + misfit, torch.inf).min(dim=1)
        rows = best.values.isfinite().nonzero()[:, 0]
        labels = best.indices[rows]
        return rows, self.targets[labels], whole[rows, labels]

    def nearest(self, test: SpanTest, cells: Tensor) -> Tensor:
        """The label whose δ fits the column space best with a positive coefficient, (rows,)."""
        if not self.view.classes:
            return self._real_targets(test, cells)[0]
        times, misfit = self._multiplicities(test, cells)
        return self.targets[torch.where(times > 0, misfit, torch.inf).argmin(dim=1)]

    def shares(self, labels: Tensor, times: Tensor) -> Tensor:
        """Weights of terms in the batch's gradient, (terms,)."""
        weights = self.weights
        each = times if weights is None else times * weights[labels.long()]
        return each / (self.total or self.view.batch)

    def gradients(self, cells: Tensor, labels: Tensor, names: tuple[str, ...]) -> Update:
        """Each row's own gradient by some parameters, (rows, …) each."""
        model, count = self.view.model, len(cells)
        chosen = {name: model.parameters[name].detach() for name in names}
        own = {name: p.expand(count, *p.shape).requires_grad_() for name, p in chosen.items()}
        records = model.cast(self.columns.inputs(cells))
        targets = labels.reshape(-1, *self.view.label_shape)
        losses = torch.func.vmap(model.record_loss)(own, records, targets)
        asked = list(own.values())
        parts = torch.autograd.grad(losses.sum(), asked, allow_unused=True, materialize_grads=True)
        return dict(zip(names, parts, strict=True))

    @cached_property
    def targets(self) -> Tensor:
        """Every label that a record may have; none where targets are real."""
        return torch.arange(max(2, self.view.classes) if self.view.classes else 0)

    @cached_property
    def weights(self) -> Tensor | None:
        """The weight of each label in the loss, (labels,); None where all are equal."""
        if not self.view.classes:
            return None
        weights = self.view.model.loss.weights(self.targets)
        return None if weights is None or bool((weights == weights[0]).all()) else weights.double()

    def _multiplicities(self, test: SpanTest, cells: Tensor) -> tuple[Tensor, Tensor]:
        """By each label how often a row is there, and the share of δ outside the column space.

        Both are (rows, labels).
        """
        shape = len(cells), len(self.targets)
        repeated = cells.repeat_interleave(shape[1], 0)
        fits = self._fit(test, repeated, self.targets.repeat(shape[0]))
        shares, misfit = (x.reshape(shape) for x in fits)
        if self.weights is not None:
            shares = shares / self.weights
        if self.total is None:
            likely = shares[(shares > 0) & (misfit < _FITS)]
            self.total = 1 / float(likely.median()) if len(likely) else None
        return shares * (self.total or torch.nan), misfit

    def _fit(self, test: SpanTest, cells: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The c of rows with a label each, and shares of δ outside the column space: (rows,)."""
        layers, space = test.layers, test.second or test.first
        name = bias_of(layers.first if test.second is None else str(layers.second))
        deltas = self.gradients(cells, targets, (name,))[name]
        came = layers.entered(cells) if test.second is None else layers.hidden(cells)
        return space.coefficient(came, deltas), space.outside_columns(deltas)

    def _real_targets(self, test: SpanTest, cells: Tensor) -> tuple[Tensor, Tensor]:
        """The target that a row's multiple of δ shows, and the share of δ outside: (rows,) each."""
        outputs = self.view.model.outputs({}, self.view.model.cast(self.columns.inputs(cells)))
        outputs = outputs.detach().reshape(len(cells), -1)[:, 0]
        shares, misfit = self._fit(test, cells, outputs - 1.0)
        halves, _ = self._fit(test, cells, outputs - 2.0)
        if not torch.allclose(shares, 2 * halves, rtol=_SQUARED, atol=_SQUARED):
            raise NotApplicable("targets are real, and are read off squared errors alone")
        return outputs - shares * (self.total or torch.nan), misfit
