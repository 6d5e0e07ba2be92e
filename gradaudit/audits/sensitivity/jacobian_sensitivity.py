"""Sensitivity of every layer's gradient to the input and to the label, record by record.

A record's number is ‖J‖_p, with J = ∂G_l/∂x (Mo et al. 2022, eq. 7–8) or ∂G_l/∂y (Mo et al. 2021,
eq. 9). *Bounded* it is ‖J‖_p / (ψ range(G_l)), with range the largest minus the smallest element of
G_l, and ψ = √|W|, |W|, 1 for p = F, 1, ∞ (Mo et al. 2021, eq. 10). Where J is zero that is zero;
where J is not but the range is, it is undefined.

A record's norm is known exactly, or as the mean over probes (of squares, for the F norm). The same
probes serve every record, so the errors of records are dependent, and the intervals of estimates
look at whole probes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammainccinv, gammaincinv, stdtrit
from torch import Tensor

from gradaudit.audits.sensitivity.jacobian import Jacobians, LayerNorms
from gradaudit.core.statistics import CONFIDENCE
from gradaudit.core.statistics.intervals import Interval
from gradaudit.data.records import Records
from gradaudit.errors import AuditError, NotApplicable
from gradaudit.gradients.differentiation import (
    Batch,
    Differentiation,
    Mapped,
    Variable,
    checked,
    fastest,
)
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.jacobian_norms import (
    NORMS,
    Columns,
    Norm,
    Pass,
    by_probes,
    exact_norms,
    norms_of,
    over_directions,
)
from gradaudit.gradients.per_sample import names_of
from gradaudit.gradients.trace import Trace
from gradaudit.models.losses import BinaryCrossEntropy, CrossEntropy
from gradaudit.models.target import Layer, Target
from gradaudit.progress import Progress

Array = NDArray[np.float64]

AFFORDABLE = 2e11
"""Multiply-adds of forward passes that an exact measurement may take without being asked for."""
PROBES = 64
MOST_LABELS = 1000
"""Components of a label that are each taken without being asked for; more are estimated."""
CONFIDENT = 0.999
_TOGETHER = 16
"""Records that the model is run on at a time."""
_TASKS: dict[Variable, str] = {
    "point": "Sensitivity to the input",
    "target": "Sensitivity to the label",
}
_PSI: dict[Norm, float] = {"f": 0.5, "1": 1.0, "inf": 0.0}
_NO_RANGE = float(np.finfo(np.float64).tiny ** 0.5)
"""Least range of a gradient by which a norm is divided: the square of a smaller one is rounded to
zero. A model that is certain of a record's label has such ranges."""


