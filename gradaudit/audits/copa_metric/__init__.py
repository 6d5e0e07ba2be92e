"""Rank deficiency of convolutions: whether weights and gradients determine the input."""

from typing import ClassVar, Literal

from pydantic import Field

from gradaudit.audits.base import Audit, AuditOptions, Metric
from gradaudit.audits.presets import SAMPLED_LAYERS


class CopaOptions(AuditOptions):
    """Options of the rank deficiency audit."""

    method: Literal["auto", "dense", "structured", "generic"] = Field(
        "auto",
        description="Method that computes the rank: auto (whichever suits the layer), dense "
        "(singular values of U), structured (theorems and eigenvalues of UᵀU) or generic (the "
        "paper's upper bound, which proves no rank).",
    )
    records: int = Field(
        2,
        ge=1,
        description="Number of records to average over, each measured on its own; --samples only "
        "lowers it.",
    )
    work: float = Field(
        300.0,
        gt=0,
        description="Largest number of floating-point operations for a layer and a record, in "
        "billions; beyond it the rank is given as an upper bound.",
    )


class CopaMetric(Audit[CopaOptions]):
    """Rank of U_i = [W_i; ∇_{Z_i} J] for every convolution i, and c(M) of the model.

    Knowing the layers behind it, the input x of a convolution solves U x = v with known v: its
    outputs and its weight's gradient are linear in x. The rank deficit n − rank U counts the
    dimensions of x that stay open; c(M) = Σ_i (d − (i−1))/d · (rank U_i − n_i) weighs the deficits
    of d convolutions by how early they are. Biases only shift v. Rows of U are taken at equal
    length, so that a small gradient counts as much as a large one.

    Where U is too large to be formed, the rank is an upper bound, named ``bound``, and the interval
    begins at what is certain. The value is then the end that claims less privacy (the larger rank,
    the smaller deficit). Without an interval all records have that one rank.

    Source: C. Chen and N. D. F. Campbell, "Understanding training-data leakage from gradients in
    neural networks for image classification" (2021), equation 4 and definition 2.1.
    """

    name = "copa-metric"
    summary = "Measure the rank deficiency of convolutions: can they be inverted?"
    paper = "https://arxiv.org/abs/2111.10178"
    metrics = (
        Metric(
            id="rank_deficit",
            title="Dimensions of the layer's input left open by its weights and gradient",
            unit="dimensions",
            riskier="lower",
            warning=1,
            why="the equations of this layer determine its whole input: an attacker who knows the "
            "layers behind it can solve for that input",
            question="freedom",
            finding="Inputs of layers can be solved for.",
            asks="Can inputs of layers be solved for?",
            noun="rank deficit",
            helps="a design that loses dimensions: fewer channels, larger strides",
        ),
        Metric(id="rank", title="Rank of U = [W; ∇_Z J]", unit="dimensions"),
        Metric(id="inputs", title="Dimensions of the layer's input", unit="dimensions"),
        Metric(id="rank_share", title="Share of the input that U determines"),
        Metric(
            id="c",
            title="c(M): rank deficits of all convolutions, weighed by how early they come",
            riskier="higher",
            per_layer=False,
            error=-1e-3,
            why="no convolution loses a dimension: the record can be computed layer by layer "
            "from its gradient",
            question="freedom",
            finding="All convolutions are invertible.",
            asks="Are all convolutions invertible?",
            noun="c(M)",
            helps="first convolutions that lose dimensions: fewer channels, larger strides",
        ),
    )
    headline = ("rank_deficit",)
    proxy = True
    Options = CopaOptions
    one_thread = True
    examples: ClassVar = (
        "-m zoo:lenet -d 'npz:pictures.npz?inputs=x&label=y'",
        "-m sample_models/models.py:digits_cnn -c sample_models/digits/round-10.safetensors "
        "-d digits",
    )
    priority = 90
    least: ClassVar = {"records": 1, "work": 5.0, "layers": SAMPLED_LAYERS}
    quick: ClassVar = {"records": 1, "work": 50.0}
    thorough: ClassVar = {"records": 4, "work": 5000.0}
