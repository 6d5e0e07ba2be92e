"""Measure how each layer's gradient reacts to input and label."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field, field_validator

from gradaudit.audits.base import Audit, AuditOptions, Metric, Question
from gradaudit.audits.presets import SAMPLED_LAYERS

_FEWEST_PROBES = 8


class SensitivityOptions(AuditOptions):
    """Options of the sensitivity audit."""

    probes: int | None = Field(
        None,
        ge=0,
        description="Number of random directions for the F norm and of columns for the "
        "1-norm, each estimate with an interval; 0 is exact, whatever it costs "
        "(by default exact where that is affordable, else 64, and the report "
        "says which).",
    )
    with_bias: bool = Field(False, description="Include the biases in a layer's gradient.")

    one_norm: bool = Field(
        True,
        description="Estimate the 1-norm too, from as many sampled columns as there are probes.",
    )

    @field_validator("probes")
    @classmethod
    def _enough(cls, probes: int | None) -> int | None:
        if probes is not None and 0 < probes < _FEWEST_PROBES:
            raise ValueError(
                f"{probes} probes give no interval; use {_FEWEST_PROBES} or more, or 0"
            )
        return probes


NormName = Literal["f", "1", "inf"]
Reacting = Literal["input", "label"]
_NORMS: tuple[NormName, ...] = ("f", "1", "inf")


class Quantile(NamedTuple):
    """A quantile over records that has limits in the default policy.

    Attributes:
        name: the end of its metrics' ids.
        share: of records below it.
        title: its name in words.
        records: those at or above it, in words.
        limits: on it, over those on the median.
    """

    name: str
    share: float
    title: str
    records: str
    limits: float


QUANTILES = (
    Quantile("median", 0.5, "Median", "every second record", 1.0),
    Quantile("decile", 0.9, "Upper decile", "one record in ten", 2.0),
)


@dataclass(frozen=True)
class JacobianNorm:
    """A norm of a Jacobian as a metric, either plain or divided by the range and ψ."""

    reacting: Reacting
    norm: NormName
    bounded: bool

    @property
    def metric(self) -> str:
        """The metric's id; for the label, the paper has only the norm over range and ψ."""
        suffix = "_bounded" if self.bounded and self.reacting == "input" else ""
        return f"{self.reacting}_{self.norm}{suffix}"

    @property
    def share(self) -> str:
        """The id of the metric that holds a layer's share in the sum of this one."""
        return f"{self.metric}_share"

    @property
    def quantiles(self) -> Mapping[str, Quantile]:
        """The quantiles over records, by metric id; only bounded F norms have any."""
        if self.norm != "f" or not self.bounded:
            return {}
        return {f"{self.metric}_{quantile.name}": quantile for quantile in QUANTILES}

    @property
    def metrics(self) -> tuple[str, ...]:
        """The ids of all metrics of this norm."""
        return self.metric, self.share, *self.quantiles

    @property
    def unit(self) -> str:
        """The unit of the metric's values."""
        return f"{'1' if self.bounded else 'gradient'}/{self.reacting}"


READINGS = (
    *(JacobianNorm("input", norm, bounded=False) for norm in _NORMS),
    *(JacobianNorm("input", norm, bounded=True) for norm in _NORMS),
    *(JacobianNorm("label", norm, bounded=True) for norm in _NORMS),
)


class _Reaction(NamedTuple):
    """The limits on one reading's median, their reason, and the meaning of a value beyond one.

    The records that it is about come after ``follows``.
    """

    warning: float
    error: float
    question: Question
    follows: str
    why: str


_REACTIONS: Mapping[Reacting, _Reaction] = {
    "input": _Reaction(
        1.0,
        10.0,
        "records",
        "follow",
        "moving the record by a length of one changes this layer's gradient by more than its "
        "whole range",
    ),
    "label": _Reaction(
        10.0,
        1000.0,
        "labels",
        "show the label of",
        "another label would change this layer's gradient by many times its range, as for "
        "confident predictions",
    ),
}
_MEANINGS: Mapping[NormName, tuple[str, str]] = {
    "f": ("root of the sum of squares of its Jacobian", "range and √elements"),
    "1": ("sum of absolute entries of its Jacobian", "range and elements"),
    "inf": ("largest absolute entry of its Jacobian", "range"),
}


def _metrics() -> Iterator[Metric]:
    for reading in READINGS:
        meaning, over = _MEANINGS[reading.norm]
        title = f"Sensitivity of the gradient to the {reading.reacting}: {meaning}"
        yield Metric(
            id=reading.metric,
            title=f"{title}, over {over}" if reading.bounded else title,
            unit=reading.unit,
            riskier="higher",
        )
        yield Metric(
            id=reading.share,
            title=f"The layer's share in the sum of all layers' {reading.metric}",
            riskier="higher",
        )
        for metric, quantile in reading.quantiles.items():
            yield _over_records(reading, metric, quantile)


