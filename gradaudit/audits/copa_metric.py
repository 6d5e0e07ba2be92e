"""Rank deficiency of convolutions: can what went in be solved for from weights and gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, JsonValue

from gradaudit.audits._copa_rows import UNIT, c_row, layer_rows
from gradaudit.audits.base import Audit, AuditOptions, Metric
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress
from gradaudit.report import Measurement, skipped

if TYPE_CHECKING:
    from torch import Tensor

    from gradaudit.gradients.functional import FunctionalModel
    from gradaudit.models.target import Layer, Subject
    from gradaudit.ranks.model import LayerRanks

_PASSES_A_RANK = 20.0


class CopaOptions(AuditOptions):
    """Options of the rank deficiency audit."""

    method: Literal["auto", "dense", "structured", "generic"] = Field(
        "auto",
        description="auto: whatever suits the layer; dense: singular values of U; structured: "
        "theorems and probes, U is never formed; generic: the upper bound, where it is confirmed "
        "for the real zeros and ties of the weights, else as auto",
    )
    records: int = Field(
        2,
        ge=1,
        description="records to average over, each measured on its own; --samples only lowers it",
    )
    work: float = Field(
        300.0,
        gt=0,
        description="billions of floating-point operations that a layer may cost for a record "
        "before its rank is given as a bracket",
    )


class CopaMetric(Audit[CopaOptions]):
    """Rank of U_i = [W_i; ∇_{Z_i} J] for every convolution i, and c(M) of the model.

    Knowing the layers behind it, the input x of a convolution solves U x = v with known v: its
    outputs and its weight's gradient are linear in x. The rank deficit n − rank U counts the
    dimensions of x that stay open; c(M) = Σ_i (d − (i−1))/d · (rank U_i − n_i) weighs the deficits
    of d convolutions by how early they are. Biases only shift v. Rows of U are taken at equal
    length, so that a small gradient counts as much as a large one.

    Where only a bracket is found, the value is the end that claims less privacy (the larger rank,
    the smaller deficit) and the interval is the bracket, over all records. Without an interval all
    records have that one rank.

    Source: C. Chen and N. D. F. Campbell, "Understanding training-data leakage from gradients in
    neural networks for image classification" (2021), equation 4 and definition 2.1.
    """

    name = "copa-metric"
    summary = "Whether each convolution's input can be solved for from its weights and gradient."
    metrics = (
        Metric(
            id="rank_deficit",
            title="Dimensions of the layer's input left open by its weights and gradient",
            unit=UNIT,
            riskier="lower",
            warning=1,
            why="the equations of this layer leave nothing of its input open: whoever knows the "
            "layers behind it can solve for what went in",
        ),
        Metric(id="rank", title="Rank of U = [W; ∇_Z J]", unit=UNIT),
        Metric(id="inputs", title="Dimensions of the layer's input", unit=UNIT),
        Metric(id="rank_share", title="Share of the input that U determines"),
        Metric(
            id="c",
            title="c(M): rank deficits of all convolutions, weighed by how early they come",
            riskier="higher",
            per_layer=False,
            error=-1e-3,
            why="no convolution loses a dimension, so the whole record can be solved for layer by "
            "layer from its gradient",
        ),
    )
    headline = ("rank_deficit",)
    proxy = True
    Options = CopaOptions
    quick: ClassVar[Mapping[str, JsonValue]] = {"records": 1, "work": 30.0}
    thorough: ClassVar[Mapping[str, JsonValue]] = {"records": 4, "work": 5000.0}

    def passes(self, subject: Subject) -> float:
        """Every rank costs about as much as some passes."""
        from gradaudit.ranks.observe import convolutions

        ranks = len(convolutions(subject.target.model)) * self.options.records
        return _PASSES_A_RANK * ranks

    def run(self, subject: Subject, progress: Progress) -> Iterable[Measurement]:
        """Ranks of every convolution, skipped rows for other layers, c(M).

        Raises:
            NotApplicable: the model has no convolution.
        """
        from gradaudit.gradients.functional import FunctionalModel
        from gradaudit.ranks.chain import chain_of_convolutions
        from gradaudit.ranks.observe import convolutions, fully_connected, unsuitable

        if not convolutions(subject.target.model):
            raise NotApplicable(_nothing(subject))
        model = FunctionalModel.of(subject.target, seed=subject.seed)
        inputs, labels = self._records(subject, model)
        ranks, reasons = self._ranks(subject, model, inputs, labels, progress)
        of_layers = [metric.id for metric in self.metrics if metric.per_layer]
        reasons |= unsuitable(subject.target.model) | fully_connected(model, inputs[:1])
        for layer in subject.layers:
            if layer.name in ranks:
                yield from layer_rows(self.name, ranks[layer.name], subject.seed)
            else:
                reason = reasons.get(layer.name) or _not_a_convolution(layer)
                yield from skipped(self.name, of_layers, [layer.name], reason)
        try:
            chain = chain_of_convolutions(model, inputs[:1], subject.seed)
        except NotApplicable as error:
            yield from skipped(self.name, ["c"], [None], str(error))
        else:
            yield c_row(self.name, chain, ranks, reasons)

    def _ranks(
        self,
        subject: Subject,
        model: FunctionalModel,
        inputs: Tensor,
        labels: Tensor,
        progress: Progress,
    ) -> tuple[dict[str, LayerRanks], dict[str, str]]:
        from gradaudit.ranks.model import ranks_of
        from gradaudit.ranks.observe import plain_convolutions

        wanted = {layer.name for layer in subject.layers}
        plain = plain_convolutions(subject.target.model)
        layers = {name: module for name, module in plain.items() if name in wanted}
        with progress.task("Ranks of convolutions", len(layers) * len(inputs)) as advance:
            return ranks_of(
                model,
                layers,
                inputs,
                labels,
                method=self.options.method,
                flops=1e9 * self.options.work,
                seed=subject.seed,
                advance=advance,
            )

    def _records(self, subject: Subject, model: FunctionalModel) -> tuple[Tensor, Tensor]:
        """The first of the records that every audit looks at, each checked to run alone."""
        records = subject.sample(self.options.records)
        inputs = model.cast(records.inputs[: self.options.records])
        labels = model.cast(records.labels[: self.options.records])
        model.check(inputs[:1], labels[:1])
        return inputs, labels


def _nothing(subject: Subject) -> str:
    hidden = [layer for layer in subject.layers if layer.kind.startswith("Conv")]
    if hidden:
        return f"the model has no convolution modules: {_not_a_convolution(hidden[0])}"
    return "the model has no convolution modules"


def _not_a_convolution(layer: Layer) -> str:
    if layer.kind.startswith("Conv"):
        return (
            f"{layer.name} is a {layer.kind} by name, but no plain convolution of torch.nn: the "
            "archive calls it several times, pads in a step of its own, or it computes something "
            "else; give the model as path/to/file.py:factory"
        )
    return f"{layer.kind} is no convolution"
