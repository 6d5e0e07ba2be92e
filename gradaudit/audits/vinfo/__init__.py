"""Estimate usable information about an attribute in each gradient."""

from functools import partial
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from gradaudit.audits.base import Audit, MergeRare, Metric, methods_at_commas, split_at_commas
from gradaudit.audits.presets import SAMPLED_LAYERS
from gradaudit.audits.sharing_options import SharingOptions
from gradaudit.core.parts import summaries
from gradaudit.core.specs import pick
from gradaudit.errors import UsageError

LATENT = ("vinfo", "vinfo_fraction", "auroc")
ORIGINAL = VINFO, SUCCESS = "original_vinfo", "original_success"
ITERATIONS = {"dlg": 20, "idlg": 20, "inverting-gradients": 240}
"""Steps of the attacks on the input where none are named: outer ones of L-BFGS, steps of Adam."""
_STRONGER = "scan --thorough or the audit's --family forest,mlp,logistic and --batches"
_NOISE = "noise (--defense)"


class VinfoOptions(SharingOptions):
    """Options of the audit of usable information."""

    batch_size: int = Field(
        16,
        ge=1,
        description="Number of records in a batch, all with the same value of the attribute "
        "(with --original 1 is the default, and any records make a batch).",
    )
    batches: int = Field(
        64,
        ge=10,
        description="Number of batches of each attribute value on which classifiers are fitted; "
        "half as many choose among them, and twice as many measure the chosen one.",
    )
    shadow: int | None = Field(
        None,
        ge=2,
        description="Number of records on which the adversary fits and chooses its classifiers "
        "(without it 70 % of the records, less those that the correlation keeps); the other "
        "records measure it.",
    )
    repeats: int = Field(
        20,
        ge=2,
        description="Number of repetitions, each with another split of the records; fewer than 5 "
        "give a poor interval.",
    )
    family: tuple[str, ...] = Field(
        (),
        description="Predictive families (NAME,…) that the adversary chooses from: forest, mlp, "
        "logistic, norms, extra-trees, discriminant (without it the first four; with --paper "
        "forest); the prior is always among them.",
    )
    merge_rare: MergeRare = 0
    prior: Literal["uniform", "empirical"] = Field(
        "uniform",
        description="Prior of the attribute without the gradient: uniform, or the values' "
        "frequencies.",
    )
    paper: bool = Field(
        False,
        description="Take the softmax of the forest's votes for probabilities, uncalibrated, as "
        "Mo21 does: it never shows more than 0.38 nats of two values, even of a perfect forest.",
    )
    original: bool = Field(
        False,
        description="Measure information about the input itself, by how often reconstructions "
        "succeed; the options about attributes are then ignored.",
    )
    correlation: bool | None = Field(
        None,
        description="Keep a third of the records for an independent attack, and correlate the "
        "information with its AUROC over 5 or more points (layers × checkpoints × attributes); "
        "without it this is done from 3,000 records on.",
    )
    sensitivities: bool = Field(
        False,
        description="Also correlate the layers' sensitivities with the independent attack's AUROC.",
    )

    method: tuple[str, ...] = Field(
        ("dlg", "idlg", "inverting-gradients"),
        description="Attacks that --original makes, NAME:key=value,… each; repeat it, or use "
        "commas, for several.",
    )
    _methods = field_validator("method", mode="before")(methods_at_commas)
    restarts: int = Field(
        8, ge=1, le=10_000, description="Number of starting points R of each --original attack."
    )
    iterations: int | None = Field(
        None,
        ge=1,
        description="Number of steps of each --original attack (by default "
        + ", ".join(f"{count} of {name}" for name, count in ITERATIONS.items())
        + ", which shows less than the papers' 300 and 4,800 do).",
    )
    updates: int = Field(
        8,
        ge=1,
        description="Number of updates that --original attacks; --samples N takes as many as N "
        "records make.",
    )
    guesses: int = Field(
        256, ge=1, description="Number of random guesses that --original compares attacks with."
    )
    together: tuple[int, ...] = Field(
        (1, 2),
        description="Number of consecutive layers that --original attacks together (1: single "
        "layers); repeat it for several.",
    )
    threshold: float = Field(
        0.5,
        gt=0,
        le=1,
        description="SSIM from which on an --original attack counts as a success.",
    )
    known_labels: bool = Field(
        True,
        description="Give the labels to idlg and inverting-gradients with --original, as their "
        "papers read them off the whole update; dlg searches for them in any case.",
    )

    @field_validator("together")
    @classmethod
    def _sizes(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if not sizes or min(sizes) < 1:
            raise ValueError("a set has one layer or more")
        return tuple(dict.fromkeys(sizes))

    _names = field_validator("family", mode="before")(split_at_commas)

    @field_validator("family")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        known = summaries("gradaudit.families")
        for name in names:
            try:
                pick(name, known, name, "predictive family")
            except UsageError as error:
                raise ValueError(str(error)) from error
        return names

    @property
    def members(self) -> tuple[str, ...]:
        """The predictive families beside the prior."""
        usual = ("forest",) if self.paper else ("forest", "mlp", "logistic", "norms")
        return self.family or usual

    @property
    def permuted_repeats(self) -> int:
        """The number of repetitions with a permuted attribute: half, or five if that is more."""
        return max(min(self.repeats, 5), self.repeats // 2)

    @property
    def attacker(self) -> str:
        """The family of the independent attack: one not used for measuring, if there is one."""
        return "forest" if "extra-trees" in self.members else "extra-trees"

    @property
    def inverted(self) -> int:
        """The number of a client's records that are inverted: one by default."""
        return self.batch_size if "batch_size" in self.model_fields_set else 1


_riskier_higher = partial(Metric, riskier="higher")
_learned = partial(_riskier_higher, stronger=_STRONGER)
_rebuilt = partial(_riskier_higher, stronger="the audit's --method, --restarts and --iterations")


class Vinfo(Audit[VinfoOptions]):
    """V-information from a layer's gradient G_l to a private attribute P, in nats.

    I_V(G_l → P) = E[−log f[∅](p)] − min over f in V of E[−log f[g](p)] (Mo et al. 2021, "Layer-wise
    characterization of latent information leakage in federated learning", eq. 7; Mo et al. 2022,
    "Quantifying and localizing usable information leakage from neural network gradients", eq. 1;
    Xu et al. 2020). g is the gradient of a batch of records that share a value of P, V a random
    forest, a small network, logistic regression, a forest on the gradient's norms, which tell its
    scale, and the prior itself; f[∅] is the uniform prior.

    Each repetition deals the records (users with all theirs) into a score set of 30 % and three
    folds before any batch is drawn. In turns each fold chooses: members are fitted on the two
    others, and what they say of this one calibrates a family and chooses among families. The
    members of the chosen one then say the mean of their probabilities of the score set. So in each
    turn a record either fits classifiers or chooses among them, and over all turns it does both.

    The value is the mean over repetitions, or 0 where that is negative; the interval is that for
    another sample of as many records, from the untruncated repetitions, with an upper end of at
    least 0. It is Nadeau and Bengio's (2003) and Wilson's, on as many trials as there are batches
    of the rarest value without a common record (or user), which holds where those are few.
    It covers new records, batches and fits, not another training of the model.
    ``interval_over_repetitions`` is Student's, of these records alone, which the repetitions share.

    What is estimated is what an adversary learns who has as many records, less than what the
    gradient holds: a small number is no proof.

    Beside each row stands the same with the attribute permuted among records (users keep their
    records and swap values), in half as many repetitions, as the variant ``attribute_permuted``:
    it shows which value comes out when gradients say nothing about the attribute.
    ``vinfo_fraction`` divides by the entropy of the prior; ``auroc`` is of the family that ranks
    best. Where several attributes are named, each is a variant and the headline is the worst.
    Where none is named, the attribute is membership, if the data set has it.

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
    (variant ``layers``), at every τ (variant ``threshold``). The intervals are over updates, and
    hold for any number of them; for other restarts on the same records the success rate has
    ``interval_of_these_records``. ``permuted`` compares reconstructions with other records. It
    shows what these attacks do with so few steps, not what an update holds.

    Limits: of a value that is one of two, 0.1 nats are what an attack with an AUROC of about 0.75
    has, and 0.35, half of all there is, one of about 0.9. With 8 repetitions and batches of 16, of
    70 simulations each (by which 0.75 was taken among 0.7, 0.75, 0.775 and 0.8), nothing passes an
    AUROC of 0.75 in 93 % and 0.1 nats in 99 % with 2,000 records, and is beyond neither in any; an
    adversary's AUROC of 0.92 is beyond 0.75 in 93 % with 1,000 records and in all with 2,000.
    """

    name = "vinfo"
    summary = "Estimate usable information about an attribute in each gradient."
    paper = "https://arxiv.org/abs/2105.13929"
    applies_defenses = True
    metrics = (
        _learned(
            id="vinfo",
            title="Usable information about the attribute (V-information)",
            unit="nats",
            warning=0.1,
            error=0.35,
            why="a classifier of this layer's gradient predicts the attribute of a batch's records",
            question="attribute",
            chance=0.0,
            finding="The {secret} of a batch is inferred.",
            asks="Is the {secret} of a batch inferred?",
            noun="V-information",
            cleared="not inferred",
            helps=_NOISE,
        ),
        _learned(
            id="vinfo_fraction", title="Usable information as a share of the attribute's entropy"
        ),
        _learned(
            id="auroc",
            title="Area under the ROC curve of the best classifier of the attribute",
            error=0.75,
            why="a classifier of this layer's gradient distinguishes batches with it from others",
            question="attribute",
            chance=0.5,
            finding="The {secret} of a batch is inferred.",
            asks="Is the {secret} of a batch inferred?",
            noun="AUROC",
            cleared="not inferred",
            helps=_NOISE,
        ),
        Metric(
            id="correlation",
            title="Pearson correlation of layers' information with an independent attack's AUROC",
            per_layer=False,
        ),
        _rebuilt(
            id="original_vinfo",
            title="Usable information about the input itself, from reconstructions",
            unit="nats",
            warning=0.5,
            error=1.5,
            why="reconstructions from this layer's update are closer to the records than guesses",
            question="records",
            chance=0.0,
            finding="Records are reconstructed from layers.",
            asks="Are records reconstructed from layers?",
            noun="V-information",
            cleared="not reconstructed",
            helps=_NOISE,
        ),
        _rebuilt(
            id="original_success", title="Share of reconstructions that come close to the record"
        ),
    )
    headline = ("vinfo", "auroc")
    Options = VinfoOptions
    priority = 20
    least: ClassVar = {
        "repeats": 3,
        "batches": 32,
        "family": ["logistic", "norms"],
        "correlation": False,
        "restarts": 2,
        "updates": 5,
        "iterations": 5,
        "together": [1],
        "reduce": "subset:1000",
        "samples": 200,
        "layers": SAMPLED_LAYERS,
    }
    quick: ClassVar = {
        "repeats": 5,
        "batches": 32,
        "family": ["logistic", "norms"],
        "correlation": False,
        "restarts": 4,
        "updates": 5,
        "iterations": 10,
        "together": [1],
    }
    plain: ClassVar = {"repeats": 8, "family": ["forest", "norms"]}
    thorough: ClassVar = {
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
