"""The audit of records that an attacker reconstructs from a shared update."""

from functools import partial
from typing import ClassVar

from gradaudit.audits.attack_reconstruct.options import ReconstructOptions
from gradaudit.audits.base import Audit, Metric

_STRONGER = "scan --thorough or the audit's --method, --restarts and --iterations"
_riskier_higher = partial(Metric, riskier="higher", per_layer=False, stronger=_STRONGER)
_riskier_lower = partial(Metric, riskier="lower", per_layer=False, stronger=_STRONGER)


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
    blank record has 1. Of several methods each has its rows; the headline is the method with the
    smallest relative error, which the details name.
    """

    name = "attack reconstruct"
    summary = "Reconstruct records from their shared update."
    paper = "https://arxiv.org/abs/2006.11601"
    applies_defenses = True
    metrics = (
        _riskier_lower(
            id="relative_error",
            title="Distance of the reconstruction from the record, over the record's length",
            warning=0.5,
            error=0.1,
            why="an attacker reconstructs recognisable records from their shared update",
            question="records",
            chance=1.0,
            finding="Records are reconstructed.",
            asks="Are records reconstructed?",
            noun="relative error",
            cleared="not reconstructed",
            helps="larger batches (--deployment), or noise (--defense)",
        ),
        _riskier_lower(id="mse", title="Mean squared error"),
        _riskier_higher(
            id="psnr", title="Peak signal-to-noise ratio of the reconstruction", unit="dB"
        ),
        _riskier_higher(id="ssim", title="Structural similarity of the reconstruction"),
        _riskier_higher(
            id="label_accuracy", title="Share of the batch's labels that the attacker names"
        ),
        Metric(
            id="attacker_score",
            title="How badly the answer explains the update, by the attacker's own measure",
            per_layer=False,
        ),
        Metric(
            id="certainty",
            title="Certainty that the attacker itself gives its records, where it gives one",
            per_layer=False,
        ),
    )
    headline = ("relative_error",)
    Options = ReconstructOptions
    examples: ClassVar = (
        "-m zoo:deep-leakage -d 'npz:pictures.npz?inputs=x&label=y' --method dlg",
        "-m sample_models/models.py:digits_cnn -c sample_models/digits/round-10.safetensors "
        "-d digits --save-examples pictures",
    )
    priority = 40
    least: ClassVar = {"method": ["closed-form:search_work=10"], "restarts": 1, "batches": 1}
    quick: ClassVar = {"iterations": 5, "restarts": 2, "batches": 1}
    plain: ClassVar = {"restarts": 2}
    thorough: ClassVar = {
        "method": ["closed-form", "idlg", "dlg", "inverting-gradients"],
        "restarts": 8,
        "batches": 4,
    }
