"""Information about the input in each layer's activations."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, JsonValue

from gradaudit.audits._defended import defenses_note
from gradaudit.audits.base import Audit, AuditOptions, Metric
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Status, Variant

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gradaudit.target import Subject, Target

_RECORDS = 1000
_FEWEST = 3
_BYTES_A_PAIR = 16
_CONFIDENCE = 0.95
_CEILING = 0.99
"""Share of log2 N from which records are too few to tell more: one in a hundred bits is left."""
_UNDEFENDED = "none applied: activations are not shared, and the weights are taken as they are"
_UNSEEN = "no call was seen that applies its parameters to records"
_NOT_FINITE = "its activations are not finite; look at the weights and the inputs"
_PASSES_A_RECORD = 0.5


class ForwardOptions(AuditOptions):
    """Options of the forward audit."""

    sigma2: float = Field(
        0.1,
        gt=0,
        allow_inf_nan=False,
        description="variance of the noise through which activations are seen, in squared units "
        "of the activations",
    )


class Forward(Audit[ForwardOptions]):
    """Information about which record went in, in a layer's activations plus noise, in bits.

    −1/N Σ_i log2(1/N Σ_j exp(−‖t_i − t_j‖²/(2ασ²))) over N records' activations t (the output of
    the layer's module, flattened): an upper bound for α = 1, a lower one for α = 4 (Mo et al. 2021,
    "Layer-wise characterization of latent information leakage in federated learning", appendix
    9.1, where the text lost the exponential; Kolchinsky and Tracey 2017). Without noise,
    activations that all differ would hold log2 N bits, whatever they are; σ² says how near counts
    as the same. ``fraction`` is the upper bound over log2 N.

    The interval is the jackknife's, over records: what as many other records would give. Both
    bounds grow with N, up to log2 N, so numbers compare at one N and one σ².

    Near log2 N every record lies alone: the number is its ceiling, whatever the layer, and says
    only that more could be there. Such rows are marked (``ceiling``) and are imprecise.

    Activations are not shared in federated training; like the paper, this tells how much of the
    record is left at a layer, and stands for what its gradient could hold only where the weights
    know nothing of the record. There is therefore no limit on it.

    A layer that is used several times counts with all its outputs side by side. In training mode
    with batch norm or dropout a record has no activations of its own, and the audit does not apply.
    """

    name = "forward"
    summary = "Information about the input in each layer's activations, by kernel density."
    metrics = (
        Metric(
            id="information_upper",
            title="Information about the record in the activations plus noise, at most",
            unit="bit",
            riskier="higher",
        ),
        Metric(
            id="information_lower",
            title="Information about the record in the activations plus noise, at least",
            unit="bit",
            riskier="higher",
        ),
        Metric(
            id="fraction",
            title="The upper bound as a fraction of log2 of the number of records",
            riskier="higher",
        ),
    )
    headline = ("fraction",)
    proxy = True
    Options = ForwardOptions
    quick: ClassVar[Mapping[str, JsonValue]] = {}
    thorough: ClassVar[Mapping[str, JsonValue]] = {}

    def passes(self, subject: "Subject") -> float:
        """Forward passes in double precision."""
        records = min(subject.samples or _RECORDS, len(subject.records))
        return _PASSES_A_RECORD * records * len(subject.targets)

    def run(self, subject: "Subject", progress: Progress) -> Iterator[Measurement]:
        """Rows of every shown layer; older checkpoints are the variants ``round``.

        Raises:
            NotApplicable: too few or too many records, or they have no activations of their own.
            AuditError: the model cannot be run on the records.
        """
        records = len(subject.sample(_RECORDS))
        _expect_comparable(records, subject.memory)
        newest = len(subject.targets)
        for number, target in enumerate(subject.targets, start=1):
            variant: Variant = {} if number == newest else {"round": number}
            yield from self._of_target(target, variant, subject, progress)

    def _of_target(
        self, target: "Target", variant: Variant, subject: "Subject", progress: Progress
    ) -> Iterator[Measurement]:
        from gradaudit.blocks import column_blocks
        from gradaudit.information.activations import Activations
        from gradaudit.information.kernel import Pairs

        records = subject.sample(_RECORDS)
        activations = Activations.of(
            target, subject.layers, records.inputs, records.labels, subject.memory
        )
        widths = activations.widths
        for layer in subject.layers:
            if layer.name not in widths:
                yield from self._without(layer.name, variant, "skipped", _UNSEEN)
        notes = defenses_note(subject, _UNDEFENDED)
        pairs = Pairs(len(records))
        blocks = column_blocks(activations.stream, widths, len(records), subject.memory // 2)
        with progress.task("forward", len(widths)) as advance:
            for piece, block in blocks:
                pairs.add(block)
                if piece.stop == widths[piece.layer]:
                    distances = pairs.squared_distances()
                    facts: dict[str, JsonValue] = {"elements": piece.stop, **notes}
                    yield from self._measured(piece.layer, variant, distances, facts)
                    pairs = Pairs(len(records))
                    advance(1)

    def _measured(
        self,
        layer: str,
        variant: Variant,
        distances: "NDArray[np.float64]",
        notes: Mapping[str, JsonValue],
    ) -> Iterator[Measurement]:
        import numpy as np

        from gradaudit.information.kernel import LOWER, UPPER, information

        if not np.isfinite(distances).all():
            yield from self._without(layer, variant, "failed", _NOT_FINITE)
            return
        upper, lower = (information(distances, self.options.sigma2, a) for a in (UPPER, LOWER))
        count = len(distances)
        most = math.log2(count)
        facts: dict[str, JsonValue] = {
            "sigma2": self.options.sigma2,
            **notes,
            "most": most,
            "mean_squared_distance": float(distances.sum() / (count * (count - 1))),
        }
        for metric, bound, unit in (
            ("information_upper", upper, 1.0),
            ("information_lower", lower, 1.0),
            ("fraction", upper, most),
        ):
            low, high = bound.interval
            yield Measurement(
                audit=self.name,
                metric=metric,
                layer=layer,
                variant=variant,
                value=bound.bits / unit,
                interval=(low / unit, high / unit),
                confidence=_CONFIDENCE,
                unit="" if metric == "fraction" else "bit",
                n=count,
                details=facts | _ceiling(bound.bits, count, self.options.sigma2),
            )

    def _without(
        self, layer: str, variant: Variant, status: Status, reason: str
    ) -> Iterator[Measurement]:
        for metric in self.metrics:
            yield Measurement(
                audit=self.name,
                metric=metric.id,
                layer=layer,
                variant=variant,
                status=status,
                reason=reason,
            )


def _ceiling(bits: float, records: int, sigma2: float) -> dict[str, JsonValue]:
    """What to say of a bound that the number of records sets."""
    if bits < _CEILING * math.log2(records):
        return {}
    because = (
        f"all {records:,} records lie apart at a noise of {sigma2:g}: the number is its ceiling, "
        f"log2 {records:,}; look at more records (--samples) or through more noise (--sigma2)"
    )
    return {"ceiling": True, "imprecise": True, "imprecise_because": because}


def _expect_comparable(records: int, memory: int) -> None:
    """Raise where there is nothing to compare, or too much to hold.

    Raises:
        NotApplicable: with the number of records that would do.
    """
    most = math.isqrt(memory // _BYTES_A_PAIR)
    if records < _FEWEST:
        raise NotApplicable(
            f"{records} records cannot be told apart by much; look at {_FEWEST} or more "
            "(--samples, or more data)"
        )
    if records > most:
        raise NotApplicable(
            f"the distances between all pairs of {records:,} records do not fit into memory; "
            f"look at {most:,} or fewer (--samples)"
        )
