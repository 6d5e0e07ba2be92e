"""Canaries in a training: clients of random directions, let in by coins, and what is seen of them.

A canary's update is a direction of its own, drawn evenly over the sphere, as long as a client's
update may be. It goes through the same defenses as the clients' updates, in every round, if its
coin let it in; else it is held out. Nothing else depends on the coins, so that whoever tells from
the released mean updates which are in has found out what the training gives away of a client.

G. Andrew et al., "One-shot empirical privacy estimation for federated learning" (2024), algorithm
2; the coins are those of T. Steinke, M. Nasr and M. Jagielski, "Privacy auditing with one (1)
training run" (2023).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, Self

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gradaudit.errors import CheckpointError
from gradaudit.federation.contributions import Contribution
from gradaudit.randomness import rng, torch_rng
from gradaudit.sharing.protocol import SharingProtocol

FILE = "canaries.safetensors"
_AT_ONCE = 16
_MAX_BYTES = 1 << 30
_MEMORY = "canaries.cosines"
_ENDLESS = 1e12


@dataclass(frozen=True)
class CanaryScores:
    """What was seen of the canaries of a run.

    Attributes:
        included: (canaries,) whether each was let in.
        cosines: (rounds, canaries, blocks) of the released mean update and the canary's direction,
            over all that is shared first, then over each layer.
        layers: names of the blocks but the first.
    """

    included: NDArray[np.bool_]
    cosines: NDArray[np.float64]
    layers: tuple[str, ...]

    def packed(self) -> bytes:
        """The file of the scores."""
        arrays = {"included": self.included, "cosines": self.cosines}
        return safetensors.numpy.save(arrays, {"layers": json.dumps(self.layers)})

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The scores that a run left in its folder.

        Raises:
            CheckpointError: there are none, or they are damaged.
        """
        path = folder / FILE
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise CheckpointError(f"{path}: larger than {_MAX_BYTES:,} bytes")
            with safe_open(path, framework="numpy") as file:
                layers = _names((file.metadata() or {})["layers"])
                scores = cls(file.get_tensor("included"), file.get_tensor("cosines"), layers)
        except FileNotFoundError as error:
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


@dataclass
class Canaries:
    """The canaries of one training.

    Attributes:
        count: how many, in and out.
        norm: of an update; None for the median of the clients' own, round by round.
        records: what each counts as, when updates are averaged.
        shapes: of the parameters that are shared, by name.
        sharing: what an update passes through before it is shared.
        seed: of directions, coins and noise.
        seen: (canaries, blocks) of each round.
    """

    count: int
    norm: float | None
    records: int
    shapes: Mapping[str, torch.Size]
    sharing: SharingProtocol
    seed: int
    device: torch.device
    seen: list[Tensor] = field(default_factory=list)

    @cached_property
    def included(self) -> NDArray[np.bool_]:
        """(canaries,) what the coins say."""
        draws = rng(self.seed, "federation", "canaries", "coins")
        return draws.integers(2, size=self.count).astype(bool)

    @cached_property
    def layers(self) -> dict[str, list[str]]:
        """The shared parameters of each layer."""
        layers: dict[str, list[str]] = {}
        for name in self.shapes:
            layers.setdefault(name.rpartition(".")[0] or "(model)", []).append(name)
        return layers

    @property
    def scores(self) -> CanaryScores:
        """What was seen so far."""
        blocks = 1 + len(self.layers)
        cosines = torch.stack(self.seen) if self.seen else torch.zeros(0, self.count, blocks)
        return CanaryScores(self.included, cosines.double().numpy(), tuple(self.layers))

    def joined(self, mean: Contribution, norms: list[float], round_: int) -> Contribution:
        """The mean of the clients and of the canaries that are in; what is seen of it is kept.

        Args:
            mean: of the clients.
            norms: of the clients' updates.
            round_: from 1.
        """
        length = self.norm if self.norm is not None else median(norms)
        sums = {name: tensor * mean.records for name, tensor in mean.update.items()}
        for numbers in _pieces(np.flatnonzero(self.included)):
            sent = self._sent(numbers, length, round_)
            sums = {n: t + self.records * sent[n].sum(0).reshape(t.shape) for n, t in sums.items()}
        total = mean.records + self.records * int(self.included.sum())
        update = {name: tensor / total for name, tensor in sums.items()}
        self.seen.append(self._cosines(update))
        return mean._replace(update=update)

    def memory(self) -> dict[str, Tensor]:
        """What was seen, by name; nothing before the first round."""
        return {_MEMORY: torch.stack(self.seen)} if self.seen else {}

    def restore(self, memory: Mapping[str, Tensor]) -> None:
        """Go back to a ``memory``."""
        self.seen = list(memory[_MEMORY]) if _MEMORY in memory else []

    def _directions(self, numbers: NDArray[Any]) -> dict[str, Tensor]:
        """Unit vectors, (canaries, elements) by parameter."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        rows = torch.stack(
            [
                torch.randn(
                    sum(sizes),
                    generator=torch_rng(self.seed, "federation", "canary", int(number)),
                )
                for number in numbers
            ]
        )
        rows = (rows / rows.norm(dim=1, keepdim=True)).to(self.device)
        return dict(zip(self.shapes, rows.split(sizes, dim=1), strict=True))

    def _sent(self, numbers: NDArray[Any], length: float, round_: int) -> dict[str, Tensor]:
        """What these canaries share, (canaries, elements) by parameter."""
        rows = {name: part * length for name, part in self._directions(numbers).items()}
        words = ("federation", "canaries", "defense", round_, int(numbers[0]))
        draws = torch_rng(self.seed, *words, device=self.device)
        chain = self.sharing.chain
        return chain.apply(rows, records=self.records, generators=lambda _i, _n: draws)

    def _cosines(self, update: Mapping[str, Tensor]) -> Tensor:
        """(canaries, blocks) with the directions of all canaries."""
        pieces = _pieces(np.arange(self.count))
        return torch.cat([torch.stack(list(self._of(update, some)), dim=1) for some in pieces])

    def _of(self, update: Mapping[str, Tensor], numbers: NDArray[Any]) -> Iterator[Tensor]:
        directions = self._directions(numbers)
        for names in (list(self.shapes), *self.layers.values()):
            rows = torch.cat([directions[name] for name in names], dim=1).double()
            released = torch.cat([update[name].flatten() for name in names]).double()
            norms = rows.norm(dim=1) * released.norm()
            yield torch.nan_to_num(rows @ released / norms).float().cpu()


def _names(text: str) -> tuple[str, ...]:
    """The names in a JSON list.

    Raises:
        ValueError: it is none.
    """
    names = json.loads(text)
    if not isinstance(names, list):
        raise ValueError("no list of names")
    return tuple(map(str, names))


def _pieces(numbers: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for start in range(0, len(numbers), _AT_ONCE):
        yield numbers[start : start + _AT_ONCE]


def longest(sharing: SharingProtocol) -> float | None:
    """How long a client's update may be after clipping; None where nothing clips it."""
    endless = torch.tensor([_ENDLESS], dtype=torch.float64)
    found = (
        defense.record_factors(endless) if defense.of_records else defense.batch_factors(endless)
        for defense in sharing.chain.acting
    )
    lengths = [float(factors * _ENDLESS) for factors in found if factors is not None]
    return min(lengths, default=None)