@dataclass(frozen=True)
class Sample:
    """One norm of one layer's Jacobians, for every record.

    The mean of ``parts``, (records, probes), over probes is a record's norm, or its square where
    ``squared``; one probe where the norm is exact. It is of the records that have one, which are
    ``defined``, (all records,). ``columns`` is how many columns there are, where the probes are
    some of them; else None.
    """

    parts: Array
    defined: NDArray[np.bool_]
    squared: bool
    columns: int | None = None

    @property
    def exact(self) -> bool:
        """Whether the norms are exact, not estimated by probes."""
        return bool(self.parts.shape[1] == 1)

    @property
    def values(self) -> Array:
        """Each record's norm, (records,)."""
        means = self.parts.mean(axis=1)
        norms: Array = np.sqrt(means) if self.squared else means
        return norms

    @property
    def mean(self) -> float:
        """The mean over records."""
        return float(self.values.mean())

    def interval(self) -> Interval:
        """Compute an interval for the exact mean over these records, for the error of probes.

        F norms: the mean over Gaussian probes of a sum of squares is a mixture of chi-squares,
        approximated by one chi-square of the same variance (Satterthwaite 1946). The degrees of
        freedom come from the spread over probes, which is uncertain itself, most of all where one
        direction dominates: they are lowered by one standard error of the sample variance, but
        not below one a probe, the least that a Jacobian of rank one has.

        Sums over columns: Student's interval, for a finite number of columns.
        """
        alone = self._each_probe()
        count, variance, mean = len(alone), float(alone.var(ddof=1)), self.mean
        tails = np.array([1 - CONFIDENCE, 1 + CONFIDENCE]) / 2
        if self.columns is not None:
            error = np.sqrt(variance / count * (1 - count / self.columns))
            low, high = mean + stdtrit(count - 1, tails) * error
            return max(0.0, float(low)), float(high)
        if variance == 0:
            return mean, mean
        freedom = max(1.0, 2 * mean**2 / variance)
        freedom = max(1.0, freedom / (1 + np.sqrt((2 + 12 / freedom) / count)))
        law = 2 * gammaincinv(count * freedom / 2, tails[::-1])  # χ²
        low, high = mean * np.sqrt(count * freedom / law)
        return float(low), float(high)

    def each_within(self, tail: float) -> tuple[Array, Array]:
        """Compute the limits of every record's exact norm, (records,) each.

        An estimated F norm is the exact one times √W, with W a weighted mean of chi-squares. Of all
        Jacobians one of rank one has the heaviest tails (one chi-square with a degree of freedom a
        probe; P. Diaconis and M. Perlman, "Bounds for tail probabilities of weighted sums of
        independent gamma random variables", 1990), so its quantiles hold for any. As the same
        probes serve all records, the probability is shared out among them.

        Args:
            tail: probability that any record's norm lies below its ends, and that any lies above.
        """
        if self.exact:
            return self.values, self.values
        assert self.squared, "sums over columns have no law that holds for any Jacobian"
        probes = self.parts.shape[1]
        each = tail / len(self.parts)
        least, most = gammaincinv(probes / 2, each), gammainccinv(probes / 2, each)
        return self.values * np.sqrt(probes / 2 / most), self.values * np.sqrt(probes / 2 / least)

    @property
    def by_probe(self) -> Array:
        """Compute each probe's first-order estimate of the mean over records, (probes,)."""
        alone = self._each_probe()
        return (alone + self.mean) / 2 if self.squared else alone

    def _each_probe(self) -> Array:
        """Average each probe's squares over the norm across records, (probes,)."""
        values = self.values[:, None] if self.squared else np.ones((len(self.parts), 1))
        ratios = np.divide(self.parts, values, where=values > 0, out=np.zeros_like(self.parts))
        alone: Array = ratios.mean(axis=0)
        return alone


@dataclass(frozen=True)
class VariableSensitivity:
    """The sensitivity of every layer to one variable.

    ``raw`` is by layer and norm: no norm where the gradients are not finite, and no largest entry
    where there are only probes. ``bounded`` is the same over range and ψ, without layers of one
    element, which have no range. ``method`` is for the report, and ``probes`` 0 where it is exact.
    """

    raw: dict[str, dict[Norm, Sample]]
    bounded: dict[str, dict[Norm, Sample]]
    method: str
    probes: int


