"""Where an attack begins."""

from math import ceil
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gradaudit.attacks.reconstruction.base import AttackerView
from gradaudit.errors import UsageError
from gradaudit.files import expect_file
from gradaudit.gradients.noise import draw_noise

_MAX_BYTES = 1 << 30
"""Of a file with a starting point."""

Start = Literal["normal", "uniform", "pattern", "given"]


def starts(view: AttackerView, start: Start, restarts: int, generator: torch.Generator) -> Tensor:
    """Starting records, (restarts, k, …), all drawn before anything is split into chunks.

    ``normal`` is the standard normal law of Deep Leakage from Gradients; ``uniform`` goes over the
    known range of values, or [0, 1]; ``pattern`` repeats one random tile of half a picture's sides
    (W. Wei et al., "A framework for evaluating gradient leakage attacks", 2020); ``given`` is the
    attacker's own guess, the same for every restart.

    Raises:
        UsageError: a pattern for records that are no pictures, or no guess was given.
    """
    shape = (restarts, view.batch, *view.shape)
    if start == "normal":
        drawn = normal(restarts, view.elements, generator).reshape(shape)
    elif start == "uniform":
        drawn = _uniform(view, shape, generator)
    elif start == "pattern":
        drawn = _tiled(view, shape, generator)
    elif view.start is None:
        raise UsageError("--init given: there is no starting point; name one with --start FILE.npy")
    elif view.start.shape != shape[1:]:
        raise UsageError(
            f"--start: has shape {tuple(view.start.shape)}, the batch is {tuple(shape[1:])}"
        )
    else:
        drawn = view.start.expand(shape).clone()
    return drawn.to(view.model.device, view.dtype)


def normal(rows: int, elements: int, generator: torch.Generator) -> Tensor:
    """(rows, elements) standard normal numbers; the first rows do not depend on how many follow."""
    like = torch.empty(elements, dtype=torch.float64)
    return draw_noise("gaussian", like, rows, generator) if elements else like.new_empty(rows, 0)


def read_start(path: Path) -> Tensor:
    """A starting point from a .npy file, float64.

    Raises:
        UsageError: it is none.
    """
    path = expect_file(path, _MAX_BYTES)
    try:
        array = np.load(path, allow_pickle=False, mmap_mode="r")
        return torch.from_numpy(np.array(array, dtype=np.float64))
    except (OSError, ValueError) as error:
        raise UsageError(f"--start {path}: is no readable .npy array of numbers") from error


def _uniform(view: AttackerView, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    low, high = view.bounds or (0.0, 1.0)
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)


def _tiled(view: AttackerView, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if len(view.shape) != 3:
        raise UsageError("--init pattern: the records are no pictures; use normal or uniform")
    height, width = shape[-2:]
    rows, columns = ceil(height / 2), ceil(width / 2)
    tile = _uniform(view, (*shape[:-2], rows, columns), generator)
    return tile.repeat(*(1,) * (len(shape) - 2), 2, 2)[..., :height, :width]
