"""Certificates: a candidate's layer input lies in the row space of the layer's update.

The update [dW | db] = Σ_t δ_t [a_t; 1]ᵀ has its rows in the span of what came in (Petrov et al.
2024, DAGER, theorem 3.1), as long as the δ_t are linearly independent. Singular values below the
level of rounding and noise are no part of it. A record is certified where the share of its inputs
outside of the span is less than a tenth of the least of all decoys', which are records that the
attacker has: an update so noisy that records of the batch lie outside too certifies none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from gradaudit.audits.attack_record.likelihood_ratio import (
    BoolArray,
    FloatArray,
    IntArray,
    PresenceScores,
    auroc_of_pairs,
)
from gradaudit.audits.attack_record.record_game import RecordGame, alike
from gradaudit.audits.attack_table.spans import edge_of, rounding
from gradaudit.core.randomness import torch_rng
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.target import Layer
from gradaudit.ranks.observe import watching
from gradaudit.sharing.share import seen

_TENTH = 0.1
_MOST_UPDATES = 16
_SPARE = 16
_AT_ONCE = 256
_LEAST = 1e-12


@dataclass(frozen=True)
class Certified:
    """A layer's certificates at some updates.

    Attributes:
        inside: for each update, (behind,) whether each of its records is certified.
        outside: for each update, whether each candidate outside of it is.
    """

    inside: list[BoolArray]
    outside: list[BoolArray]

    def joined(self, other: Certified) -> Certified:
        """Join two layers' certificates: a record is certified where either layer certifies it."""
        sides = [
            [a | b for a, b in zip(one, two, strict=True)]
            for one, two in ((self.inside, other.inside), (self.outside, other.outside))
        ]
        return Certified(*sides)


