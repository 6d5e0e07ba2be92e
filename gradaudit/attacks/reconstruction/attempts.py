"""Runs one method on one batch, and scores its candidates, its answer and its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.attacks.reconstruction import Method
from gradaudit.attacks.reconstruction.base import AttackerView, Candidates, Execution, Update
from gradaudit.attacks.reconstruction.closeness import (
    assigned,
    labels_in_common,
    scores_of,
    ssim,
    window_for,
)
from gradaudit.attacks.reconstruction.matching.restarts import GradientMatching
from gradaudit.attacks.reconstruction.matching.unknowns import Targets, starts
from gradaudit.attacks.reconstruction.observing import AttackedBatch, value_range
from gradaudit.core.randomness import sequence, torch_rng
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.executors.workers import one_thread

FloatArray = NDArray[np.float64]
_CHUNK = 1 << 22
"""Elements of pictures that are compared at once."""


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
        """Which restarts did not diverge, (restarts,)."""
        return np.asarray(self.candidates.usable.cpu().numpy())


def attempt(
    method: Method, observed: AttackedBatch, execution: Execution, *, scored: bool = True
) -> Attempt:
    """Attack one batch, in one thread, and score every restart.

    Nothing is scored where the truth is not known.

    Raises:
        NotApplicable: the method says nothing about this batch.
    """
    view = observed.view
    with one_thread():
        candidates = method.checked(method.run(view, execution), view)
    if not scored:
        return Attempt(candidates, {}, None)
    pictures = view.pictures and view.bounds == (0.0, 1.0)
    scores = scores_of(observed.records, candidates.finite, pictures=pictures)
    return Attempt(
        candidates,
        {name: values.cpu().numpy() for name, values in scores.items()},
        _label_shares(view, observed.labels, candidates.labels),
    )


def rebuilt(method: Method, observed: AttackedBatch, execution: Execution) -> Tensor:
    """The attacker's answer (k, …) to a batch, on the CPU; NaN where all restarts diverged.

    Raises:
        NotApplicable: the method says nothing about this batch.
    """
    with one_thread():
        made = method.checked(method.run(observed.view, execution), observed.view)
    nothing = torch.full_like(made.inputs[0], torch.nan)
    return (nothing if made.records is None else made.records).cpu()


def recovered_labels(
    method: Method, observed: AttackedBatch, execution: Execution
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
        labels, _ = method.labels(view, torch_rng(execution.seed, "labels"))
        if (fixed := Targets.of(view, labels).fixed) is not None:
            return fixed, None
    with one_thread():
        candidates = method.checked(method.run(view, execution), view)
    if candidates.labels is None:
        raise NotApplicable(f"{method.name} names no labels")
    if candidates.answer is None:
        return None, None
    return candidates.labels[candidates.answer], float(candidates.scores[candidates.answer])


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


Kind = Literal["normal", "uniform", "pattern", "blank"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Random reconstructions: where attacks start, cut to the range of values, and one colour."""


@dataclass(frozen=True)
class Similarities:
    """Similarities of a family of attacks' reconstructions to the records.

    Attributes:
        own: (members, updates, records, restarts) SSIM to the record behind the update; NaN where a
            restart diverged, or the attack says nothing about that update.
        others: the same against the records of the next update; None where there is only one.
    """

    members: tuple[str, ...]
    own: FloatArray
    others: FloatArray | None
    refused: Mapping[str, str]

    @property
    def failed(self) -> list[int]:
        """The number of failed restarts of each attack."""
        return [int(np.isnan(member[:, 0]).sum()) for member in self.own]


def expect_pictures(records: Records) -> None:
    """Raise an error where records are not pictures, which SSIM needs.

    Raises:
        NotApplicable: the records are none with values in [0, 1], or too small for a window.
    """
    if value_range(records) is None:
        raise NotApplicable(
            "--original compares reconstructions by SSIM, and the records are no pictures in "
            "[0, 1] with one or three channels"
        )
    window_for(tuple(records.inputs.shape[2:]))


