"""Information about the input in each layer's activations."""

from typing import ClassVar

from pydantic import Field

from gradaudit.audits.base import Audit, AuditOptions, Metric
from gradaudit.audits.presets import SAMPLED_LAYERS


class ForwardOptions(AuditOptions):
    """Options of the forward audit."""

    sigma2: float = Field(
        0.1,
        gt=0,
        allow_inf_nan=False,
        description="Variance of the noise that is added to activations, in squared units of the "
        "activations.",
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
    only that more could be there. Such rows are marked (``ceiling``) and warned of. Their interval
    is that for as many other records, too.

    Activations are not shared in federated training; like the paper, this tells how much of the
    record is left at a layer, and stands for what its gradient could hold only where the weights
    know nothing of the record. There is therefore no limit on it.

    A layer that is used several times counts with all its outputs side by side. In training mode
    with batch norm or dropout a record has no activations of its own, and the audit does not apply.
    """

    name = "forward"
    summary = "Estimate information about the input in each activation."
    paper = "https://arxiv.org/abs/2010.08762"
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
            question="records",
            chance=0.0,
        ),
    )
    headline = ("fraction",)
    priority = 80
    least: ClassVar = {"samples": 16, "single": True, "layers": SAMPLED_LAYERS}
    proxy = True
    Options = ForwardOptions
