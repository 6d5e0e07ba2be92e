"""Improved Deep Leakage from Gradients: the label is read, not searched."""

from typing import ClassVar

import torch

from gradaudit.attacks.reconstruction.base import ReconstructionOptions
from gradaudit.attacks.reconstruction.labels import Targets, infer_label
from gradaudit.attacks.reconstruction.restarts import GradientMatching, MatchingOptions
from gradaudit.attacks.reconstruction.view import AttackerView


class ImprovedDeepLeakage(GradientMatching):
    """Read the label of a single record off the last layer, then minimise ‖∇W' − ∇W‖².

    With cross-entropy only the true class's row of the last layer's gradient has a negative factor
    p_c − y_c. It holds for one record and for a last layer whose update was shared.

    Source: B. Zhao, K. R. Mopuri and H. Bilen, "iDLG: Improved deep leakage from gradients"
    (2020), algorithm 1.
    """

    name = "idlg"
    summary = "Read the label off the last layer's signs, then match by L-BFGS (Zhao et al. 2020)."
    Options: ClassVar[type[ReconstructionOptions]] = MatchingOptions
    default_steps = 300
    reads_labels = True

    def targets(self, view: AttackerView, generator: torch.Generator) -> Targets:
        """Known labels, or the one that the signs tell."""
        labels = infer_label(view) if view.labels is None else view.labels
        return Targets.of(view, labels)

    def labels_from(self, view: AttackerView) -> str:
        """Known, or from signs."""
        return "known" if view.labels is not None else "signs of the last layer's gradient"
