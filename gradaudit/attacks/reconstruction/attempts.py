"""One method on one batch: its candidates, its answer, the labels it names, and their scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.attacks.reconstruction import Method
from gradaudit.attacks.reconstruction.base import AttackerView, Candidates
from gradaudit.attacks.reconstruction.observing import AttackedBatch
from gradaudit.attacks.reconstruction.restarts import GradientMatching
from gradaudit.attacks.reconstruction.scores import assigned, labels_in_common, scores_of
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress
from gradaudit.randomness import torch_rng
from gradaudit.workers import one_thread

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Attempt:
    """A method's reconstruction of a batch, and its errors.

    Attributes:
        scores: (restarts,) by metric, against the truth; empty where there is none.
        labels: (restarts,) share of the labels that the attacker named; None where it names none
            or was told them.
    """

    candidates: Candidates
    scores: dict[str, FloatArray]
    labels: FloatArray | None

    @property
    def answer(self) -> int | None:
        """The restart that the attacker hands in."""
        return self.candidates.answer

    @property
    def usable(self) -> NDArray[np.bool_]:
        """(restarts,) those that did not diverge."""
        return np.asarray(self.candidates.usable.cpu().numpy())


def attempt(
    method: Method,
    observed: AttackedBatch,
    restarts: int,
    seed: np.random.SeedSequence,
    progress: Progress,
    jobs: int = 1,
    *,
    scored: bool = True,
) -> Attempt:
    """Attack one batch, its restarts on so many worker processes, and score every restart.

    Nothing is scored where the truth is not known.

    Raises:
        NotApplicable: the method says nothing about this batch.
    """
    view = observed.view
    candidates = attack(method, view, restarts, seed, progress, jobs)
    if not scored:
        return Attempt(candidates, {}, None)
    pictures = view.pictures and view.bounds == (0.0, 1.0)
    scores = scores_of(observed.records, candidates.finite, pictures=pictures)
    return Attempt(
        candidates,
        {name: values.cpu().numpy() for name, values in scores.items()},
        _label_shares(view, observed.labels, candidates.labels),
    )


def rebuilt(
    method: Method,
    observed: AttackedBatch,
    restarts: int,
    seed: np.random.SeedSequence,
    progress: Progress,
    jobs: int = 1,
) -> Tensor:
    """The attacker's answer (k, …) to a batch, on the CPU; NaN where all restarts diverged.

    Raises:
        NotApplicable: the method says nothing about this batch.
    """
    made = attack(method, observed.view, restarts, seed, progress, jobs)
    nothing = torch.full_like(made.inputs[0], torch.nan)
    return (nothing if made.answer is None else made.inputs[made.answer]).cpu()


def recovered_labels(
    method: Method,
    observed: AttackedBatch,
    restarts: int,
    seed: np.random.SeedSequence,
    progress: Progress,
    jobs: int = 1,
) -> tuple[Tensor | None, float | None]:
    """The labels (k,) that a method names, and its own score of the answer.

    Fan et al. 2020, algorithm 5: the label is what Deep Leakage from Gradients ends with. A method
    that reads labels off the update does no more than that, and has no score. No labels where every
    restart diverged.

    Raises:
        NotApplicable: the method does not apply or names no labels.
    """
    view = observed.view
    if not view.classes:
        raise NotApplicable("the labels are real numbers: there is no class to recover")
    if view.label_shape:
        raise NotApplicable(
            "every record has a label for each position, and the distance is one of single labels"
        )
    if isinstance(method, GradientMatching):
        fixed = method.targets(view, torch_rng(seed, "labels")).fixed
        if fixed is not None:
            return fixed, None
    candidates = attack(method, view, restarts, seed, progress, jobs)
    if candidates.labels is None:
        raise NotApplicable(f"{method.name} names no labels")
    if candidates.answer is None:
        return None, None
    return candidates.labels[candidates.answer], float(candidates.scores[candidates.answer])


def attack(
    method: Method,
    view: AttackerView,
    restarts: int,
    seed: np.random.SeedSequence,
    progress: Progress,
    jobs: int = 1,
) -> Candidates:
    """Run a method in one thread, so that its numbers do not depend on the machine's cores."""
    count, generator = restarts if method.restarts else 1, torch_rng(seed, "start")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with one_thread():
            return method.run(view, count, generator, progress, jobs)
    finally:
        torch.set_num_threads(threads)


def answer_of(attempt: Attempt, observed: AttackedBatch) -> Tensor | None:
    """The attacker's answer (k, …) in the order of the true records; None where all diverged."""
    if attempt.answer is None:
        return None
    candidate = attempt.candidates.inputs[attempt.answer][None].detach().cpu()
    return assigned(observed.records.cpu(), candidate)[0]


def _label_shares(view: AttackerView, truth: Tensor, named: Tensor | None) -> FloatArray | None:
    real = truth.is_floating_point() or truth.dim() != 1
    if named is None or view.labels is not None or named.is_floating_point() or real:
        return None
    common = labels_in_common(truth.cpu().numpy(), named.cpu().numpy())
    return common / len(truth)
