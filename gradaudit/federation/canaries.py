"""Canaries of a training: extra clients with random directions, included by coin tosses.

A canary's update is a direction of its own, drawn evenly over the sphere, as long as a client's
update may be. It joins the clients' mean through the same defenses, in every round, if its coin let
it in; else it is held out. Nothing else depends on the coins, so that whoever finds from the
released mean updates which are in has found out what the training gives away of a client. Scores
are saved in a file beside the training's checkpoints.

G. Andrew et al., "One-shot empirical privacy estimation for federated learning" (2024), algorithm
2; the coins are those of T. Steinke, M. Nasr and M. Jagielski, "Privacy auditing with one (1)
training run" (2023).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gradaudit.core.randomness import rng, torch_rng
from gradaudit.errors import CheckpointError
from gradaudit.sharing.protocol import SharingProtocol

FILE, _ABOUT = "canaries.safetensors", "about"
_MAX_BYTES = 1 << 30
Unit = Literal["client", "record"]
Facts = dict[str, JsonValue]
_AT_ONCE = 16
_MEMORY = "canaries.cosines"
_ENDLESS = 1e12


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
        """Return the file of the scores as bytes, the same for the same scores.

        Its metadata has one entry, as safetensors writes several in any order.
        """
        arrays = {"included": self.included, "cosines": self.cosines}
        about = {"layers": self.layers, "unit": self.unit, "facts": self.facts}
        return safetensors.numpy.save(arrays, {_ABOUT: json.dumps(about)})

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
                layers, unit, facts = _about(file.metadata() or {})
                arrays = file.get_tensor("included"), file.get_tensor("cosines")
                scores = cls(*arrays, layers, unit, facts)
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


def _about(metadata: Mapping[str, str]) -> tuple[tuple[str, ...], Unit, Facts]:
    """Read layers, unit and facts; in earlier versions each was an entry of its own.

    Raises:
        KeyError: there are no layers.
        ValueError: something is no JSON, or not of its kind.
    """
    entries = {key: json.loads(text) for key, text in metadata.items()}
    about = entries.get(_ABOUT, entries)
    if not isinstance(about, dict):
        raise ValueError("its metadata is no object")
    layers, facts = about["layers"], about.get("facts", {})
    if not isinstance(layers, list) or not isinstance(facts, dict):
        raise ValueError("its metadata holds no list of names, or no object of facts")
    return tuple(map(str, layers)), "record" if about.get("unit") == "record" else "client", facts


class Contribution(NamedTuple):
    """A client's contribution: a gradient, or its training's difference as one; and buffers.

    The update is by the name of every trainable parameter, in its shape; of several local steps it
    is (w₀ − w_E)/rate. Buffers are the model's after the client's forward passes, the number of its
    records is its weight, and the loss their mean, as they were trained on.
    """

    update: dict[str, Tensor]
    buffers: dict[str, Tensor]
    records: int
    loss: float


def weighted_mean(contributions: Iterable[Contribution]) -> Contribution:
    """The mean of the clients' contributions, each weighted by its number of records.

    Counts among the buffers (``num_batches_tracked``) are not averaged: the largest is kept.
    """
    return reduce(_with, contributions)


def _with(mean: Contribution, sent: Contribution) -> Contribution:
    records = mean.records + sent.records
    share = sent.records / records
    update = {n: _between(t, sent.update[n], share) for n, t in mean.update.items()}
    buffers = {n: _between(t, sent.buffers[n], share) for n, t in mean.buffers.items()}
    return Contribution(update, buffers, records, mean.loss + share * (sent.loss - mean.loss))


def _between(before: Tensor, new: Tensor, share: float) -> Tensor:
    """Moves a running mean towards a value; exact where they are equal; counts take the larger."""
    if not before.is_floating_point():
        return torch.maximum(before, new)
    return before + share * (new - before)


def coins(count: int, seed: int) -> NDArray[np.bool_]:
    """Whether each canary is included, (canaries,), by a fair coin of its own."""
    draws = rng(seed, "federation", "canaries", "coins")
    return draws.integers(2, size=count).astype(bool)


@dataclass(kw_only=True)
class Canaries:
    """The canaries of one training.

    Attributes:
        count: how many, in and out.
        shapes: of the parameters that are shared, by name.
        seed: of directions, coins and noise.
        seen: (canaries, blocks) of each round.
    """

    count: int
    shapes: Mapping[str, torch.Size]
    seed: int
    device: torch.device
    seen: list[Tensor] = field(default_factory=list)

    @cached_property
    def included(self) -> NDArray[np.bool_]:
        """Whether each canary is included, (canaries,)."""
        return coins(self.count, self.seed)

    @cached_property
    def layers(self) -> dict[str, list[str]]:
        """Names of the shared parameters of each layer."""
        layers: dict[str, list[str]] = {}
        for name in self.shapes:
            layers.setdefault(name.rpartition(".")[0] or "(model)", []).append(name)
        return layers

    @property
    def scores(self) -> CanaryScores:
        """Returns the scores of the canaries so far."""
        blocks = 1 + len(self.layers)
        cosines = torch.stack(self.seen) if self.seen else torch.zeros(0, self.count, blocks)
        return CanaryScores(self.included, cosines.double().numpy(), tuple(self.layers))

    def see(self, update: Mapping[str, Tensor]) -> None:
        """Add the cosines between a round's released update, by parameter, and all directions."""
        self.seen.append(self._cosines(update))

    def directions(self, numbers: NDArray[Any]) -> dict[str, Tensor]:
        """Returns the canaries' directions: unit vectors, (canaries, elements) by parameter."""
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

    def memory(self) -> dict[str, Tensor]:
        """Returns the canaries' scores by name; empty before the first round."""
        return {_MEMORY: torch.stack(self.seen)} if self.seen else {}

    def restore(self, memory: Mapping[str, Tensor]) -> None:
        """Restore the scores that ``memory`` returned."""
        self.seen = list(memory[_MEMORY]) if _MEMORY in memory else []

    def _cosines(self, update: Mapping[str, Tensor]) -> Tensor:
        """Returns cosines (canaries, blocks) of an update with all canaries' directions."""
        some = (list(self._of(update, part)) for part in pieces(np.arange(self.count)))
        return torch.cat([torch.stack(blocks, dim=1) for blocks in some])

    def _of(self, update: Mapping[str, Tensor], numbers: NDArray[Any]) -> Iterator[Tensor]:
        directions = self.directions(numbers)
        for names in (list(self.shapes), *self.layers.values()):
            rows = torch.cat([directions[name] for name in names], dim=1).double()
            released = torch.cat([update[name].flatten() for name in names]).double()
            norms = rows.norm(dim=1) * released.norm()
            yield torch.nan_to_num(rows @ released / norms).float().cpu()


