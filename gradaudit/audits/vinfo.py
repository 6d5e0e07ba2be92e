"""Usable information about a private attribute in each layer's gradient."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import JsonValue

from gradaudit.audits._vinfo_cases import (
    ENOUGH_TO_KEEP,
    MEMBER,
    RECORDS,
    why_no_correlation,
)
from gradaudit.audits._vinfo_latent import latent_rows
from gradaudit.audits._vinfo_layer_sets import METRICS as ORIGINAL
from gradaudit.audits._vinfo_options import VinfoOptions
from gradaudit.audits._vinfo_original import original_passes, original_rows
from gradaudit.audits._vinfo_rows import AUDIT, METRICS
from gradaudit.audits.base import Audit, Metric
from gradaudit.progress import Progress
from gradaudit.report import Measurement, skipped
from gradaudit.sharing.options import parse_reduction

if TYPE_CHECKING:
    from gradaudit.models.target import Subject

_TOGETHER = 8


class Vinfo(Audit[VinfoOptions]):
    """V-information from a layer's gradient G_l to a private attribute P, in nats.

    I_V(G_l → P) = E[−log f[∅](p)] − min over f in V of E[−log f[g](p)] (Mo et al. 2021, "Layer-wise
    characterization of latent information leakage in federated learning", eq. 7; Mo et al. 2022,
    "Quantifying and localizing usable information leakage from neural network gradients", eq. 1;
    Xu et al. 2020). g is the gradient of a batch of records that share a value of P, V a random
    forest, a small network, logistic regression and the prior itself, f[∅] the uniform prior.

    Each repetition deals the records (users with all theirs) into a score set of 30 % and three
    folds before any batch is drawn. In turns each fold chooses: members are fitted on the two
    others, and what they say of this one calibrates a family and chooses among families. The
    members of the chosen one then say the mean of their probabilities of the score set. So no
    record fits and chooses in the same turn, and all of the adversary's do both.

    The value is the mean over repetitions, or 0 where that is negative; the interval is that for
    another sample of as many records (Nadeau and Bengio 2003), from the untruncated repetitions,
    with an upper end of at least 0. It covers new records, batches and fits, not another training
    of the model. ``interval_over_repetitions`` is Student's, of these records alone, which the
    repetitions share. Below 20 batches of the rarest value without a common record (or user) the
    row is ``imprecise``.

    What is estimated is what an adversary learns who has as many records, less than what the
    gradient holds: a small number is no proof. ``learning_curve`` is the value with a third of the
    adversary's batches, two thirds and all; ``bias_at_least`` is how far the value lies from a line
    in one over the share, ``bias_estimate`` from the limit by the law of linear discriminants,
    null where the curve does not bend yet.

    Beside each row stands the same with the attribute permuted among records (users keep their
    records and swap values), in half as many repetitions, as the variant ``attribute_permuted``:
    it is what nothing looks like. ``vinfo_fraction`` divides by the entropy
    of the prior; ``auroc`` is of the family that ranks best. Of several attributes, each is a
    variant and the headline is the worst. Without one, membership is the attribute where the data
    set tells it.

    ``correlation`` holds Pearson's r between the layers' information and the AUROC of an attack of
    other records, seed and classifier (2021, table 1), pooled over attributes and checkpoints, with
    t and p, and Spearman's, as information is flat near an AUROC of one half; from five points on.
    Layers of one case are not independent, so the pooled interval, t and p are a jackknife's over
    cases. A third of the records is the attack's: from 3,000 on, or where it is asked for.

    With ``--original``: how often reconstructions of the records succeed (2022, eq. 4-6). Of R
    restarts of an attack on a record's update, s come to an SSIM of τ: f[g] = (s + 1/2)/(R +
    1); f[∅] is the same of many random reconstructions (noise as attacks start from, blank
    pictures), their success rate taken for R rounds. ``original_vinfo`` is the mean over
    records of ln f[g] − ln f[∅], both of the best member by the truth, 0 where guessing is
    best, and at most ln((R + 1/2)/(1/2)); ``original_success`` is that member's share of
    successful restarts, all of them counted. Rows of single layers, of sets of consecutive ones
    (variant ``layers``), at every τ (variant ``threshold``). The intervals are a bootstrap over
    updates; for other restarts on the same records the success rate has
    ``interval_of_these_records``. ``permuted`` compares reconstructions with other records. It
    shows what these attacks do with so few steps, not what an update holds.

    Limits: of a value that is one of two, 0.1 nats are what an attack with an AUROC of about 0.75
    has, and 0.35, half of all there is, one of about 0.9. With 8 repetitions and batches of 16, of
    70 simulations each (by which 0.75 was taken among 0.7, 0.75, 0.775 and 0.8), nothing passes an
    AUROC of 0.75 in 93 % and 0.1 nats in 99 % with 2,000 records, and is beyond neither in any; an
    adversary's AUROC of 0.92 is beyond 0.75 in 93 % with 1,000 records and in all with 2,000.
    """

    name = AUDIT
    summary = "Usable information about a private attribute in each layer's gradient."
    metrics = (
        Metric(
            id="vinfo",
            title="Usable information about the attribute (V-information)",
            unit="nats",
            riskier="higher",
            warning=0.1,
            error=0.35,
            why="from this layer's gradient of a batch a classifier tells the attribute of its "
            "records",
        ),
        Metric(
            id="vinfo_fraction",
            title="Usable information as a share of the attribute's entropy",
            riskier="higher",
        ),
        Metric(
            id="auroc",
            title="Area under the ROC curve of the best classifier of the attribute",
            riskier="higher",
            error=0.75,
            why="of a batch with the attribute and one without, a classifier of this layer's "
            "gradient tells which is which three times in four",
        ),
        Metric(
            id="correlation",
            title="Pearson correlation of layers' information with an independent attack's AUROC",
            per_layer=False,
        ),
        Metric(
            id="original_vinfo",
            title="Usable information about the input itself, from reconstructions",
            unit="nats",
            riskier="higher",
            warning=0.5,
            error=1.5,
            why="reconstructions from this layer's update come closer to the records than guesses",
        ),
        Metric(
            id="original_success",
            title="Share of reconstructions that come close to the record",
            riskier="higher",
        ),
    )
    headline = ("vinfo", "auroc")
    Options = VinfoOptions
    quick: ClassVar[Mapping[str, JsonValue]] = {
        "repeats": 5,
        "batches": 32,
        "family": ["logistic"],
        "correlation": False,
        "restarts": 4,
        "updates": 5,
        "iterations": 10,
        "together": [1],
    }
    plain: ClassVar[Mapping[str, JsonValue]] = {"repeats": 8, "family": ["forest", "logistic"]}
    thorough: ClassVar[Mapping[str, JsonValue]] = {
        "repeats": 30,
        "batches": 128,
        "restarts": 16,
        "updates": 16,
        "guesses": 1024,
        "method": [
            "dlg:iterations=300",
            "idlg:iterations=300",
            "inverting-gradients:iterations=2400",
        ],
    }

    def run(self, subject: "Subject", progress: Progress) -> Iterable[Measurement]:
        """Rows of every shown layer; older checkpoints are the variants ``round``.

        Raises:
            NotApplicable: no attribute is named, or it has one value or too few records.
            UsageError: options contradict each other.
            AuditError: the model cannot be run on the records.
        """
        if self.options.original:
            yield from original_rows(subject, self.options, progress)
            yield from _not_asked_for(subject, METRICS, "--original asks about the input alone")
        else:
            yield from latent_rows(subject, self.options, progress)
            yield from _not_asked_for(subject, ORIGINAL, "not asked for: --original")

    def passes(self, subject: "Subject") -> float:
        """Gradients of the records once for eight repetitions; for each, of components."""
        options = self.options
        if options.original:
            return original_passes(subject, options)
        known = subject.records.members is not None
        attributes = len(subject.attributes) or int(known)
        rounds = len(subject.targets) * attributes
        most = RECORDS if why_no_correlation(subject, options) else ENOUGH_TO_KEEP
        records = min(subject.samples or most, len(subject.records))
        asked, played = parse_reduction(options.reduce), options.repeats + options.permuted_repeats
        turned = asked is not None and asked.kind == "pca"
        return rounds * records * (played if turned else max(played / _TOGETHER, 2))

    def seconds(self, subject: "Subject") -> float:
        """The fits of every layer, turn, repetition and family, all again for the permuted ones.

        And those of the attack, if there is a correlation.
        """
        from gradaudit.families import family
        from gradaudit.inference.repetitions import FOLDS
        from gradaudit.sharing.options import features_of

        options = self.options
        if options.original or not self.passes(subject):
            return 0.0
        attributes = subject.attributes or (MEMBER,)
        values = [len(subject.records.attributes[name].values) for name in subject.attributes]
        rows = options.batches * max(values, default=2)
        cases, sizes = len(subject.targets) * len(attributes), features_of(subject, options.reduce)
        played = dict.fromkeys(options.members, options.repeats + options.permuted_repeats)
        if not why_no_correlation(subject, options):
            played[options.attacker] = options.repeats
        fits = [(family(name), count) for name, count in played.items()]
        each = sum(one.seconds(rows, size) * count for one, count in fits for size in sizes)
        return cases * FOLDS * each


def _not_asked_for(subject: "Subject", metrics: Iterable[str], why: str) -> list[Measurement]:
    return skipped(AUDIT, metrics, [layer.name for layer in subject.layers], why)
