"""Inverting Gradients: match directions, under a prior for pictures."""

from typing import ClassVar, Literal

import torch
from pydantic import Field

from gradaudit.attacks.reconstruction.base import AttackerView, ReconstructionOptions
from gradaudit.attacks.reconstruction.initial import Start
from gradaudit.attacks.reconstruction.labels import Targets, infer_counts, infer_label
from gradaudit.attacks.reconstruction.objectives import Distance
from gradaudit.attacks.reconstruction.restarts import GradientMatching, MatchingOptions


class InvertingOptions(MatchingOptions):
    """Options of inverting gradients, with the paper's defaults but fewer iterations."""

    objective: Distance = Field("cosine", description="Distance of updates: l2 or cosine.")
    tv: float = Field(
        1e-4, ge=0, description="Weight of the total variation of pictures; tables have none."
    )
    box: bool = Field(True, description="Keep the records in the known range at every step.")
    optimiser: Literal["lbfgs", "adam", "signed-adam"] = Field(
        "signed-adam", description="Optimiser."
    )
    iterations: int = Field(2400, ge=1, description="Steps (the paper takes 4,800 to 24,000).")
    precision: Literal["float32", "float64"] = Field("float32", description="Of the computation.")
    init: Start = Field("normal", description="Starting records: normal, uniform, pattern, given.")


class InvertingGradients(GradientMatching):
    """Minimise 1 − cos(∇W', ∇W) + α TV(x) inside the box of possible values, by signed Adam.

    The labels are known, read off the last layer's signs (one record), or estimated from its bias
    (several, see ``infer_counts``), and then held fixed.

    Source: J. Geiping, H. Bauermeister, H. Dröge and M. Moeller, "Inverting gradients – how easy is
    it to break privacy in federated learning?" (2020), equation 4.
    """

    name = "inverting-gradients"
    summary = "Match the gradient's direction under total variation (Geiping et al. 2020)."
    Options: ClassVar[type[ReconstructionOptions]] = InvertingOptions
    default_steps = 2400
    reads_labels = True

    def targets(self, view: AttackerView, generator: torch.Generator) -> Targets:
        """Known labels, the one that the signs tell, or a batch's estimated ones."""
        if view.labels is not None or not view.classes:
            return Targets.of(view, view.labels)
        known = infer_label(view) if view.batch == 1 else infer_counts(view, generator)
        return Targets.of(view, known)

    def weight_of_tv(self, view: AttackerView) -> float:
        """α, of pictures only unless it was asked for."""
        asked = "tv" in self.options.model_fields_set
        return self.options.tv if view.pictures or asked else 0.0

    def labels_from(self, view: AttackerView) -> str:
        """Known, from signs, or estimated."""
        if view.labels is not None:
            return "known"
        if not view.classes:
            return "optimised with the records"
        if view.batch == 1:
            return "signs of the last layer's gradient"
        return "estimated from the last layer's bias"