def seen(observed: AttackedBatch, update: Update) -> AttackedBatch:
    """Restrict the batch's view to this part of its update."""
    return replace(observed, view=replace(observed.view, update=update))


def similarities(
    methods: Mapping[str, Method], observed: Sequence[AttackedBatch], execution: Execution
) -> Similarities:
    """Run every attack on every update, all restarts from the same draws for any part of it.

    Raises:
        NotApplicable: no attack says anything about any of the updates.
    """
    to_own: dict[str, FloatArray] = {}
    others: dict[str, FloatArray] = {}
    refused: dict[str, str] = {}
    truths = [batch.records for batch in observed]
    for name, method in methods.items():
        views = [batch.view for batch in observed]
        if method.searches_labels:  # no attack that searches them is given them
            views = [replace(view, labels=None) for view in views]
        candidates, why = _candidates(method, views, execution)
        if any(made is not None for made in candidates):
            to_own[name] = _compared(truths, candidates, method.starts)
            others[name] = _compared(truths[1:] + truths[:1], candidates, method.starts)
        else:
            refused[name] = why
    if not to_own:
        raise NotApplicable("; ".join(f"{name}: {why}" for name, why in refused.items()))
    beside = np.stack(list(others.values())) if len(observed) > 1 else None
    return Similarities(tuple(to_own), np.stack(list(to_own.values())), beside, refused)


def guesses(observed: Sequence[AttackedBatch], count: int, seed: int) -> FloatArray:
    """Compute SSIM of random reconstructions to the records, (kinds, updates, records, count).

    A guess is a batch of the same size, and its records stand for the originals that they come
    closest to, as a reconstruction's do.
    """
    view = observed[0].view
    drawn = [_guess(view, kind, count, torch_rng(seed, "success", "guess", kind)) for kind in KINDS]
    return np.stack(
        [np.stack([ssim_of(batch.records, batches) for batch in observed]) for batches in drawn]
    )


def ssim_of(truth: Tensor, candidates: Tensor) -> FloatArray:
    """Compute SSIM (k, candidates) of batches (candidates, k, …) to their records (k, …)."""
    truth = truth.detach().double()
    size = max(1, _CHUNK // truth.numel())
    chunks = [
        ssim(truth, chunk if len(truth) == 1 else assigned(truth, chunk))
        for chunk in torch.split(candidates.detach().double().to(truth.device), size)
    ]
    return np.asarray(torch.cat(chunks).T.cpu().numpy())


def _candidates(
    method: Method, views: Sequence[AttackerView], execution: Execution
) -> tuple[list[Candidates | None], str]:
    """An attack's candidates for every update, None where it says nothing about it, and why."""
    candidates: list[Candidates | None] = []
    why = ""
    for index, view in enumerate(views):
        draws = sequence(execution.seed, "success", "attack", index)
        try:
            with one_thread():
                found = method.run(view, replace(execution, seed=draws))
            candidates.append(method.checked(found, view))
        except NotApplicable as error:
            candidates.append(None)
            why = str(error)
    return candidates, why


def _compared(
    truths: Sequence[Tensor], candidates: Sequence[Candidates | None], restarts: int
) -> FloatArray:
    """Compute SSIM (updates, k, restarts), NaN for failed restarts."""
    nothing = np.full((len(truths[0]), restarts), np.nan)
    return np.stack(
        [
            nothing if made is None else ssim_of(truth, made.finite)
            for truth, made in zip(truths, candidates, strict=True)
        ]
    )


def _guess(view: AttackerView, kind: Kind, count: int, generator: torch.Generator) -> Tensor:
    if kind != "blank":
        return view.clipped(starts(view, kind, count, generator))
    low, high = view.bounds or (0.0, 1.0)
    shape = (count, view.batch, view.shape[0], 1, 1)
    colour = low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)
    return colour.expand(count, view.batch, *view.shape)
