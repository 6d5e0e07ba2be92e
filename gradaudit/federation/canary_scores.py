"""Scores of a training's canaries, saved in a file beside its checkpoints."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from pydantic import JsonValue
from safetensors import SafetensorError, safe_open

from gradaudit.errors import CheckpointError

FILE = "canaries.safetensors"
_MAX_BYTES = 1 << 30
Unit = Literal["client", "record"]
Facts = dict[str, JsonValue]


@dataclass(frozen=True)
class CanaryScores:
    """Scores of the canaries of a run.

    Attributes:
        included: (canaries,) whether each was let in.
        cosines: (rounds, canaries, blocks) of the released mean update and the canary's direction,
            over all that is shared first, then over each layer; of records, what a step adds to the
            score of each.
        layers: names of the blocks but the first.
        unit: whether canaries are clients or records.
        facts: what else is known of the run.
    """

    included: NDArray[np.bool_]
    cosines: NDArray[np.float64]
    layers: tuple[str, ...]
    unit: Unit = "client"
    facts: Facts = field(default_factory=dict)

    def packed(self) -> bytes:
        """Returns the file of the scores as bytes."""
        arrays = {"included": self.included, "cosines": self.cosines}
        told = {"layers": self.layers, "unit": self.unit, "facts": self.facts}
        return safetensors.numpy.save(arrays, {key: json.dumps(x) for key, x in told.items()})

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads the scores that a run left in its folder.

        Raises:
            CheckpointError: there are none, or they are damaged.
        """
        path = folder / FILE
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise CheckpointError(f"{path}: larger than {_MAX_BYTES:,} bytes")
            with safe_open(path, framework="numpy") as file:
                told = file.metadata() or {}
                unit: Unit = "record" if told.get("unit") == '"record"' else "client"
                scores = cls(
                    file.get_tensor("included"),
                    file.get_tensor("cosines"),
                    _names(told["layers"]),
                    unit,
                    _facts(told.get("facts", "{}")),
                )
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CheckpointError(
                f"{path}: no such file; train with --canaries K, and name the folder of the run"
            ) from error
        except (SafetensorError, KeyError, ValueError, RecursionError, OSError) as error:
            raise CheckpointError(f"{path}: is damaged ({type(error).__name__})") from error
        return scores._expected(path)

    def _expected(self, path: Path) -> Self:
        shape = (*self.included.shape, 1 + len(self.layers))
        fits = self.included.dtype == bool and self.included.ndim == 1 and self.cosines.ndim == 3
        if not fits or self.cosines.shape[1:] != shape or not np.isfinite(self.cosines).all():
            raise CheckpointError(f"{path}: is damaged (its arrays do not fit each other)")
        return self


def _facts(text: str) -> Facts:
    """The object in a JSON text.

    Raises:
        ValueError: it is none.
    """
    facts = json.loads(text)
    if not isinstance(facts, dict):
        raise ValueError("no object of facts")
    return facts


def _names(text: str) -> tuple[str, ...]:
    """Reads a JSON list of names.

    Raises:
        ValueError: it is none.
    """
    names = json.loads(text)
    if not isinstance(names, list):
        raise ValueError("its metadata holds no list of names")
    return tuple(map(str, names))
