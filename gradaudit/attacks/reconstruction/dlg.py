"""Deep Leakage from Gradients."""

from typing import ClassVar

import torch

from gradaudit.attacks.reconstruction.base import ReconstructionOptions
from gradaudit.attacks.reconstruction.labels import Targets
from gradaudit.attacks.reconstruction.restarts import GradientMatching, MatchingOptions
from gradaudit.attacks.reconstruction.view import AttackerView


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
