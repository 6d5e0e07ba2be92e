"""What records an attacker rebuilds from a shared update."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import JsonValue

from gradaudit.audits._reconstruct_options import AUTOMATIC, ReconstructOptions
from gradaudit.audits._reconstruct_rows import Result, skipped_rows
from gradaudit.audits.base import Audit, Metric
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Variant

if TYPE_CHECKING:
    from gradaudit.attacks.reconstruction.campaign import Campaign
    from gradaudit.attacks.reconstruction.methods import Method
    from gradaudit.target import Subject


class AttackReconstruct(Audit[ReconstructOptions]):
    """Rebuild the records of a batch from its update, and score the attacker's answer.

    Every method runs from several starting points and hands in the one that explains the update
    best by its own measure; the truth scores that answer and never chooses it. An update does not
    order its records, so each original is compared with the record that an optimal assignment
    gives it, and labels are compared as lists. The value is the mean over attacked batches, its
    interval Student's over them; what the restarts did stands in the details. Of several methods
    the headline is the one whose answers come closest.

    Scores: MSE; relative error ‖x̂ − x‖/‖x‖ (Fan et al. 2020, section 4.1); PSNR with data range 1;
    SSIM with a Gaussian window of 11 and σ = 1.5 (Wang et al. 2004; Mo et al. 2022, section V-A).
    Reconstructions are brought into the range that the attacker knows before they are scored. A
    relative error of 0.1 cannot be told from the original by eye; 0.5 still shows what it is; a
    blank record has 1.
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
            title="How far the answer's update is from the shared one, by the attacker's measure",
            per_layer=False,
        ),
    )
    headline = ("relative_error",)
    Options = ReconstructOptions
    quick: ClassVar[Mapping[str, JsonValue]] = {"iterations": 20, "restarts": 2, "batches": 1}
    thorough: ClassVar[Mapping[str, JsonValue]] = {
        "method": ["closed-form", "idlg", "dlg", "inverting-gradients"],
        "restarts": 8,
        "batches": 4,
    }

    def passes(self, subject: "Subject") -> float:
        """What all restarts of all methods on all batches cost at most."""
        from gradaudit.attacks.reconstruction.methods import load_methods

        options = self.options
        methods = load_methods(options.method or AUTOMATIC, options.flags())
        each = sum(m.steps(options.restarts if m.restarts else 1) for m in methods.values())
        rounds = len(subject.targets) if options.every_round else 1
        batches = max((subject.samples or 0) // options.batch_size, 1)
        count = batches if subject.samples else options.batches
        return each * rounds * options.batch_size * (1 if options.update else count)

    def run(self, subject: "Subject", progress: Progress) -> Iterator[Measurement]:
        """Attack; older checkpoints are the variants ``round``, methods the variants ``method``.

        Raises:
            NotApplicable: no method applies.
            UsageError: an option is wrong for these records, or no method takes it.
            CheckpointError: a captured update is refused.
        """
        from gradaudit.attacks.reconstruction.campaign import Campaign
        from gradaudit.attacks.reconstruction.methods import load_methods

        options = self.options
        methods = load_methods(options.method or AUTOMATIC, options.flags())
        newest = len(subject.targets)
        for number, target in enumerate(subject.targets, start=1):
            if number < newest and not options.every_round:
                continue
            label: Variant = {} if number == newest else {"round": number}
            campaign = Campaign.prepare(subject, target, options)
            yield from self._of_methods(methods, campaign, label, progress)

    def _of_methods(
        self,
        methods: "Mapping[str, Method]",
        campaign: "Campaign",
        label: Variant,
        progress: Progress,
    ) -> Iterator[Measurement]:
        audit = self.reports_as()
        results: list[Result] = []
        reasons: dict[str, str] = {}
        for text, method in methods.items():
            try:
                attempts = campaign.play(text, method, progress)
            except NotApplicable as error:
                reasons[text] = str(error)
                continue
            facts = {**campaign.facts, "method": text, "attack": attempts[0].candidates.details}
            results.append(Result(text, attempts, campaign.batch, self.options.success, facts))
        if not results:
            told = "; ".join(f"{text}: {why}" for text, why in reasons.items())
            raise NotApplicable(told if len(methods) > 1 else next(iter(reasons.values())))
        worst = min(results, key=lambda result: result.harm)
        several = len(methods) > 1
        yield from worst.rows(audit, label)
        for result in results if several else ():
            yield from result.rows(audit, {**label, "method": result.method})
        for text, why in reasons.items():
            yield from skipped_rows(audit, {**label, "method": text}, why)