@dataclass(frozen=True)
class DifferentiableTarget:
    """A target with some records, prepared for differentiation.

    Labels are as the data set holds them, outputs (records, …) of records that are each a batch of
    its own.
    """

    view: FunctionalModel
    layers: Sequence[Layer]
    inputs: Tensor
    labels: Tensor
    outputs: Tensor

    @classmethod
    def of(cls, target: Target, layers: Sequence[Layer], records: Records, seed: int) -> Self:
        """Run the model on every record.

        Raises:
            AuditError: it cannot be run, or gives numbers that are not finite.
            NotApplicable: its outputs or its loss are functions of several records.
        """
        view = FunctionalModel.of(target, seed=seed)
        inputs, labels = view.cast(records.inputs), view.cast(records.labels)
        if coupling := view.coupling(inputs, labels):
            raise NotApplicable(f"records have no gradients of their own: {coupling}{view.remedy}")
        parts = zip(torch.split(inputs, _TOGETHER), torch.split(labels, _TOGETHER), strict=True)
        outputs = [view.check(*some) for some in parts]
        together = torch.cat(outputs)
        if not together.isfinite().all():
            raise AuditError("the model's outputs are not finite: check the checkpoint")
        return cls(view, layers, inputs, labels, together)

    @property
    def confident(self) -> float | None:
        """The share of records whose label has a probability above 0.999; None without one."""
        loss, outputs = self.view.loss, self.outputs
        one_logit = isinstance(loss, BinaryCrossEntropy) and outputs[0].numel() == 1
        if not (isinstance(loss, CrossEntropy) or one_logit):
            return None
        unweighted = BinaryCrossEntropy() if one_logit else loss
        losses = unweighted.per_record(outputs, self.labels)
        return float((losses < -math.log(CONFIDENT)).double().mean())

    def jacobian_sensitivity(
        self,
        by: Variable,
        probes: int | None,
        *,
        one_norm: bool = True,
        seed: int,
        memory: int,
        progress: Progress,
        workers: int = 1,
    ) -> VariableSensitivity:
        """Measure all layers.

        ``by`` is the point (the input) or the target (the label); ``probes`` are how many to
        estimate from, 0 for none, None for none where that is affordable. Without ``one_norm`` the
        1-norm is not estimated. At most ``memory`` bytes are taken, by each of the workers.

        Raises:
            AuditError: the gradients cannot be differentiated by this, in no way.
            NotApplicable: the loss takes no real-valued labels.
        """
        trace, targets, points = self._traced(by)
        records = range(len(self.inputs))
        batch = Batch(trace, self.inputs, points, targets, records)
        way: Differentiation
        try:  # the way that nearly all models allow first, as trying others takes several passes
            way = checked(Mapped(), batch, by)
        except Exception:
            way = checked(fastest(batch, by), batch, by)
        jacobians = Jacobians(batch, way, by, self.layers, memory, seed)
        work = len(records) * jacobians.size * _multiply_adds(trace)
        if probes is None:
            many = by == "target" and jacobians.size > MOST_LABELS
            probes = PROBES if many or work > AFFORDABLE else 0
        passes = by_probes(jacobians.size, probes, seed) if probes else exact_norms(jacobians.size)
        if not one_norm and not passes[0].total:
            passes = [taken for taken in passes if "1" not in taken.norms]
        tangents = len(records) * sum(len(taken.plan) for taken in passes)
        with progress.task(_TASKS[by], tangents) as advance:
            work_of = partial(Jacobians.norms, passes=passes, advance=advance)
            try:
                by_layer = work_of(jacobians, workers=workers)
            except Exception:  # as of records that take other branches
                slower = replace(jacobians, way=checked(fastest(batch, by), batch, by))
                by_layer = work_of(slower, workers=workers)
        wide = [layer for layer in self.layers if layer.parameters > 1]
        raw = {layer.name: _samples(by_layer[layer.name], passes) for layer in self.layers}
        bounded = {layer.name: _samples(by_layer[layer.name], passes, layer) for layer in wide}
        methods = frozenset().union(*(norms.methods for norms in by_layer.values()))
        probes = 0 if passes[0].total else len(passes[0].plan)
        return VariableSensitivity(raw, bounded, "; ".join(sorted(methods)), probes)

    def within(self, work: float, by: Variable) -> int:
        """Estimate how many records can be measured exactly in a number of multiply-adds.

        Raises:
            AuditError: the loss has no gradient.
            NotApplicable: the loss takes no real-valued labels.
        """
        trace, targets, points = self._traced(by)
        varied = targets if by == "target" else points
        return int(work / (varied[0].numel() * _multiply_adds(trace)))

    def _traced(self, by: Variable) -> tuple[Trace, Tensor, Tensor]:
        """Return the trace, and all records' targets and points."""
        try:
            targets = (
                self.labels if by == "point" else self.view.loss.soft(self.outputs, self.labels)
            )
        except AuditError as error:
            raise NotApplicable(str(error)) from error
        trace, points = self._trace, self._trace.point(self.inputs)
        if by == "point" and not points.is_floating_point():
            raise NotApplicable(
                "the inputs are integers and the model has no embedding, so they cannot vary "
                "continuously"
            )
        return trace, targets, points

    @cached_property
    def _trace(self) -> Trace:
        """Trace the records' uses of the layers' parameters, with any target of the loss."""
        return Trace.of(self.view, names_of(self.layers), self.inputs, self.labels)


class JacobianNorms(NamedTuple):
    """Norms of Jacobians, averaged over records: Frobenius, sum and largest of absolute entries."""

    f: float
    one: float
    inf: float


def input_sensitivity(jacobian: ArrayLike) -> JacobianNorms:
    """Average the norms of a layer's Jacobians over records.

    ‖∂G/∂x‖_p, averaged over K records, for p = F (Frobenius), 1 (sum of absolute entries) and ∞
    (largest entry), not divided by anything (Mo et al. 2022, eq. 7–8).

    >>> input_sensitivity([[[3.0, 0.0], [0.0, -4.0]]])
    JacobianNorms(f=5.0, one=7.0, inf=4.0)

    Args:
        jacobian: (records, elements of the gradient G, elements of the input x).
    """
    norms = _norms_of(jacobian)
    return JacobianNorms(*(float(_root(norms[norm], norm).mean()) for norm in NORMS))


