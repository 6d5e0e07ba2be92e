"""Terms of the gradient: each row's own gradient, its label and how often it is in the batch.

M = Σ_i c_i δ_i [a_i; 1]ᵀ with linearly independent a_i and δ_i has c = 1/([a; 1]ᵀ M⁺ δ) for each of
its own terms (Wedderburn's rank reduction), and δ follows from a row and a label. So the right
label is the one whose δ lies in the column space and whose c is a multiple of 1/b. Where the loss
weighs classes, c is a multiple of w_y/Σw instead, and Σw is read off the c of the first rows that
are found. A squared error has δ in proportion to its residual, so that c gives a real target.

Behind noise a row that is taken out with numbers that are a little off leaves a trace, which the
rows that are found after it bend to. So the numbers of all rows move (Gauss and Newton) until
the sum of their gradients is as near to the update as may be. Where what is left is noise alone,
the rows are the batch, and the variance of the noise gives each number its standard error.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradaudit.attacks.reconstruction.base import AttackerView, Update
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.polishing import SpanTest
from gradaudit.audits.attack_table.structure import bias_of
from gradaudit.errors import NotApplicable

_SHARED = (1, 1), (1, 2), (2, 1)
"""How often one record may be there with two different labels."""
_APART = 0.05
"""How far multiplicities may be from whole numbers where a record may have two labels."""
_FITS = 1e-3
"""The share of δ outside the column space up to which it says what the batch weighs."""
_SQUARED = 1e-6
_STEPS = 12
_SHARES = 1.0, 0.3, 0.1
"""Of a step, each tried where the one before leads astray."""
_LARGEST = 250_000_000
"""Elements of the derivative that are held at most (2 GB)."""
_ERRORS = 12.0
"""Standard errors that a number is said to be off at most. Of 4,800 numbers behind noise of 1e-6 to
1e-3 two were off by 6 and 9: gradients jump where a ReLU begins, and the fit stops beside it."""


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
            self.total = float(self.view.batch)
        if not self.view.classes and self.view.label_shape not in ((), (1,)):
            raise NotApplicable("records have several real targets, which no multiple tells apart")

    def of(self, test: SpanTest, cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The terms that rows stand for in the gradient: a row, its label and its multiplicity.

        A row that fits no label may be there with two of them; it then has a term for each.

        Returns:
            (terms,) places among the rows, (terms,) labels and (terms,) multiplicities.

        Raises:
            NotApplicable: targets are real, and the loss is no squared error.
        """
        if not self.view.classes:
            return self._with_targets(test, cells)
        times, misfit = self._multiplicities(test, cells, self._mixtures)
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
        if not self.view.classes:
            return self._real_targets(test, cells)[0]
        single = self._mixtures[: len(self.targets)]
        times, misfit = self._multiplicities(test, cells, single)
        return self.targets[torch.where(times > 0, misfit, torch.inf).argmin(dim=1)]

    def shares(self, labels: Tensor, times: Tensor) -> Tensor:
        """Weights of terms in the batch's gradient, (terms,)."""
        weights = self.weights
        each = times if weights is None else times * weights[labels.long()]
        return each / (self.total or self.view.batch)

    def gradients(self, cells: Tensor, labels: Tensor, names: tuple[str, ...]) -> Update:
        """Each row's own gradient by some parameters, (rows, …) each."""
        model = self.view.model
        chosen = {name: model.parameters[name] for name in names}
        records = model.cast(self.columns.inputs(cells))
        targets = labels.reshape(-1, *self.view.label_shape)
        one = torch.func.grad(model.record_loss)
        gradients: Update = torch.func.vmap(one, (None, 0, 0))(chosen, records, targets)
        return gradients

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

    @cached_property
    def _mixtures(self) -> Tensor:
        """How often a row may be there with each label: each alone, then two of them.

        Rows of (mixtures, labels); there are no pairs where multiplicities are not known well.
        """
        single = torch.eye(len(self.targets), dtype=torch.float64)
        if self.tolerance > _APART:
            return single
        one, other = torch.triu_indices(len(single), len(single), 1)
        pairs = [m * single[one] + n * single[other] for m, n in _SHARED]
        return torch.cat([single, *pairs])

    def _multiplicities(
        self, test: SpanTest, cells: Tensor, mixtures: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Of each mixture its multiplicity, and the share of δ outside the column space.

        Both are (rows, mixtures).
        """
        count = len(self.targets)
        targets, repeated = self.targets.repeat(len(cells)), cells.repeat_interleave(count, 0)
        one = self._deltas(test, repeated, targets).reshape(len(cells), count, -1)
        if self.weights is not None:
            one = one * self.weights[:, None]
        deltas = (mixtures @ one).flatten(0, 1)
        shape = len(cells), len(mixtures)
        shares, misfit = (x.reshape(shape) for x in self._fit(test, cells, deltas))
        if self.total is None:
            likely = shares[:, :count][(shares > 0)[:, :count] & (misfit < _FITS)[:, :count]]
            self.total = 1 / float(likely.median()) if len(likely) else None
        return shares * (self.total or torch.nan), misfit

    def _fit(self, test: SpanTest, cells: Tensor, deltas: Tensor) -> tuple[Tensor, Tensor]:
        """The c of rows with several δ each, and shares of δ outside, one after the other."""
        entered = test.layers.entered(cells)
        space = test.second or test.first
        vectors = entered if test.second is None else test.layers.hidden(entered)
        repeated = vectors.repeat_interleave(len(deltas) // max(1, len(cells)), 0)
        return space.coefficient(repeated, deltas), space.outside_columns(deltas)

    def _deltas(self, test: SpanTest, cells: Tensor, targets: Tensor) -> Tensor:
        layer = test.layers.first if test.second is None else str(test.layers.second)
        return self.gradients(cells, targets, (bias_of(layer),))[bias_of(layer)]

    def _with_targets(self, test: SpanTest, cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Terms of rows with real targets, each once, where δ lies in the column space."""
        targets, misfit = self._real_targets(test, cells)
        fits = (misfit < self.tolerance) & targets.isfinite()
        rows = fits.nonzero()[:, 0]
        return rows, targets[rows], torch.ones(len(rows)).double()

    def _real_targets(self, test: SpanTest, cells: Tensor) -> tuple[Tensor, Tensor]:
        """The target that a row's multiple of δ shows, and the share of δ outside: (rows,) each."""
        outputs = self.view.model.outputs({}, self.view.model.cast(self.columns.inputs(cells)))
        outputs = outputs.detach().reshape(len(cells), -1)[:, 0]
        unit, double = (self._deltas(test, cells, outputs - far) for far in (1.0, 2.0))
        if not torch.allclose(double, 2 * unit, rtol=_SQUARED, atol=_SQUARED):
            raise NotApplicable("targets are real, and are read off squared errors alone")
        shares, misfit = self._fit(test, cells, unit)
        return outputs - shares * self.view.batch, misfit


@dataclass(frozen=True)
class JointFit:
    """The rows of an update and what they leave of it.

    Attributes:
        cells: (rows, cells).
        spread: (rows, numbers) deviations that numbers may be off, if what is left is noise.
        left: of the update.
    """

    cells: Tensor
    spread: Tensor
    left: Update


def joint_fit(
    terms: GradientTerms, update: Update, cells: Tensor, labels: Tensor, times: Tensor
) -> JointFit | None:
    """Fit the numbers of rows; None where there are too many for the memory.

    Args:
        terms: gives rows' gradients.
        update: of the whole batch.
        cells: (rows, cells) where to begin.
        labels: (rows,).
        times: (rows,) how often each is in the batch.
    """
    columns, names = terms.columns, tuple(update)
    whole = _flat(update, names, 0)
    size = len(cells) * len(columns.numeric) * len(whole)
    if size > _LARGEST or not len(cells):
        return None
    weight = terms.shares(labels, times)[:, None]

    def made(rows: Tensor) -> Tensor:
        return _flat(terms.gradients(rows, labels, names), names, 1) * weight

    residual = whole - made(cells).sum(dim=0)
    inverse = whole.new_zeros(0, 0)
    for _ in range(_STEPS if size else 0):
        slopes = [torch.func.jvp(made, (cells,), (way,))[1] for way in _ways(columns, cells)]
        slope = torch.stack(slopes, dim=1).flatten(0, 1)
        inverse = torch.linalg.pinv(slope @ slope.T, rtol=1e-12, hermitian=True)
        step = (inverse @ (slope @ residual)).reshape(len(cells), -1)
        for share in _SHARES:
            moved = cells.clone()
            moved[:, columns.numeric] += share * step
            moved[:, columns.numeric] = moved[:, columns.numeric].clamp(*columns.bounds)
            after = whole - made(moved).sum(dim=0)
            if float(after.norm()) < float(residual.norm()):
                break
        else:
            break
        cells, residual = moved, after
    freedom = len(whole) - len(cells) * len(columns.numeric)
    variance = inverse.diagonal().clamp(min=0) * residual.square().sum() / freedom
    cells, spread = _settled(columns, cells, _ERRORS * variance.sqrt().reshape(len(cells), -1))
    rest = whole - made(cells).sum(dim=0)
    parts = torch.split(rest, [update[name].numel() for name in names])
    left = {n: part.reshape(update[n].shape) for n, part in zip(names, parts, strict=True)}
    return JointFit(cells, spread, left)


def _ways(columns: TableColumns, cells: Tensor) -> list[Tensor]:
    """One direction for each number, the same for all rows."""
    ways = [torch.zeros_like(cells) for _ in columns.numeric]
    for number, way in zip(columns.numeric.tolist(), ways, strict=True):
        way[:, number] = 1
    return ways


def _settled(columns: TableColumns, cells: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers that may be but one value of their column's known ones, moved to it.

    The precision grows by as much as a number is moved.
    """
    moved = columns.as_known(cells)
    for place, values in enumerate(columns.values):
        number = columns.numeric[place]
        low = torch.searchsorted(values, (cells[:, number] - spread[:, place]).contiguous())
        high = torch.searchsorted(values, (cells[:, number] + spread[:, place]).contiguous())
        moved[:, number] = torch.where(high - low == 1, moved[:, number], cells[:, number])
    return moved, spread + (moved - cells)[:, columns.numeric].abs()


def _flat(update: Update, names: tuple[str, ...], start: int) -> Tensor:
    return torch.cat([update[name].flatten(start) for name in names], dim=start)
