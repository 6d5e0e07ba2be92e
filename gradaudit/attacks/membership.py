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
    jobs: int = 1,
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
    candidates = attack(method, view, restarts, seed, progress, jobs)
    if candidates.labels is None:
        raise NotApplicable(f"{method.name} names no labels")
    if candidates.answer is None:
        return None, None
    return candidates.labels[candidates.answer], float(candidates.scores[candidates.answer])


def categorical_distance(truth: NDArray[np.int64], found: NDArray[np.int64] | None) -> float:
    """Share of a batch's labels that are not among the recovered ones; 1 for no answer.

    Labels are compared as lists: an update does not order its records, so that labels at the same
    places say as little of the attack as ``shuffled_distance`` of them does. This is the smallest
    distance that any order has; ``paired_distance`` is that of the records' own order.
    """
    if found is None:
        return 1.0
    return 1.0 - float(labels_in_common(truth, found[None])[0]) / len(truth)


def paired_distance(
    truth: NDArray[np.int64], found: NDArray[np.int64] | None, order: NDArray[np.int64] | None
) -> float:
    """Share of a batch's records that are named wrong, each by its own reconstruction's label.

    It says that a label is known only where its record was rebuilt: right labels of records that
    came to nothing are in a random order, and far from the truth by ``shuffled_distance``.

    Args:
        truth: (k,).
        found: (k,) labels in the order of the reconstructions; None for no answer.
        order: (k,) for each original, the reconstruction that stands for it; None for no answer.
    """
    if found is None or order is None:
        return 1.0
    return float((found[order] != truth).mean())


def shuffled_distance(truth: NDArray[np.int64]) -> float:
    """Expected share of wrong places of a batch's own labels in a random order: 1 − Σ_c (n_c/k)².

    With n_c of the k labels of class c. Over batches drawn evenly from C classes it is
    (1 − 1/k)(1 − 1/C) on average: what an attack that fails at the records but finds every label
    scores where labels are compared place by place (Fan et al. 2020, algorithms 5 and 6).
    """
    counts = np.unique(truth, return_counts=True)[1]
    return 1.0 - float(((counts / len(truth)) ** 2).sum())