def label_sensitivity(jacobian: ArrayLike, gradient: ArrayLike) -> JacobianNorms:
    """Average the bounded norms of a layer's Jacobians over records.

    ‖∂G/∂y‖_p/(ψ range G), averaged over the records that have a range, with range the largest less
    the smallest element of G and ψ = √|W|, |W|, 1 for p = F, 1, ∞ and |W| elements (Mo et al. 2021,
    eq. 9–10). A Jacobian of zeros counts as 0, also without a range.

    >>> label_sensitivity([[[3.0], [0.0], [0.0], [-4.0]]], [[0.0, 1.0, 2.0, 0.5]])
    JacobianNorms(f=1.25, one=0.875, inf=2.0)

    Args:
        jacobian: (records, elements of G, elements of the label y).
        gradient: (records, elements of G).
    """
    gradients = np.asarray(gradient, float).reshape(len(np.asarray(gradient)), -1)
    ranges, found = np.ptp(gradients, axis=1), []
    for norm, values in _norms_of(jacobian).items():
        parts, defined = over_range(values, ranges, gradients.shape[1], norm)
        found.append(float(_root(parts[defined], norm).mean()))
    return JacobianNorms(*found)


def _norms_of(jacobian: ArrayLike) -> dict[Norm, Array]:
    """Compute each record's norms, (records, 1), the Frobenius norm squared."""
    directions = torch.as_tensor(np.array(np.asarray(jacobian), float)).transpose(1, 2)
    norms = over_directions(norms_of(directions.contiguous(), NORMS))
    return {norm: norms[norm].numpy() for norm in NORMS}


def _root(values: Array, norm: Norm) -> Array:
    return np.asarray(np.sqrt(values) if norm == "f" else values)


def over_range(
    parts: Array, ranges: Array, elements: int, norm: Norm
) -> tuple[Array, NDArray[np.bool_]]:
    """Divide norms (records, …), of F squares, by ψ range G, and mask where that is defined."""
    divisor = (ranges * elements ** _PSI[norm]) ** (2 if norm == "f" else 1)
    known = ranges >= _NO_RANGE
    defined = known | ((ranges == 0) & (parts == 0).all(axis=1))
    return parts / np.where(known, divisor, 1)[:, None], defined


def _samples(
    norms: LayerNorms, passes: Sequence[Pass], layer: Layer | None = None
) -> dict[Norm, Sample]:
    """Make a layer's samples, over range and ψ where given; none if a norm is not finite."""
    ranges = norms.ranges.cpu().double().numpy()
    samples: dict[Norm, Sample] = {}
    for taken in passes:
        for norm in taken.norms:
            parts = norms.samples[norm].cpu().double().numpy()
            if not (np.isfinite(parts).all() and np.isfinite(ranges).all()):
                return {}
            squared = norm == "f"
            defined = np.ones(len(parts), dtype=bool)
            if layer is not None:
                parts, defined = over_range(parts, ranges, layer.parameters, norm)
            some = isinstance(taken.plan, Columns) and not taken.total
            columns = round(taken.factor) if some else None
            samples[norm] = Sample(parts[defined], defined, squared, columns)
    return samples


def _multiply_adds(trace: Trace) -> int:
    """Count multiply-adds of one record's forward pass, by factors or by whole parameters."""
    every = (use for uses in trace.uses.values() for _, use in uses)
    apart = sum(use.positions * math.prod(use.block) for use in every)
    return apart + sum(trace.view.parameters[name].numel() for name in trace.whole)


def joined(value: float, first: Interval, second: Interval) -> Interval:
    """Combine two independent sources of error into the interval of a positive value.

    Each alone has one of these intervals; distances in logarithms add in squares (G. Zou and A.
    Donner, "Construction of confidence limits about effect measures", 2008).
    """
    if value <= 0:
        return first
    with np.errstate(divide="ignore"):
        ends = np.log(np.maximum([first, second], 0.0) / value)
    low, high = np.sqrt(np.square(ends).sum(axis=0))
    return float(value * np.exp(-low)), float(value * np.exp(high))