def _over_records(reading: JacobianNorm, metric: str, quantile: Quantile) -> Metric:
    reaction = _REACTIONS[reading.reacting]
    return Metric(
        id=metric,
        title=f"{quantile.title} over records of {reading.metric}, the gradient's sensitivity to "
        f"the {reading.reacting}",
        unit=reading.unit,
        riskier="higher",
        counts="records",
        warning=reaction.warning * quantile.limits,
        error=reaction.error * quantile.limits,
        question=reaction.question,
        chance=0.0,
        finding=f"Gradients {reaction.follows} {quantile.records}.",
        asks=f"Do gradients {reaction.follows} {quantile.records}?",
        noun="sensitivity",
        why=f"for {quantile.records}, {reaction.why}",
        helps="larger batches (--deployment), or noise (--defense)",
    )


class Sensitivity(Audit[SensitivityOptions]):
    """Norms of ∂G_l/∂x and ∂G_l/∂y, with G_l the gradient of one record's loss by layer l.

    Input: J = ∂G_l/∂x; for tokens, x is the embedding's output. ``input_f``, ``input_1`` and
    ``input_inf`` are the F norm of J, the sum of its absolute entries and the largest one (Mo et
    al. 2022, "Quantifying and localizing usable information leakage from neural network gradients",
    eq. 7 and 8), in units of the gradient, so that they compare within one model and loss. Label:
    J = ∂G_l/∂y (Mo et al. 2021, "Layer-wise characterization of latent information leakage in
    federated learning", eq. 9 and 10). Cross-entropy is linear in a soft label, so column c of
    ∂G_l/∂y is the gradient of −log p_c; the others' is ∂²ℓ/∂W∂y.

    The label's numbers, and the input's that end in ``_bounded``, are ‖J‖_p / (ψ · range(G_l)),
    with range the largest minus the smallest element of G_l and ψ = √|W|, |W|, 1 for p = F, 1, ∞
    over the elements of G_l: they have no scale, and the limits stand on them. No Jacobian gives 0;
    a Jacobian without a range is undefined and left out, and the row counts how many were; a layer
    of one element has none ever.

    Without a suffix the value is the mean over the records that were looked at: without
    ``--samples`` 40, and 256 for the label where that takes seconds. As p_y → 1 the range vanishes
    and one record can carry the mean, and the row then says so: no interval holds such a mean over
    other records, so the row has none. What it is known to, for new records and new probes, stands
    in ``details.known_to``: a bootstrap-t interval in logarithms, which holds the mean of all
    records in 76 to 97 % of samples of 10 to 200 (docs/coverage.md). A share is a layer's mean over
    the sum of the shown layers' means (2021, fig. 8), with an interval of the same kind for the
    ratio, which redraws the records of all layers together.

    ``…_median`` and ``…_decile`` are the median and the upper decile over all records of the law
    that these are drawn from, of the bounded F norms, with exact intervals from order statistics,
    which hold for any law and any number of records. It takes 6 records to bound the median from
    above and 36 to bound the decile, or 7 and 38 with probes; of fewer the upper end is the largest
    finite number, shown as infinite, so that a limit on them is shown or left undecided.

    Everything is exact unless ``--probes`` says otherwise or more than 2e11 multiply-adds of
    forward passes would be needed; a row that is estimated says so in ``method`` and gives the
    estimate's own interval.

    Limits stand on the median and the decile. The bounded F numbers are root mean squares over the
    elements of G_l, in units of its range, for a step of length one. From an input number of 1 on,
    such a step exchanges the whole gradient. Another label is a step of length √2 and does so in
    any network, so the label's limits are set where 1 − p_y comes to about a tenth and a
    thousandth. Of 64 records (sample models; six of the zoo's, fresh and after 100 to 5,000 steps
    of Adam on digits and diabetes) medians of fresh networks are 0.001–2.3 for the input and
    0.1–0.9 for the label, of networks that generalise 0.01–4.5 and 0.1–200, and of networks that
    know their records by heart up to 8 and 10⁸. The decile is 1.0–1.6 times the median in most
    layers, and up to thousands of times for the label; its limits are twice the median's. With them
    233 of 236 rows have the level that limits of 1 and 10, 10 and 1,000 on the mean gave. Shares
    compare layers and have no limit.
    """

    name = "sensitivity"
    summary = "Measure how each layer's gradient reacts to input and label."
    paper = "https://arxiv.org/abs/2105.13929"
    metrics = tuple(_metrics())
    headline = (
        "input_f_bounded_median",
        "input_f_bounded_decile",
        "label_f_median",
        "label_f_decile",
    )
    proxy = True
    Options = SensitivityOptions
    one_thread = True
    priority = 30
    least: ClassVar = {
        "probes": 8,
        "single": True,
        "samples": 1,
        "one_norm": False,
        "layers": SAMPLED_LAYERS,
    }
    quick: ClassVar = {"probes": 16}
    thorough: ClassVar = {"probes": 0}
