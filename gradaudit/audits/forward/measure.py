"""Makes rows of the information about the input in each layer's activations.

Information about the record in layers' activations: what every layer gives out, and bounds.

Activations are taken without changing the model. For X uniform over N records and T the layer's
activations, the information that T plus Gaussian noise of variance σ² has of X lies between
−1/N Σ_i log2(1/N Σ_j exp(−‖t_i − t_j‖²/(2ασ²))) with α = 4 and with α = 1 (A. Kolchinsky and
B. Tracey, "Estimating mixture entropy with pairwise distances", 2017; Mo et al. 2021, "Layer-wise
characterization of latent information leakage in federated learning", eq. 12, where the
exponential is missing).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from gradaudit.audits.forward import Forward
from gradaudit.audits.rows import Rows, by_round
from gradaudit.core.statistics.laws import student_quantile
from gradaudit.errors import AuditError, NotApplicable
from gradaudit.gradients.capture import FunctionMode
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.memory import column_blocks, peak_bytes
from gradaudit.models.target import Layer, Target
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.subject import Subject, defenses_note

Array = NDArray[np.float64]
UPPER, LOWER = 1.0, 4.0
"""The α of the upper and of the lower bound."""
_TRIAL = 2
_RECORDS = 1000
_FEWEST = 3
_BYTES_A_PAIR = 16
_CEILING = 0.99
"""Share of log2 N from which more information cannot be measured with so few records."""
_UNDEFENDED = "none applied: activations are not shared, and the weights are taken as they are"
_UNSEEN = "no call was seen that applies its parameters to records"
_NOT_FINITE = "its activations are not finite; look at the weights and the inputs"


@dataclass(frozen=True)
class Activations:
    """Activations of records in chunks, all layers in one run of the model.

    A layer's activations are the output of its module, flattened; where the module itself is never
    called (attention's projections, exported graphs), that of the function its parameters are given
    to; where it is used several times, all outputs side by side in the order of the calls.

    Attributes:
        inputs: (records, …).
        widths: elements of each layer that has activations, by name.
        chunk: records that run through the model at once.
    """

    view: FunctionalModel
    layers: tuple[Layer, ...]
    inputs: Tensor
    widths: Mapping[str, int]
    chunk: int

    @classmethod
    def of(
        cls, target: Target, layers: Sequence[Layer], inputs: Tensor, labels: Tensor, memory: int
    ) -> Activations:
        """Run two records to find the layers with activations, and how many records fit in memory.

        Raises:
            AuditError: the model cannot be run on the records.
            NotApplicable: records have no activations of their own.
        """
        view = FunctionalModel.of(target)
        trial = view.cast(inputs[:_TRIAL])
        view.check(trial, view.cast(labels[:_TRIAL]))
        _expect_own_activations(view, trial)
        alone = [_run(view, layers, record[None]) for record in trial]
        widths = {name: values.shape[1] for name, values in alone[0].items()}
        together = _run(view, layers, trial)
        chunk = 1
        if all(
            _agree(together.get(name), [outputs.get(name) for outputs in alone]) for name in widths
        ):
            runs = [partial(_run, view, layers, trial[:count]) for count in (1, _TRIAL)]
            one, two = map(peak_bytes, runs)
            chunk = max(1, 1 + (memory // 2 - one) // max(1, two - one))
        return cls(view, tuple(layers), inputs, widths, chunk)

    def stream(self, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
        """Yield the named layers' activations chunk by chunk, (chunk, elements).

        Raises:
            AuditError: a record gives another number of activations than the first one.
        """
        layers = [layer for layer in self.layers if layer.name in names]
        for start in range(0, len(self.inputs), self.chunk):
            records = self.view.cast(self.inputs[start : start + self.chunk])
            outputs = _run(self.view, layers, records)
            for name in names:
                if name not in outputs or outputs[name].shape[1] != self.widths[name]:
                    raise AuditError(f"{name} gives other numbers of activations to other records")
            yield outputs


def _expect_own_activations(view: FunctionalModel, records: Tensor) -> None:
    reason = view.coupling(records)
    if reason is None and view.stochastic(records):
        reason = "they are drawn at random (dropout)"
    if reason:
        raise NotApplicable(f"records have no activations of their own: {reason}{view.remedy}")


def _agree(together: Tensor | None, alone: list[Tensor | None]) -> bool:
    """Whether a batch's activations equal those of its single records, in order."""
    single = [output for output in alone if output is not None]
    if together is None or len(single) < len(alone) or len({output.shape for output in single}) > 1:
        return False
    expected = torch.cat(single)
    off = torch.finfo(expected.dtype).eps ** 0.5
    same = together.shape == expected.shape
    return same and torch.allclose(together, expected, rtol=off, atol=off, equal_nan=True)


def _run(view: FunctionalModel, layers: Sequence[Layer], records: Tensor) -> dict[str, Tensor]:
    """Compute the layers' activations (records, elements) by name."""
    owners = {
        id(view.parameters[name]): layer.name for layer in layers for name in layer.parameter_names
    }
    uses = _Uses(owners)
    with torch.no_grad(), _watching(view.module, layers) as called, uses:
        view.outputs({}, records)
    outputs = {layer.name: called[layer.name] or uses.outputs[layer.name] for layer in layers}
    return {
        name: torch.cat([output.reshape(len(records), -1) for output in value], dim=1)
        for name, value in outputs.items()
        if value and all(output.numel() % len(records) == 0 for output in value)
    }


@contextmanager
def _watching(module: nn.Module, layers: Iterable[Layer]) -> Iterator[dict[str, list[Tensor]]]:
    """Copy the outputs of the layers' modules within the context."""
    kept: dict[str, list[Tensor]] = {layer.name: [] for layer in layers}

    def keep(name: str, given: Sequence[Any], output: Any) -> None:
        tensor = _first_tensor(output)
        if tensor is not None and _first_tensor(given) is not None:
            kept[name].append(tensor.clone())

    handles = []
    try:
        for name in kept:
            part = module.get_submodule("" if name == "(model)" else name)
            hook = part.register_forward_hook(
                lambda _, args, kwargs, out, name=name: keep(name, [*args, *kwargs.values()], out),
                with_kwargs=True,
            )
            handles.append(hook)
        yield kept
    finally:
        for handle in handles:
            handle.remove()


class _Uses(FunctionMode):
    """Keeps the results of functions that use a layer's parameters.

    Args:
        owners: a layer's name by the identity of each of its parameters.
    """

    def __init__(self, owners: Mapping[int, str]) -> None:
        super().__init__()
        self._owners = owners
        self.outputs: dict[str, list[Tensor]] = {name: [] for name in owners.values()}

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        output = function(*args, **kwargs)
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        used = {self._owners[id(x)] for x in given if id(x) in self._owners}
        tensor = _first_tensor(output)
        if used and tensor is not None and any(id(x) not in self._owners for x in given):
            for name in used:
                self.outputs[name].append(tensor.clone())
        return output


def _first_tensor(output: Any) -> Tensor | None:
    """Find the first floating-point tensor among arguments or results."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, (tuple, list)):
        return next((x for x in map(_first_tensor, output) if x is not None), None)
    return None


class Bound(NamedTuple):
    """A bound in bits, with its interval over other records.

    Attributes:
        bits: of all records.
        without: of all records but one, (records,).
    """

    bits: float
    without: Array

    @property
    def interval(self) -> tuple[float, float]:
        """Student's interval with the jackknife's standard error, within 0 and log2 N.

        It covers what as many other records of the same kind give on average. (A bootstrap would
        draw records twice, and a record drawn twice is counted as information that it is not.)
        """
        count = len(self.without)
        error = np.sqrt((count - 1) * self.without.var())
        reach = student_quantile(count - 1) * error
        low, high = max(0.0, self.bits - reach), min(np.log2(count), self.bits + reach)
        return min(float(low), self.bits), max(float(high), self.bits)


class Pairs:
    """Squared distances between all pairs of points, summed over blocks of their elements."""

    def __init__(self, records: int) -> None:
        self._gram = np.zeros((records, records))

    def add(self, block: Array) -> None:
        """Add more elements of all points, (records, some elements).

        Centred first: what all points share would round away what they differ in.
        """
        with np.errstate(invalid="ignore"):  # what is not finite is found in the distances
            centred = block - block.mean(axis=0)
            self._gram += centred @ centred.T

    def squared_distances(self) -> Array:
        """Return the squared distances (records, records), exactly zero on the diagonal."""
        norms = self._gram.diagonal()
        distances: Array = norms[:, None] + norms - 2 * self._gram
        np.maximum(distances, 0.0, out=distances)
        np.fill_diagonal(distances, 0.0)
        return distances


def activation_information(
    distances: ArrayLike, sigma2: float, alpha: float = UPPER, memory: int = 1 << 28
) -> Bound:
    """Bound the information about the input in noisy activations, in bits.

    −1/N Σ_i log2(1/N Σ_j exp(−‖t_i − t_j‖²/(2ασ²))): an upper bound for α = 1, a lower one for α =
    4 (Mo et al. 2021, section 9.1; Kolchinsky and Tracey 2017, "Estimating mixture entropy with
    pairwise distances").

    >>> distances = 100.0 * (1 - np.eye(4))  # four records far apart, by squares
    >>> round(activation_information(distances, sigma2=0.1).bits, 6)
    2.0

    Args:
        distances: squared, (records, records), with zeros on the diagonal; two records or more.
        sigma2: variance σ² of the noise in every element, in squared units of the activations.
        alpha: ``UPPER`` or ``LOWER``.
        memory: bytes that a block of rows may take.
    """
    distances = np.asarray(distances, float)
    count = len(distances)
    total, without = 0.0, np.zeros(count)
    step = max(1, memory // (8 * 3 * count))
    for start in range(0, count, step):
        # a row's largest term is its own, exp(0) = 1: sums neither vanish nor overflow, and taking
        # another record's term away from a sum leaves at least 1
        rows = np.arange(start, min(start + step, count))
        kernels = np.exp(distances[rows] / (-2 * alpha * sigma2))
        sums = kernels.sum(axis=1)
        total += float(np.log2(sums / count).sum())
        others = sums[:, None] - kernels
        others[np.arange(len(rows)), rows] = 1.0  # a record left out has no term of its own
        without += np.log2(others).sum(axis=0)
    bits = float(np.clip(-total / count, 0.0, np.log2(count)))  # rounding may leave them by a hair
    return Bound(bits, np.log2(count - 1) - without / (count - 1))


def gradients(audit: Forward, subject: Subject) -> float:
    """Count half a pass for each record's activations."""
    return 0.5 * min(subject.samples or _RECORDS, len(subject.records)) * len(subject.targets)


def run(audit: Forward, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Yield rows of every shown layer; older checkpoints are the variants ``round``.

    Raises:
        NotApplicable: too few or too many records, or they have no activations of their own.
        AuditError: the model cannot be run on the records.
    """
    count, most = len(subject.sample(_RECORDS)), math.isqrt(subject.memory // _BYTES_A_PAIR)
    if count < _FEWEST:
        raise NotApplicable(
            f"{count} records cannot be distinguished by much; look at {_FEWEST} or more "
            "(--samples, or more data)"
        )
    if count > most:
        raise NotApplicable(
            f"the distances between all pairs of {count:,} records do not fit into memory; "
            f"look at {most:,} or fewer (--samples)"
        )
    for target, variant in by_round(subject):
        rows = Rows(type(audit), variant)
        yield from _of_target(target, rows, audit.options.sigma2, subject, progress)


def _of_target(
    target: Target, rows: Rows, sigma2: float, subject: Subject, progress: Progress
) -> Iterator[Measurement]:
    records = subject.sample(_RECORDS)
    activations = Activations.of(
        target, subject.layers, records.inputs, records.labels, subject.memory
    )
    widths = activations.widths
    yield from rows.skipped(
        _UNSEEN, layers=[layer.name for layer in subject.layers if layer.name not in widths]
    )
    notes = defenses_note(subject, _UNDEFENDED)
    pairs = Pairs(len(records))
    blocks = column_blocks(activations.stream, widths, len(records), subject.memory // 2)
    with progress.task("forward", len(widths)) as advance:
        for piece, block in blocks:
            pairs.add(block)
            if piece.stop == widths[piece.layer]:
                seen = rows.of({}, {"elements": piece.stop, "sigma2": sigma2, **notes})
                yield from rows_of(piece.layer, pairs.squared_distances(), seen, sigma2)
                pairs = Pairs(len(records))
                advance(1)


def rows_of(
    layer: str, distances: NDArray[np.float64], rows: Rows, sigma2: float
) -> Iterator[Measurement]:
    """Make one layer's rows from squared distances of activations (records, records)."""
    if not np.isfinite(distances).all():
        yield from rows.failed(_NOT_FINITE, layers=[layer])
        return
    upper, lower = (activation_information(distances, sigma2, alpha) for alpha in (UPPER, LOWER))
    count = len(distances)
    most = math.log2(count)
    spread = float(distances.sum() / (count * (count - 1)))
    alone = (
        f"all {count:,} records lie apart at a noise of {sigma2:g}: the number is its ceiling, "
        f"log2 {count:,}; look at more records (--samples) or through more noise (--sigma2)"
    )
    for metric, bound, unit in (
        ("information_upper", upper, 1.0),
        ("information_lower", lower, 1.0),
        ("fraction", upper, most),
    ):
        low, high = bound.interval
        at_ceiling = bound.bits >= _CEILING * most
        yield rows.measured(
            metric,
            bound.bits / unit,
            layer=layer,
            interval=(low / unit, high / unit),
            n=count,
            details={
                "most": most,
                "mean_squared_distance": spread,
                **({"ceiling": True, "warning": alone} if at_ceiling else {}),
            },
        )
