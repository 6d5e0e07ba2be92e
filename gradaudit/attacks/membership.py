"""Recovery of the labels behind an update: what Fan et al. 2020 call a membership attack.

L. Fan et al., "Rethinking privacy preserving deep learning" (2020), algorithm 5: the label is what
Deep Leakage from Gradients ends with. Whether a record was among the training data is another
question, which the paper calls tracing.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.attacks.reconstruction.attempts import attack
from gradaudit.attacks.reconstruction.matching import labels_in_common
from gradaudit.attacks.reconstruction.methods import Method
from gradaudit.attacks.reconstruction.restarts import GradientMatching
from gradaudit.attacks.reconstruction.view import AttackerView
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress


def recovered_labels(
    method: Method,
    view: AttackerView,
    restarts: int,
    seed: np.random.SeedSequence,
    progress: Progress,
) -> tuple[Tensor | None, float | None]:
    """The labels (k,) that a method names, and its own score of the answer.

    A method that reads labels off the update does no more than that, and has no score. No labels
    where every restart diverged.

    Raises:
        NotApplicable: the method does not apply or names no labels.
    """
    if not view.classes:
        raise NotApplicable("the labels are real numbers: there is no class to recover")
    if isinstance(method, GradientMatching):
        generator = torch.Generator().manual_seed(int(seed.generate_state(1)[0]))
        fixed = method.targets(view, generator).fixed
        if fixed is not None:
            return fixed, None
    candidates = attack(method, view, restarts, seed, progress)
    if candidates.labels is None:
        raise NotApplicable(f"{method.name} names no labels")
    if candidates.answer is None:
        return None, None
    return candidates.labels[candidates.answer], float(candidates.scores[candidates.answer])


def categorical_distance(truth: NDArray[np.int64], found: NDArray[np.int64] | None) -> float:
    """Share of a batch's labels that are not among the recovered ones; 1 for no answer.

    Labels are compared as lists: an update does not order its records.
    """
    if found is None:
        return 1.0
    return 1.0 - float(labels_in_common(truth, found[None])[0]) / len(truth)
