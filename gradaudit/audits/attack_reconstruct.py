"""What records an attacker rebuilds from a shared update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import JsonValue

from gradaudit.audits._reconstruct_options import AUTOMATIC, ReconstructOptions
from gradaudit.audits._reconstruct_rows import Result, attack_facts, skipped_rows
from gradaudit.audits.base import Audit, Metric
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Variant

if TYPE_CHECKING:
    from gradaudit.attacks.reconstruction.campaign import Campaign
    from gradaudit.attacks.reconstruction.methods import Method
    from gradaudit.models.target import Subject, Target


class AttackReconstruct(Audit[ReconstructOptions]):
    """Rebuild the records of a batch from its update, and score the attacker's answer.

    Every method runs from several starting points and hands in the one that explains the update
    best by its own measure; the truth scores that answer and never chooses it. An update does not
    order its records, so each original is compared with the record that an optimal assignment
    gives it, and labels are compared as lists. The value is the mean over attacked batches, its
    interval Student's over them; what the restarts did stands in the details.

    Scores: MSE; relative error ‖x̂ − x‖/‖x‖ (Fan et al. 2020, section 4.1); PSNR with data range 1;
    SSIM with a Gaussian window of 11 and σ = 1.5 (Wang et al. 2004; Mo et al. 2022, section V-A).
    Reconstructions are brought into the range that the attacker knows before they are scored. A
    relative error of 0.1 cannot be told from the original by eye; 0.5 still shows what it is; a
    blank record has 1. Of several methods the headline of each metric is the one that came closest,
    and says which in its details.
    """

    name = "attack reconstruct"
    summary = "Rebuild records from their shared update."
    metrics = (
        Metric(
            id="relative_error",
            title="Distance of the reconstruction from the record, over the record's length",
            riskier="lower",
            per_layer=False,
            warning=0.5,
            error=0.1,
            why="an attacker rebuilt records from their shared update so closely that the "
            "originals can be recognised",
        ),
        Metric(id="mse", title="Mean squared error", riskier="lower", per_layer=False),
        Metric(
            id="psnr",
            title="Peak signal-to-noise ratio of the reconstruction",
            unit="dB",
            riskier="higher",
            per_layer=False,
        ),
        Metric(
            id="ssim",
            title="Structural similarity of the reconstruction",
            riskier="higher",
            per_layer=False,
        ),
        Metric(
            id="label_accuracy",
            title="Share of the batch's labels that the attacker names",
            riskier="higher",
            per_layer=False,
        ),
        Metric(
            id="attacker_score",
            title="How badly the answer explains the update, by the attacker's own measure",
            per_layer=False,
        ),
    )
    headline = ("relative_error",)
    Options = ReconstructOptions
    quick: ClassVar[Mapping[str, JsonValue]] = {"iterations": 5, "restarts": 2, "batches": 1}
    plain: ClassVar[Mapping[str, JsonValue]] = {"restarts": 2}
    thorough: ClassVar[Mapping[str, JsonValue]] = {
        "method": ["closed-form", "idlg", "dlg", "inverting-gradients"],
        "restarts": 8,
        "batches": 4,
    }

    def passes(self, subject: Subject) -> float:
        """What all restarts of all methods on all batches cost at most."""
        options = self.options
        methods = self._methods().values()
        steps = sum(m.steps(options.restarts if m.restarts else 1) for m in methods)
        return steps * options.batch_size * options.count(subject)

    def calls(self, subject: Subject) -> float:
        """The steps of all methods on all batches."""
        return sum(m.calls() for m in self._methods().values()) * self.options.count(subject)

    def run(self, subject: Subject, progress: Progress) -> Iterator[Measurement]:
        """Attack; older checkpoints are the variants ``round``, methods the variants ``method``.

        Raises:
            NotApplicable: no method applies.
            UsageError: an option is wrong for these records, or no method takes it.
            CheckpointError: a captured update is refused.
        """
        from gradaudit.attacks.reconstruction.pictures import expect_folder

        options = self.options
        if options.save_examples is not None:
            expect_folder(options.save_examples)
        methods = self._methods()
        newest = len(subject.targets)
        for number, target in enumerate(subject.targets, start=1):
            if number == newest or options.every_round:
                label: Variant = {} if number == newest else {"round": number}
                campaign = self._campaign(subject, target)
                yield from self._of_methods(methods, campaign, label, progress)

    def _methods(self) -> dict[str, Method]:
        from gradaudit.attacks.reconstruction import reconstructions
        from gradaudit.attacks.reconstruction.methods import load_methods

        named = self.options.method
        automatic = [name for name in AUTOMATIC if name in reconstructions()]
        return load_methods(named or automatic, self.options.flags(named=bool(named)))

    def _campaign(self, subject: Subject, target: Target) -> Campaign:
        from gradaudit.attacks.reconstruction.campaign import Campaign, Choice
        from gradaudit.attacks.reconstruction.initial import read_start
        from gradaudit.attacks.reconstruction.observing import Observer

        options = self.options
        start = None if options.start is None else read_start(options.start)
        sharing = options.sharing(subject)
        observer = Observer(target, sharing, subject.layers, options.known_labels, start)
        batches = options.drawn(subject.samples)
        choice = Choice(options.batch_size, batches, options.records, options.update, options.rate)
        return Campaign.prepare(subject, choice, observer, options.restarts)

    def _of_methods(
        self,
        methods: Mapping[str, Method],
        campaign: Campaign,
        label: Variant,
        progress: Progress,
    ) -> Iterator[Measurement]:
        audit = self.reports_as()
        results: list[Result] = []
        reasons: dict[str, str] = {}
        for text, method in methods.items():
            try:
                attempts = campaign.play(method, progress)
            except NotApplicable as error:
                reasons[text] = str(error)
                continue
            if self.options.save_examples is not None:
                campaign.draw(self.options.save_examples, text, attempts)
            facts = {**campaign.facts, "method": text, "attack": attack_facts(attempts)}
            if noise := campaign.noise(attempts):
                facts["noise"] = noise
            results.append(Result(text, attempts, campaign.batch, self.options.success, facts))
        if not results:
            listed = "; ".join(f"{text}: {why}" for text, why in reasons.items())
            raise NotApplicable(listed if len(methods) > 1 else next(iter(reasons.values())))
        rows = [list(result.rows(audit, {})) for result in results]
        prospects = {"layer_by_layer": campaign.prospects()}
        for same in zip(*rows, strict=True):
            row = self._headline(same)
            details = {**row.details, **(prospects if row.metric in self.headline else {})}
            yield row.model_copy(update={"variant": label, "details": details})
        if len(methods) > 1:
            for result, of_method in zip(results, rows, strict=True):
                for row in of_method:
                    variant: Variant = {**label, "method": result.method}
                    yield row.model_copy(update={"variant": variant})
        for text, why in reasons.items():
            yield from skipped_rows(audit, {**label, "method": text}, why)

    def _headline(self, rows: Sequence[Measurement]) -> Measurement:
        """Of one metric, the method that came closest; its name stands in the details."""
        measured = [row for row in rows if row.number is not None]
        (metric,) = [metric for metric in self.metrics if metric.id == rows[0].metric]
        if not measured or metric.riskier is None:
            return (measured or list(rows))[0]
        sign = 1 if metric.riskier == "higher" else -1
        return max(measured, key=lambda row: sign * (row.number or 0.0))