@dataclass(frozen=True)
class SpanCertificates:
    """Certificates of a game's candidates."""

    game: RecordGame

    def layers(self) -> Iterator[tuple[Layer, Certified | str]]:
        """Every layer's certificates; or why there are none."""
        for layer in self.game.subject.layers:
            yield layer, self._void(layer) or self._of(layer)

    def scores(self, layer: Layer, updates: Tensor) -> PresenceScores | None:
        """Score candidates by their distance from the spans of updates (updates, elements).

        None where the layer is void, or a part of its elements is seen.
        """
        if self._void(layer) or updates.shape[1] != layer.parameters:
            return None
        outputs = self._model.module.get_submodule(layer.name).get_parameter("weight").shape[0]
        vectors = self._held[layer.name][np.searchsorted(self._known, self.game.candidates)]
        near = [
            -np.log(outside(self._row_space(layer, update.view(outputs, -1)), vectors) + _LEAST)
            for update in updates
        ]
        scores = np.stack(near, axis=1)
        shadow_auroc = auroc_of_pairs(scores, self.game.placed.shadow)
        return PresenceScores(scores, {"statistic": "distance to the span"}, shadow_auroc)

    def of_candidates(
        self, records: IntArray, update: Mapping[str, Tensor]
    ) -> dict[str, list[bool]]:
        """Test whether records are certified in one update, for each layer that can certify."""
        found = {}
        for layer in self.game.subject.layers:
            if not self._void(layer):
                limit, residual = self._tested(layer, update, records)
                found[layer.name] = [bool(x) for x in residual < limit]
        return found

    def _of(self, layer: Layer) -> Certified:
        inside, outside, pairs = [], [], self.game.pairs
        for number, update in enumerate(self.updates):
            of_update = pairs.updates == number
            limit, residual = self._tested(layer, update, pairs.records[of_update])
            member = pairs.inside[of_update]
            inside.append(residual[member] < limit)
            outside.append(residual[~member] < limit)
        return Certified(inside, outside)

    def _tested(
        self, layer: Layer, update: Mapping[str, Tensor], records: IntArray
    ) -> tuple[float, FloatArray]:
        """The limit that decoys set, and the residuals of records, (records,)."""
        span = self._span(layer, update)
        residuals = outside(span, self._inputs(layer, np.concatenate([self._decoys, records])))
        decoys = residuals[: len(self._decoys)]
        return _TENTH * float(decoys.min()), residuals[len(self._decoys) :]

    def _span(self, layer: Layer, update: Mapping[str, Tensor]) -> Tensor:
        parts = {part: update[f"{layer.name}.{part}"].cpu() for part in self._parts(layer)}
        columns = [part.double().reshape(len(part), -1) for part in parts.values()]
        return self._row_space(layer, torch.cat(columns, dim=1))

    def _row_space(self, layer: Layer, matrix: Tensor) -> Tensor:
        level = rounding({"": matrix})
        return row_space(matrix.double().cpu(), self._tokens(layer), level)

    def _void(self, layer: Layer) -> str:
        """Say why a layer cannot certify; empty where it may."""
        if layer.name not in self._reads:
            return "no fully connected layer, whose update would have the span of what came in"
        if not {f"{layer.name}.{part}" for part in self._parts(layer)} <= self._shared:
            return "its update is not shared"
        module = self._model.module.get_submodule(layer.name)
        sizes = {"inputs": int(module.in_features), "outputs": int(module.out_features)}  # type: ignore[arg-type]
        tokens, (what, size) = self._tokens(layer), min(sizes.items(), key=lambda x: x[1])
        if tokens < size:
            return ""
        why = "every record lies in its span"
        if what == "outputs":
            why = "its update does not hold their span"
        return (
            f"void: {tokens} vectors came in behind an update, and the layer has {size} {what}, so "
            f"that {why}"
        )

    def _parts(self, layer: Layer) -> list[str]:
        bias = getattr(self._model.module.get_submodule(layer.name), "bias", None)
        return ["weight"] if bias is None else ["weight", "bias"]

    def _tokens(self, layer: Layer) -> int:
        """Count the input vectors that one update is made from."""
        return self.game.options.records_behind * self._reads[layer.name].shape[1]

    @cached_property
    def _shared(self) -> set[str]:
        """Names of the parameters that an update holds."""
        game = self.game
        if game.captured is not None:
            return set(game.captured.update)
        return set(game.sharing.parameters(game.target.model))

    @cached_property
    def updates(self) -> list[Mapping[str, Tensor]]:
        """The attacked updates, of all parameters, of the first batches."""
        game = self.game
        if game.captured is not None:
            return [game.captured.update]
        found: list[Mapping[str, Tensor]] = []
        for number, batch in enumerate(game.attacked[:_MOST_UPDATES]):
            rows = torch.from_numpy(batch)
            seed, device = game.subject.seed, game.target.device
            draws = torch_rng(seed, "record", "span", number, device=device)
            records, memory = game.subject.records, game.subject.memory
            chosen = records.inputs[rows], records.labels[rows]
            found.append(seen(game.target, *chosen, game.sharing, draws, memory=memory))
        return found

    @cached_property
    def _model(self) -> FunctionalModel:
        return FunctionalModel.of(self.game.target, dtype=self.game.target.precision)

    @cached_property
    def _reads(self) -> dict[str, Tensor]:
        """Read every fully connected layer's inputs for one record, (1, vectors, width)."""
        return self._read(self.game.sets.fit[:1])

    def _inputs(self, layer: Layer, records: IntArray) -> Tensor:
        """Compute [a; 1] of records, (records, vectors, width + 1); a alone without a bias."""
        read = self._held[layer.name][np.searchsorted(self._known, records)]
        if len(self._parts(layer)) == 1:
            return read
        return torch.cat([read, read.new_ones(*read.shape[:-1], 1)], dim=-1)

    @cached_property
    def _known(self) -> IntArray:
        return np.union1d(self._decoys, self.game.candidates)

    @cached_property
    def _held(self) -> dict[str, Tensor]:
        """Keep the inputs of the layers that can certify, for decoys and candidates."""
        names = [layer.name for layer in self.game.subject.layers if not self._void(layer)]
        step = 1 if self._model.loss.alone else _AT_ONCE
        starts = range(0, len(self._known), step)
        parts = [self._read(self._known[i : i + step], names) for i in starts]
        return {name: torch.cat([part[name] for part in parts]) for name in names}

    @cached_property
    def _decoys(self) -> IntArray:
        """Records of the fit set that equal no candidate."""
        same, sets = alike(self.game.subject.records), self.game.sets
        return sets.fit[~np.isin(same[sets.fit], same[sets.score])]

    def _read(self, records: IntArray, names: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Read fully connected layers' inputs of records: (records, vectors, width)."""
        linear = {n: m for n, m in self._model.module.named_modules() if type(m) is nn.Linear}
        found: dict[str, list[Tensor]] = {}

        def look(name: str, inputs: Tensor, output: Tensor) -> Tensor:
            read = inputs.detach().double().cpu()
            found.setdefault(name, []).append(read.reshape(len(records), -1, read.shape[-1]))
            return output

        wanted = {n: m for n, m in linear.items() if names is None or n in names}
        inputs = self.game.subject.records.inputs[torch.from_numpy(records)]
        with torch.no_grad(), watching(wanted, look):
            self._model.outputs({}, self._model.cast(inputs))
        return {name: torch.cat(reads, dim=1) for name, reads in found.items()}


def row_space(matrix: Tensor, tokens: int, level: float) -> Tensor:
    """An orthonormal basis (width, rank) of the rows' span, above rounding and noise.

    Args:
        matrix: (outputs, width) float64; of many more rows than tokens a random sketch does.
        tokens: dimensions of the span at most.
        level: of rounding, over the largest singular value.
    """
    rows = 2 * (tokens + _SPARE)
    if len(matrix) > rows:
        draws = torch.randn(rows, len(matrix), generator=torch_rng(0, "record", "sketch"))
        matrix = draws.double() @ matrix
    edge, _ = edge_of(matrix, level, tokens)
    _, values, right = torch.linalg.svd(matrix, full_matrices=False)
    basis: Tensor = right[: min(int((values > edge).sum()), tokens)].T
    return basis


def outside(span: Tensor, vectors: Tensor) -> FloatArray:
    """Compute the share of each record's inputs that lies outside of a span, (records,)."""
    rest = vectors - vectors @ span @ span.T
    lengths = vectors.flatten(1).norm(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
    return np.asarray((rest.flatten(1).norm(dim=1) / lengths).numpy())