def pieces(numbers: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Splits the canaries' numbers into pieces that fit into the memory."""
    for start in range(0, len(numbers), _AT_ONCE):
        yield numbers[start : start + _AT_ONCE]


@dataclass(kw_only=True)
class CanaryClients(Canaries):
    """The canaries of ``gradaudit train``.

    Attributes:
        norm: of an update; None for the median of the clients' own, round by round.
        records: what each counts as, when updates are averaged.
        sharing: what an update passes through before it is shared.
    """

    norm: float | None
    records: int
    sharing: SharingProtocol

    def joined(self, mean: Contribution, norms: list[float], round_: int) -> Contribution:
        """Returns the mean of clients and included canaries, and keeps the canaries' scores.

        Args:
            mean: of the clients.
            norms: of the clients' updates.
            round_: from 1.
        """
        length = self.norm if self.norm is not None else median(norms)
        sums = {name: tensor * mean.records for name, tensor in mean.update.items()}
        for numbers in pieces(np.flatnonzero(self.included)):
            sent = self._sent(numbers, length, round_)
            sums = {n: t + self.records * sent[n].sum(0).reshape(t.shape) for n, t in sums.items()}
        total = mean.records + self.records * int(self.included.sum())
        update = {name: tensor / total for name, tensor in sums.items()}
        self.see(update)
        return mean._replace(update=update)

    def _sent(self, numbers: NDArray[Any], length: float, round_: int) -> dict[str, Tensor]:
        """Returns what these canaries share, (canaries, elements) by parameter."""
        rows = {name: part * length for name, part in self.directions(numbers).items()}
        words = ("federation", "canaries", "defense", round_, int(numbers[0]))
        draws = torch_rng(self.seed, *words, device=self.device)
        chain = self.sharing.chain
        return chain.apply(rows, records=self.records, generators=lambda _i, _n: draws)


def longest(sharing: SharingProtocol) -> float | None:
    """Largest length of a client's update after clipping; None where nothing clips it."""
    endless = torch.tensor([_ENDLESS], dtype=torch.float64)
    factors_of = (
        defense.record_factors(endless) if defense.of_records else defense.batch_factors(endless)
        for defense in sharing.chain.acting
    )
    lengths = [float(factors * _ENDLESS) for factors in factors_of if factors is not None]
    return min(lengths, default=None)
