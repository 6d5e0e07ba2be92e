"""How similar every restart comes to the records, whatever the attacker thinks of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.attacks.reconstruction import Method
from gradaudit.attacks.reconstruction.attempts import attack
from gradaudit.attacks.reconstruction.base import AttackerView, Candidates, Update
from gradaudit.attacks.reconstruction.observing import AttackedBatch, value_range
from gradaudit.attacks.reconstruction.scores import assigned, ssim, window_for
from gradaudit.attacks.reconstruction.unknowns import starts
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress
from gradaudit.randomness import sequence, torch_rng

FloatArray = NDArray[np.float64]
Kind = Literal["normal", "uniform", "pattern", "blank"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Random reconstructions: where attacks start, cut to the range of values, and one colour."""
_CHUNK = 1 << 22
"""Elements of pictures that are compared at once."""


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
        """Restarts of each member that came to nothing."""
        return [int(np.isnan(member[:, 0]).sum()) for member in self.own]


def expect_pictures(records: Records) -> None:
    """SSIM is of pictures.

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
    """The same batch where only this part of its update was shared."""
    return replace(observed, view=replace(observed.view, update=update))


def similarities(
    methods: Mapping[str, Method],
    observed: Sequence[AttackedBatch],
    restarts: int,
    seed: int,
    progress: Progress,
    jobs: int = 1,
) -> Similarities:
    """Run every attack on every update, all restarts from the same draws for any part of it.

    Restarts are shared out among as many worker processes.

    Raises:
        NotApplicable: no attack says anything about any of the updates.
    """
    to_own: dict[str, FloatArray] = {}
    others: dict[str, FloatArray] = {}
    refused: dict[str, str] = {}
    truths = [batch.records for batch in observed]
    for name, method in methods.items():
        views = [batch.view for batch in observed]
        if method.searches_labels:  # they are told to no attack that does
            views = [replace(view, labels=None) for view in views]
        candidates, why = _candidates(method, views, restarts, seed, progress, jobs)
        if any(made is not None for made in candidates):
            to_own[name] = _compared(truths, candidates, restarts)
            others[name] = _compared(truths[1:] + truths[:1], candidates, restarts)
        else:
            refused[name] = why
    if not to_own:
        raise NotApplicable("; ".join(f"{name}: {why}" for name, why in refused.items()))
    beside = np.stack(list(others.values())) if len(observed) > 1 else None
    return Similarities(tuple(to_own), np.stack(list(to_own.values())), beside, refused)


def guesses(observed: Sequence[AttackedBatch], count: int, seed: int) -> FloatArray:
    """(kinds, updates, records, count) SSIM of random reconstructions to the records.

    A guess is a batch of the same size, and its records stand for the originals that they come
    closest to, as a reconstruction's do.
    """
    view = observed[0].view
    drawn = [_guess(view, kind, count, torch_rng(seed, "success", "guess", kind)) for kind in KINDS]
    return np.stack(
        [np.stack([ssim_of(batch.records, batches) for batch in observed]) for batches in drawn]
    )


def ssim_of(truth: Tensor, candidates: Tensor) -> FloatArray:
    """(k, candidates) SSIM of batches (candidates, k, …) to the records (k, …) they stand for."""
    truth = truth.detach().double()
    size = max(1, _CHUNK // truth.numel())
    chunks = [
        ssim(truth, chunk if len(truth) == 1 else assigned(truth, chunk))
        for chunk in torch.split(candidates.detach().double().to(truth.device), size)
    ]
    return np.asarray(torch.cat(chunks).T.cpu().numpy())


def _candidates(
    method: Method,
    views: Sequence[AttackerView],
    restarts: int,
    seed: int,
    progress: Progress,
    jobs: int,
) -> tuple[list[Candidates | None], str]:
    """An attack's candidates for every update, None where it says nothing about it, and why."""
    candidates: list[Candidates | None] = []
    why = ""
    for index, view in enumerate(views):
        draws = sequence(seed, "success", "attack", index)
        try:
            candidates.append(attack(method, view, restarts, draws, progress, jobs))
        except NotApplicable as error:
            candidates.append(None)
            why = str(error)
    return candidates, why


def _compared(
    truths: Sequence[Tensor], candidates: Sequence[Candidates | None], restarts: int
) -> FloatArray:
    """(updates, k, restarts) SSIM, NaN of restarts that came to nothing."""
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
