"""Deep Leakage from Gradients; the improved one reads the label, which the first searches."""

from __future__ import annotations

from typing import ClassVar

import torch

from gradaudit.attacks.reconstruction.base import AttackerView, ReconstructionOptions
from gradaudit.attacks.reconstruction.labels import Targets, infer_label
from gradaudit.attacks.reconstruction.restarts import GradientMatching, MatchingOptions


class DeepLeakage(GradientMatching):
    """Minimise ‖∇W' − ∇W‖² over records and labels together, by L-BFGS.

    Labels are free numbers whose softmax is the soft label; known labels are held fixed. The line
    search (strong Wolfe) is not the paper's, whose fixed step diverges from some starting points.
    The network should be twice differentiable: behind ReLUs the objective is piecewise quadratic in
    the signals that pass and flat in those that do not, and the attack mostly fails.

    Source: L. Zhu, Z. Liu and S. Han, "Deep leakage from gradients" (2019), algorithm 1.
    """

    name = "dlg"
    summary = "Match the gradient by L-BFGS over records and labels (Zhu et al. 2019)."
    Options: ClassVar[type[ReconstructionOptions]] = MatchingOptions
    default_steps = 300
    searches_labels = True

    def targets(self, view: AttackerView, generator: torch.Generator) -> Targets:
        """Known labels, or free ones."""
        return Targets.of(view, view.labels)


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
