"""How strongly each layer's gradient reacts to the input and to the label."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, TypedDict

from pydantic import Field, JsonValue, field_validator

from gradaudit.audits._defended import defenses_note
from gradaudit.audits._sensitivity_rows import READINGS, NormName, Reacting, Reading, Rows
from gradaudit.audits.base import Audit, AuditOptions, Metric
from gradaudit.errors import AuditError, GradauditError, NotApplicable
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Variant

if TYPE_CHECKING:
    from gradaudit.gradients.differentiation import Variable
    from gradaudit.gradients.sensitivity import Observed
    from gradaudit.models.target import Subject, Target

_RECORDS = 32
_LABEL_RECORDS = 256
_CHEAP = 1e10
"""Multiply-adds of forward passes that more records for the label may take; some seconds."""
_FEWEST_PROBES = 8
_PASSES_A_DIRECTION = 0.3
_UNDEFENDED = "none applied: these are gradients of single records, not what is shared"


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


class _Limits(TypedDict, total=False):
    warning: float
    error: float
    why: str


_LIMITS: Mapping[str, _Limits] = {
    "input_f_bounded": {
        "warning": 1.0,
        "error": 10.0,
        "why": "moving a record by a length of one moves the elements of this layer's gradient by "
        "more than their whole range: the gradient follows its record closely",
    },
    "label_f": {
        "warning": 10.0,
        "error": 1000.0,
        "why": "another label would move this layer's gradient by many times its range, as it does "
        "for records that the model is sure of: the gradient tells the label",
    },
}
_MEANINGS: Mapping[NormName, tuple[str, str]] = {
    "f": ("root of the sum of squares of its Jacobian", "range and √elements"),
    "1": ("sum of absolute entries of its Jacobian", "range and elements"),
    "inf": ("largest absolute entry of its Jacobian", "range"),
}


def _title(reading: Reading) -> str:
    meaning, over = _MEANINGS[reading.norm]
    title = f"Sensitivity of the gradient to the {reading.reacting}: {meaning}"
    return f"{title}, over {over}" if reading.bounded else title


def _metrics() -> Iterator[Metric]:
    for reading in READINGS:
        yield Metric(
            id=reading.metric,
            title=_title(reading),
            unit=reading.unit,
            riskier="higher",
            counts="records",
            **_LIMITS.get(reading.metric, {}),
        )
        yield Metric(
            id=f"{reading.metric}_share",
            title=f"The layer's share in the sum of all layers' {reading.metric}",
            riskier="higher",
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
    metrics = tuple(_metrics())
    headline = ("input_f_bounded", "label_f")
    proxy = True
    Options = SensitivityOptions
    quick: ClassVar[Mapping[str, JsonValue]] = {"probes": 16}
    thorough: ClassVar[Mapping[str, JsonValue]] = {"probes": 0}

    def passes(self, subject: "Subject") -> float:
        """A direction costs a fraction of a pass, records and directions being batched."""
        columns = subject.records.inputs[0].numel()
        directions = min(columns, 2 * self.options.probes) if self.options.probes else columns
        records = min(subject.samples or _RECORDS, len(subject.records))
        return _PASSES_A_DIRECTION * directions * records * len(subject.targets)

    def run(self, subject: "Subject", progress: Progress) -> Iterable[Measurement]:
        """Rows of every shown layer; older checkpoints are the variants ``round``.

        Raises:
            AuditError: the model cannot be run on the records.
            NotApplicable: it cannot be run on one record alone.
        """
        newest = len(subject.targets)
        for number, target in enumerate(subject.targets, start=1):
            variant: Variant = {} if number == newest else {"round": number}
            yield from self._of_target(target, variant, subject, progress)

    def _of_target(
        self, target: "Target", variant: Variant, subject: "Subject", progress: Progress
    ) -> Iterator[Measurement]:
        from gradaudit.gradients.sensitivity import Observed
        from gradaudit.models.target import layers_of

        shown = {layer.name for layer in subject.layers}
        layers = layers_of(target.model, with_bias=self.options.with_bias)
        layers = tuple(layer for layer in layers if layer.name in shown)
        observed = Observed.of(target, layers, subject.sample(_RECORDS), subject.seed)
        yield from self._reacting("input", observed, variant, subject, progress)
        records = subject.sample(_label_records(observed))
        if len(records) > len(observed.inputs):
            observed = Observed.of(target, layers, records, subject.seed)
        yield from self._reacting("label", observed, variant, subject, progress)

    def _reacting(
        self,
        reacting: Reacting,
        observed: "Observed",
        variant: Variant,
        subject: "Subject",
        progress: Progress,
    ) -> Iterator[Measurement]:
        sizes = {layer.name: layer.parameters for layer in observed.layers}
        facts = _facts(observed) | defenses_note(subject, _UNDEFENDED)
        rows = Rows(self.name, sizes, variant, subject.seed, facts)
        try:
            measured = observed.measure(
                _VARIABLES[reacting],
                self.options.probes,
                seed=subject.seed,
                memory=subject.memory,
                progress=progress,
            )
        except NotApplicable as why:
            yield from rows.without(reacting, "skipped", str(why))
        except AuditError as fault:
            yield from rows.without(reacting, "failed", str(fault))
        else:
            yield from rows.of(reacting, measured)


_VARIABLES: Mapping[Reacting, "Variable"] = {"input": "point", "label": "target"}


def _label_records(observed: "Observed") -> int:
    """How many records to look at for the label, where nobody says it."""
    try:
        cheap = observed.within(_CHEAP, "target")
    except GradauditError:  # the rows will say it
        return _RECORDS
    return min(_LABEL_RECORDS, max(_RECORDS, cheap))


def _facts(observed: "Observed") -> dict[str, JsonValue]:
    """What every row of a target says."""
    facts: dict[str, JsonValue] = {"records": len(observed.inputs)}
    if observed.confident is not None:
        facts["confident_share"] = observed.confident
    if observed.coupling is not None:
        facts["coupling"] = f"{observed.coupling}; here each record is a batch of its own"
    return facts
