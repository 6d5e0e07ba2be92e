"""How strongly each layer's gradient reacts to the input and to the label."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypedDict

from pydantic import Field, field_validator

from gradaudit.audits.base import Audit, AuditOptions, Metric, Question

_FEWEST_PROBES = 8


class SensitivityOptions(AuditOptions):
    """Options of the sensitivity audit."""

    probes: int | None = Field(
        None,
        ge=0,
        description="estimate the F norm from so many random directions and the 1-norm from so "
        "many columns, each estimate with an interval; 0: exact, whatever it costs; without it: "
        "exact where that is affordable, else 64, and the report says which",
    )
    with_bias: bool = Field(False, description="count biases among a layer's gradient")

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


@dataclass(frozen=True)
class JacobianNorm:
    """What a metric is of: a norm of a Jacobian, as it is or over range and ψ."""

    reacting: Reacting
    norm: NormName
    bounded: bool

    @property
    def metric(self) -> str:
        """Its id; the paper has the label's only over range and ψ."""
        suffix = "_bounded" if self.bounded and self.reacting == "input" else ""
        return f"{self.reacting}_{self.norm}{suffix}"

    @property
    def share(self) -> str:
        """Id of the metric of a layer's share in it."""
        return f"{self.metric}_share"

    @property
    def unit(self) -> str:
        """Of its values."""
        return f"{'1' if self.bounded else 'gradient'}/{self.reacting}"


READINGS = (
    *(JacobianNorm("input", norm, bounded=False) for norm in _NORMS),
    *(JacobianNorm("input", norm, bounded=True) for norm in _NORMS),
    *(JacobianNorm("label", norm, bounded=True) for norm in _NORMS),
)


class _Limits(TypedDict, total=False):
    warning: float
    error: float
    why: str
    question: Question
    chance: float
    says: str
    helps: str


_LIMITS: Mapping[str, _Limits] = {
    "input_f_bounded": {
        "warning": 1.0,
        "error": 10.0,
        "why": "moving a record by a length of one moves the elements of this layer's gradient by "
        "more than their whole range: the gradient follows its record closely",
        "question": "records",
        "chance": 0.0,
        "says": "the gradient of {where} reacts strongly to its record",
        "helps": "larger batches, or noise (--defense)",
    },
    "label_f": {
        "warning": 10.0,
        "error": 1000.0,
        "why": "another label would move this layer's gradient by many times its range, as it does "
        "for records that the model is sure of: the gradient tells the label",
        "question": "labels",
        "chance": 0.0,
        "says": "the gradient of {where} reacts strongly to the label",
        "helps": "larger batches, or noise (--defense)",
    },
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
            counts="records",
            **_LIMITS.get(reading.metric, {}),
        )
        yield Metric(
            id=reading.share,
            title=f"The layer's share in the sum of all layers' {reading.metric}",
            riskier="higher",
            relative=True,
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

    The value is the mean over records: without ``--samples`` 32, and 256 for the label where that
    takes seconds. Beside it stands the median: as p_y → 1 the range vanishes and one record can
    carry the mean, and the row then says so. The interval is a bootstrap-t over records in
    logarithms, and takes in the error of probes where there are any; where few records carry the
    mean no interval covers it, and the row is marked as imprecise with about how many would. A
    share is a layer's mean over the sum of the shown layers' means (2021, fig. 8).

    Everything is exact unless ``--probes`` says otherwise or more than 2e11 multiply-adds of
    forward passes would be needed; a row that is estimated says so in ``method`` and gives the
    estimate's own interval.

    Limits: the bounded F numbers are root mean squares over the elements of G_l, in units of its
    range, for a step of length one. Fresh networks on inputs in [0, 1] come to 0.05–0.6 for input
    and label alike, networks that generalise to 0.03–2 and 0.2–50, and networks that know their
    records by heart to 5 and, as 1 − p_y is what is left of the range, to more than 10⁵. From an
    input number of 1 on, a step of length one exchanges the whole gradient. Another label is a step
    of length √2 and does so in any network, so the label's limits are set where 1 − p_y comes to
    about a tenth and a thousandth. Shares compare layers and have no limit.
    """

    name = "sensitivity"
    summary = "How strongly each layer's gradient reacts to the input and to the label."
    question = "Does a layer's gradient react to the input, and to the label?"
    paper = "https://arxiv.org/abs/2105.13929"
    metrics = tuple(_metrics())
    headline = ("input_f_bounded", "label_f")
    proxy = True
    Options = SensitivityOptions
    one_thread = True
    priority = 30
    least: ClassVar = {"probes": 8, "samples": 2, "single": True}
    rough: ClassVar = {"probes": 8, "samples": 4}
    quick: ClassVar = {"probes": 16}
    thorough: ClassVar = {"probes": 0}
