"""The game of a record's presence: whose updates are made, and their products with candidates.

No record, and no user, is in two sets: what the attacker fits and chooses on is never attacked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.audits.attack_record import RecordOptions
from gradaudit.audits.attack_record.likelihood_ratio import (
    CandidatePairs,
    InnerProducts,
    IntArray,
    Placed,
)
from gradaudit.audits.attack_record.pair_scores import RepeatedGames
from gradaudit.core.randomness import number, rng, sequence
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.games.splits import owners, split
from gradaudit.models.target import Layer, Target
from gradaudit.sharing.captured import CapturedUpdate, captured_update
from gradaudit.sharing.context import Context
from gradaudit.sharing.gradient_rows import together
from gradaudit.sharing.interceptor import Interceptor
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.subject import Subject

_MOST_ELEMENTS, _FEWEST_ELEMENTS = 100_000, 1000
"""Elements of a layer that are read, where nothing else is asked for and memory is short or not."""
_COPIES = 4
FEWEST_OUTSIDE = 16
"""Least number of records outside of a batch that those in it are compared with."""


@dataclass(frozen=True)
class RecordSets:
    """Indices of records: to fit on, to choose the statistic on, and those that are attacked."""

    fit: IntArray
    choose: IntArray
    score: IntArray


@dataclass(frozen=True)
class RecordGame:
    """A game on one target.

    Attributes:
        captured: the attacked update where it was captured.
        sets: who may be where.
        shadow: (updates, behind) batches of shadow updates of the records to choose on.
        attacked: (updates, behind) batches that are attacked; none where nobody knows them.
        first: the game on the same target whose look at the model serves this one too.
    """

    options: RecordOptions
    subject: Subject
    target: Target
    captured: CapturedUpdate | None
    sets: RecordSets
    shadow: IntArray
    attacked: IntArray
    first: RecordGame | None = None

    @classmethod
    def of(cls, options: RecordOptions, subject: Subject) -> RecordGame:
        """Make a game: split the records into sets, and draw batches.

        Raises:
            NotApplicable: there are too few records, or none is named to look for in a captured
                update.
            UsageError: an option is wrong for them.
            CheckpointError: a captured update is refused.
        """
        target, captured, behind = subject.target, None, options.records_behind
        if options.update is not None:
            captured = captured_update(options.update, target, options.rate)
            target = captured.target
            if not captured.length_known:
                raise UsageError(
                    f"--update {options.update}: without the learning rate the update's length is "
                    "unknown; give --rate"
                )
        _expect_batch(options, behind)
        sets = sets_of(subject, options, fitted=_fitted(options, subject))
        shadow = batches_of(sets.choose, options.updates, behind, subject.seed, "shadow")
        attacked = batches_of(sets.score, options.updates, behind, subject.seed, "attacked")
        if options.records or captured:
            attacked = np.array([options.records] if options.records else [], dtype=np.int64)
            attacked = attacked.reshape(-1, behind)
        return cls(options, subject, target, captured, sets, shadow, attacked)

    def repeated(self, count: int) -> list[RecordGame]:
        """Make so many games of other attackers; of other batches where none is given.

        A captured update that nobody knows the records of has one game, which scores nothing.
        """
        seeds = [number(self.subject.seed, "record", "game", i) for i in range(1, count)]
        subjects = [replace(self.subject, seed=seed) for seed in seeds if len(self.attacked)]
        others = [RecordGame.of(self.options, subject) for subject in subjects]
        return [self, *(replace(game, first=self) for game in others)]

    @cached_property
    def sharing(self) -> SharingProtocol:
        """Describe how clients make their updates."""
        return self.options.sharing(self.subject.defenses, self.subject.hidden)

    @cached_property
    def facts(self) -> dict[str, JsonValue]:
        """Facts about the attacker's knowledge and records, for the report."""
        sets = self.sets
        facts: dict[str, JsonValue] = {
            "batch_size": self.options.batch_size,
            "knowledge": "model, candidates with their labels, other records; "
            + self.sharing.knowledge(self.options.records_behind),
            "shadow_records": len(sets.fit) + len(sets.choose),
            "candidates": len(sets.score),
        }
        if self.captured is not None:
            facts["update"] = self.captured.details
        return facts

    @property
    def dependence(self) -> RepeatedGames:
        """Count the records that games on other splits have in common."""
        total = min(self.subject.samples or len(self.subject.records), len(self.subject.records))
        largest = max(len(self.sets.fit), len(self.sets.choose), len(self.sets.score))
        redrawn = self.captured is None and not self.options.records
        return RepeatedGames(largest, max(total - largest, 1), redrawn)

    @property
    def linear(self) -> bool:
        """Whether updates are means of records' gradients, but for clipping and noise."""
        return _linear(self.options, self.subject)

    @cached_property
    def candidates(self) -> IntArray:
        """(candidates,) indices of the records that are asked about anywhere, ascending."""
        return np.union1d(self.sets.choose, self.sets.score)

    @cached_property
    def pairs(self) -> CandidatePairs:
        """CandidatePairs of an attacked update and a record, by their numbers."""
        pool, same = self.sets.score, alike(self.subject.records)
        return pairs_of(self.attacked, pool, same, self.options.candidates, self.subject.seed)

    @cached_property
    def placed(self) -> Placed:
        """Locate all pairs by rows of candidates and columns of updates."""
        most, seed, same = self.options.candidates, self.subject.seed, alike(self.subject.records)
        shadow = pairs_of(self.shadow, self.sets.choose, same, most, number(seed, "shadow"))
        members = np.zeros((len(self.candidates), len(self.shadow)), dtype=bool)
        inside = np.isin(same[self.candidates][:, None], same[self.shadow].ravel())
        for column, batch in enumerate(self.shadow if inside.any() else ()):
            members[:, column] = np.isin(same[self.candidates], same[batch])
        count = len(self.shadow)
        weighted = self._plain.weights(torch.from_numpy(self.candidates[:2])) is not None
        known = self.linear and not weighted
        return Placed(
            self._rows(shadow, 0),
            self._rows(self.pairs, count),
            count,
            members,
            1 / self.options.records_behind if known else None,
        )

    def products(self) -> Iterator[tuple[Layer, InnerProducts, Tensor]]:
        """Every layer's inner products, and updates, the shadow ones first: (updates, elements)."""
        updates = self._interceptor.features(
            self._batches[:, 0],
            seed=number(self.subject.seed, "record", "updates"),
            others=self._batches[:, 1:] if self.sharing.others else None,
        )
        gradients = self._gradients()
        fitted = len(self.sets.fit)
        for (layer, rows), (_, records) in zip(updates, gradients, strict=True):
            own, candidates = records[:fitted], records[fitted:]
            first = len(rows) - len(self.shadow) - self._formed
            shadow = own if self.linear else rows[:first]
            seen = (
                rows[first:] if self.captured is None else self._with_captured(rows[first:], layer)
            )
            yield layer, InnerProducts.of(shadow, candidates, seen, own.double().mean(dim=0)), seen

    @property
    def _formed(self) -> int:
        return 0 if self.captured is not None else len(self.attacked)

    def _with_captured(self, rows: Tensor, layer: Layer) -> Tensor:
        assert self.captured is not None
        parts = [self.captured.update[name].flatten() for name in layer.parameter_names]
        columns = self._interceptor.visibilities[layer.name].columns
        whole = torch.cat(parts).to(rows)
        return torch.cat([rows, (whole if columns is None else whole[columns])[None]])

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Layers whose update is seen."""
        if self.captured is None:
            return self.subject.layers
        held = self.captured.update.keys()
        return tuple(x for x in self.subject.layers if set(x.parameter_names) <= held)

    @cached_property
    def _batches(self) -> IntArray:
        """Batches (updates, clients, k) to fit on, to choose the score on, and to attack."""
        clients, behind = self.sharing.clients, self.options.records_behind
        parts = [self.shadow, *([] if self.captured else [self.attacked])]
        if not self.linear:
            fit = batches_of(self.sets.fit, self.options.updates, behind, self.subject.seed, "fit")
            parts.insert(0, fit)
        return np.concatenate(parts).reshape(-1, clients, behind // clients)

    @cached_property
    def _interceptor(self) -> Interceptor:
        rows = len(self._batches) + len(self.candidates) + len(self.sets.fit)
        fits = self.subject.memory // (4 * _COPIES * rows)
        size = min(max(fits, _FEWEST_ELEMENTS), _MOST_ELEMENTS)
        return Interceptor(
            self.target,
            self.subject.records,
            self.layers,
            sharing=self.sharing,
            reduce=self.options.reduce or f"subset:{size}",
            memory=self.subject.memory,
            seed=self.subject.seed,
            context=self._shared,
        )

    @cached_property
    def _shared(self) -> Context:
        """Compute updates."""
        if self.first is not None:
            return self.first._shared
        records, memory = self.subject.records, self.subject.memory
        return Context(self.target, records, self.sharing, torch.float32, memory)

    @cached_property
    def _plain(self) -> Context:
        """Compute single records' gradients, clipped where a defense clips them."""
        if self.first is not None:
            return self.first._plain
        clipping = tuple(d for d in self.sharing.chain.acting if d.of_records)
        plain = replace(self.sharing, algorithm="fedsgd", others=0, defenses=clipping)
        context = Context(
            self.target, self.subject.records, plain, torch.float32, self.subject.memory
        )
        if context.engine is None:
            raise NotApplicable(f"records have no gradients of their own: {context.note}")
        return context

    def _gradients(self) -> Iterator[tuple[Layer, Tensor]]:
        """Gradients of the records to fit on and of all candidates, (records, elements)."""
        indices = np.concatenate([self.sets.fit, self.candidates])
        seen = self._interceptor.visibilities
        sizes = {name: 4 * len(indices) * each.features for name, each in seen.items()}
        for layers in together(self.layers, lambda x: sizes[x.name], self.subject.memory // 2):
            stream, held = self._plain.record_rows(indices, layers), {}
            for where, layer, rows in stream.pieces(layers):
                part = seen[layer.name].pooled(rows)
                if layer.name not in held:
                    held[layer.name] = part.new_empty(len(indices), part.shape[1], device="cpu")
                held[layer.name][where] = part
            for layer in layers:
                yield layer, held.pop(layer.name)

    def _rows(self, pairs: CandidatePairs, first: int) -> CandidatePairs:
        """Locate pairs by rows of candidates; their updates are columns from ``first`` on."""
        rows = np.searchsorted(self.candidates, pairs.records)
        return CandidatePairs(pairs.updates + first, rows, pairs.inside)


def records_used(options: RecordOptions, subject: Subject) -> tuple[int, int, int]:
    """Count records to fit on, candidates, and the most elements of a layer that are used."""
    sets = sets_of(subject, options, fitted=_fitted(options, subject))
    candidates = len(sets.choose) + len(sets.score)
    size = (options.reduce or f"subset:{_MOST_ELEMENTS}").partition(":")[2]
    return len(sets.fit), candidates, int(size) if size else 1 << 62


def _linear(options: RecordOptions, subject: Subject) -> bool:
    sharing = options.sharing(subject.defenses, subject.hidden)
    acting = sharing.chain.acting
    return sharing.training is None and all(d.of_records or d.additive for d in acting)


def _fitted(options: RecordOptions, subject: Subject) -> int:
    """Choose how many records to fit on; at least two batches where batches are fitted on."""
    least = 0 if _linear(options, subject) else 2 * options.records_behind
    return max(options.shadow, least)


def _expect_batch(options: RecordOptions, behind: int) -> None:
    if options.records and len(options.records) != behind:
        raise UsageError(
            f"--records: names {len(options.records)} records, and {behind} are behind an update "
            "(--batch-size, times --others and one)"
        )
    if options.update is not None and not (options.records or options.given):
        raise NotApplicable("--update: name the records to look for with --given 3,14")
    if (options.reduce or "none").partition(":")[0] not in ("none", "subset"):
        raise UsageError("--reduce: a record is looked for in elements; write none or subset:10000")


def sets_of(subject: Subject, options: RecordOptions, *, fitted: int) -> RecordSets:
    """Split the records; those that are asked about, with their users, are attacked.

    Args:
        subject: whose ``samples`` is the most records that are dealt out.
        options: of the audit.
        fitted: records to fit on.

    Raises:
        UsageError: a record is asked about that the data does not have.
        NotApplicable: there are too few records.
    """
    count, behind = len(subject.records), options.records_behind
    if max((*options.given, *options.records), default=0) >= count:
        wrong = max((*options.given, *options.records))
        raise UsageError(f"record {wrong}: the data has {count} records, counted from 0")
    total = min(subject.samples or count, count)
    fitted = min(fitted, total // 3)
    each = min(2 * behind + options.candidates, (total - fitted) // 2)
    shares = (fitted, each, each, count - fitted - 2 * each)
    draws = sequence(subject.seed, "record", "split")
    fit, choose, score, _ = split(count, subject.records.users, shares, draws)
    asked = np.unique(np.array([*options.given, *options.records], dtype=np.int64))
    own = owners(subject.records.users, count)
    theirs = np.isin(own, own[asked])
    fit, choose = fit[~theirs[fit]], choose[~theirs[choose]]
    sets = RecordSets(fit, choose, np.union1d(score, asked))
    least = min(len(choose), len(score)) - behind
    if least < FEWEST_OUTSIDE or len(fit) < 8:
        needed = 3 * (behind + FEWEST_OUTSIDE)
        raise NotApplicable(
            f"{behind} records behind an update, and as many for the attacker, with "
            f"{FEWEST_OUTSIDE} others beside each take about {needed} records; of {total} that are "
            "looked at there are too few: give more records, or lower --batch-size or --others"
        )
    return sets


def batches_of(pool: IntArray, count: int, behind: int, seed: int, purpose: str) -> IntArray:
    """Batches (count, behind) of different records of a pool, drawn anew for each."""
    draws = rng(seed, "record", "batches", purpose)
    return np.stack([draws.permutation(pool)[:behind] for _ in range(count)])


def pairs_of(
    batches: IntArray, pool: IntArray, alike: IntArray, most: int, seed: int
) -> CandidatePairs:
    """Every record of every batch, and beside each batch at most so many records outside of it.

    Args:
        batches: (updates, behind) indices of records.
        pool: indices of the records that candidates are.
        alike: (records,) numbers; equal ones are of records that nothing tells apart, which are in
            a batch where one of them is.
        most: candidates outside of a batch.
        seed: of their choice.
    """
    draws = rng(seed, "record", "candidates")
    updates, records = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    inside = [np.zeros(0, bool)]
    for update, batch in enumerate(batches):
        outside = draws.permutation(pool[~np.isin(alike[pool], alike[batch])])[:most]
        records.append(np.concatenate([batch, outside]))
        updates.append(np.full(len(records[-1]), update))
        inside.append(np.arange(len(records[-1])) < len(batch))
    return CandidatePairs(np.concatenate(updates), np.concatenate(records), np.concatenate(inside))


def alike(records: Records) -> IntArray:
    """Number records (records,) so that equal inputs and labels have equal numbers."""
    parts = [
        records.inputs.flatten(1),
        records.labels.flatten(1) if records.labels.dim() > 1 else records.labels[:, None],
    ]
    rows = torch.cat([part.double() for part in parts], dim=1).numpy()
    whole = np.ascontiguousarray(rows).view(f"V{rows.shape[1] * rows.itemsize}")[:, 0]
    return np.unique(whole, return_inverse=True)[1].astype(np.int64)
