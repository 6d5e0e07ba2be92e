"""Which labels an attacker recovers from a shared update."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, JsonValue

from gradaudit.audits._attack_intervals import CONFIDENCE, doubts
from gradaudit.audits._reconstruct_options import BatchOptions
from gradaudit.audits.base import Audit, Metric
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Variant, skipped

if TYPE_CHECKING:
    from torch import Tensor

    from gradaudit.attacks.reconstruction.campaign import Campaign
    from gradaudit.attacks.reconstruction.methods import Method
    from gradaudit.models.target import Subject, Target

_NO_TRUTH = "the update was captured, so there is no truth to score by; name it with --records"
_READING = 2.0
"""Gradient passes of making an update and reading the labels off it."""


class MembershipOptions(BatchOptions):
    """Options of the membership audit."""

    method: tuple[str, ...] = Field(
        (),
        description="dlg, idlg or another method that names labels; repeat to compare; without it: "
        "dlg, and idlg where it applies",
    )
    batches: int = Field(8, ge=1, description="updates to attack; --samples only lowers it")
    restarts: int = Field(1, ge=1, le=10_000, description="starting points of each attack")


class AttackMembership(Audit[MembershipOptions]):
    """Recover the labels behind an update: the membership attack of Fan et al. 2020.

    The distance is the share of a batch's labels that the attacker does not name: the paper's mean
    categorical distance between recovered and original labels, 0 where all are recovered. Labels
    are compared as lists, because an update does not order its records. The interval is over the
    attacked updates, whose labels are recovered together. Of several methods the headline is the
    one with the smallest distance.

    Source: L. Fan et al., "Rethinking privacy preserving deep learning: How to evaluate and thwart
    privacy attacks" (2020), section 4.1 and algorithm 5.
    """

    name = "attack membership"
    summary = (
        "Recover the labels behind an update (what Fan et al. 2020 call membership; whether a "
        "record was trained on is `attack tracing`, or an attribute for `vinfo`)."
    )
    metrics = (
        Metric(
            id="membership_distance",
            title="Share of the labels behind an update that an attacker does not recover",
            riskier="lower",
            per_layer=False,
            warning=0.1,
            why="an attacker reads the labels of the records off their shared update",
        ),
        Metric(
            id="labels_named",
            title="Labels that an attacker names for a captured update",
            per_layer=False,
        ),
    )
    headline = ()
    Options = MembershipOptions
    quick: ClassVar[Mapping[str, JsonValue]] = {"method": ["idlg"]}
    plain: ClassVar[Mapping[str, JsonValue]] = {"method": ["idlg"], "batches": 40}
    thorough: ClassVar[Mapping[str, JsonValue]] = {"batches": 40, "restarts": 4}

    def passes(self, subject: "Subject") -> float:
        """What the restarts on all batches cost at most; signs are read at no cost."""
        options = self.options
        methods = [m for m in self._methods().values() if not m.reads_labels]
        each = _READING + sum(m.steps(options.restarts) for m in methods)
        return each * options.batch_size * options.count(subject)

    def calls(self, subject: "Subject") -> float:
        """The steps on all batches; signs are read at no cost."""
        each = sum(m.calls() for m in self._methods().values() if not m.reads_labels)
        return (_READING + each) * self.options.count(subject)

    def run(self, subject: "Subject", progress: Progress) -> Iterator[Measurement]:
        """Attack; older checkpoints are the variants ``round``, methods the variants ``method``.

        Raises:
            NotApplicable: no method applies, or the labels are real numbers.
            UsageError: an option is wrong for these records.
            CheckpointError: a captured update is refused.
        """
        newest = len(subject.targets)
        for number, target in enumerate(subject.targets, start=1):
            if number == newest or self.options.every_round:
                label: Variant = {} if number == newest else {"round": number}
                yield from self._of_methods(self._campaign(subject, target), label, progress)

    def _methods(self) -> "dict[str, Method]":
        from gradaudit.attacks.reconstruction.methods import load_methods

        named = self.options.method
        return load_methods(named or ("dlg", "idlg"), self.options.flags(named=bool(named)))

    def _campaign(self, subject: "Subject", target: "Target") -> "Campaign":
        from gradaudit.attacks.reconstruction.campaign import Campaign, Choice
        from gradaudit.attacks.reconstruction.observing import Observer

        options = self.options
        observer = Observer(target, options.sharing(subject), subject.layers)
        batches = options.drawn(subject.samples)
        choice = Choice(options.batch_size, batches, options.records, options.update, options.rate)
        return Campaign.prepare(subject, choice, observer, options.restarts)

    def _of_methods(
        self, campaign: "Campaign", label: Variant, progress: Progress
    ) -> Iterator[Measurement]:
        methods = self._methods()
        rows: dict[str, Measurement] = {}
        reasons: dict[str, str] = {}
        for text, method in methods.items():
            try:
                rows[text] = self._row(text, method, campaign, progress)
            except NotApplicable as error:
                reasons[text] = str(error)
        if not rows:
            raise NotApplicable("; ".join(f"{text}: {why}" for text, why in reasons.items()))
        first = next(iter(rows.values()))
        if not campaign.scored:
            yield from skipped(self.reports_as(), ["membership_distance"], [None], _NO_TRUTH)
        worst = min(rows.values(), key=lambda row: row.value or 0.0) if campaign.scored else first
        yield worst.model_copy(update={"variant": label})
        for text, row in rows.items() if len(methods) > 1 else ():
            yield row.model_copy(update={"variant": {**label, "method": text}})
        for text, why in reasons.items():
            (row,) = skipped(self.reports_as(), [first.metric], [None], why)
            yield row.model_copy(update={"variant": {**label, "method": text}})

    def _row(
        self, text: str, method: "Method", campaign: "Campaign", progress: Progress
    ) -> Measurement:
        found = campaign.labels(method, progress)
        facts: dict[str, JsonValue] = {**campaign.facts, "method": text}
        if campaign.scored:
            return self._distance(campaign, [labels for labels, _ in found], facts)
        (labels, score), *_ = found
        named: JsonValue = None if labels is None else labels.tolist()
        return Measurement(
            audit=self.reports_as(),
            metric="labels_named",
            value=0.0 if labels is None else float(len(labels)),
            details={**facts, "labels": named, "attacker_score": score},
        )

    def _distance(
        self, campaign: "Campaign", found: "list[Tensor | None]", facts: dict[str, JsonValue]
    ) -> Measurement:
        import numpy as np

        from gradaudit.attacks.membership import categorical_distance
        from gradaudit.statistics.rates import clustered

        each = [
            categorical_distance(
                observed.labels.cpu().numpy(), None if labels is None else labels.cpu().numpy()
            )
            for observed, labels in zip(campaign.observed, found, strict=True)
        ]
        sizes = np.full(len(each), float(campaign.batch))
        value, interval = clustered(np.array(each), sizes, CONFIDENCE)
        return Measurement(
            audit=self.reports_as(),
            metric="membership_distance",
            value=value,
            interval=interval,
            confidence=CONFIDENCE,
            n=len(each) * campaign.batch,
            details={**facts, "updates": len(each), **doubts(len(each), "--batches")},
        )
