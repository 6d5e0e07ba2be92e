"""Whole rows from the row spaces of the first two layers' gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from pydantic import JsonValue

from gradaudit.audits.attack_table.averaged import LocalRows, between_steps
from gradaudit.audits.attack_table.base import TableAnswer, TableAttack, TableSetting, guessed
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.peeling import Peeling
from gradaudit.audits.attack_table.spans import SpanTest, decoys_of, limit_of
from gradaudit.audits.attack_table.structure import TwoLayers, two_layers
from gradaudit.audits.attack_table.terms import is_gradient
from gradaudit.core.randomness import torch_rng
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress

if TYPE_CHECKING:
    from gradaudit.attacks.reconstruction.base import AttackerView


_NAMED = 0.99
"""The certainty of a cell of a row that is named without a certificate."""
_MARGIN = 4
"""Equations beyond the numeric columns' that a test needs (prototype: with fewer, 3 false rows)."""
_DECOYS = 256
"""Fresh decoys that take the whole test."""


class RowSpaceAttack(TableAttack):
    """Test each record alone against the row spaces of both layers' gradients, and peel.

    [x; 1] lies in the row space of [dW₁ | db₁] and [φ(W₁x + b₁); 1] in that of [dW₂ | db₂]
    (Petrov et al. 2024, DAGER, theorem 3.1, for the span check); one-hot columns make the search
    for such x a least-squares problem in few unknowns, and rank-one updates name labels.
    """

    name = "row-space"
    summary = "Whole rows, tested alone against the row spaces of the first two layers' gradients."

    def run(self, view: AttackerView, setting: TableSetting, progress: Progress) -> TableAnswer:
        """Search, certify, and guess what is not named."""
        seen = view.in_precision(torch.float64, torch.device("cpu"))
        draws = torch_rng(setting.seed, "starts")
        peeling, test, local = _begun(seen, setting.columns, draws)
        with progress.task("attack table", seen.batch) as advance:
            if local is None:
                peeling.run(draws, advance)
            else:
                peeling.rounds = local.found(seen, advance)
        return _answer(peeling, test, *_certified(peeling, setting))


def _begun(
    view: AttackerView, columns: TableColumns, draws: torch.Generator
) -> tuple[Peeling, SpanTest, LocalRows | None]:
    """The whole update, its spans, and what finds rows behind several local steps.

    Raises:
        NotApplicable: the spans say nothing.
    """
    at = view if is_gradient(view) else between_steps(view)
    layers = _usable(two_layers(at.model, columns, view.update), view)
    peeling = Peeling.of(at, layers, columns)
    test = peeling.test()
    if not is_gradient(view):
        return peeling, test, LocalRows.of(peeling, draws)
    _expect_spare(test, view, len(columns.numeric))
    return peeling, test, None


def _usable(layers: TwoLayers, view: AttackerView) -> TwoLayers:
    """The layers without a second whose outputs that learn are too few for a span of all rows."""
    if layers.second is None:
        return layers
    outputs = int((view.update[layers.second] != 0).any(dim=1).sum())
    if outputs > view.batch:
        return layers
    why = f"{layers.second} has {outputs} outputs with a gradient for {view.batch} rows"
    return replace(layers, second=None, why_alone=why)


def _expect_spare(test: SpanTest, view: AttackerView, numbers: int) -> None:
    """Refuse spans that fill the space in which rows are tested.

    Raises:
        NotApplicable: they do.
    """
    layers = test.layers
    if test.second is None:
        if test.first.rank < view.batch:
            raise NotApplicable(
                f"the span of {layers.first} has {test.first.rank} dimensions for {view.batch} "
                f"rows, and {layers.why_alone}; attack smaller batches, or try --method tableak"
            )
        return
    inputs = int((view.update[str(layers.second)] != 0).any(dim=0).sum())
    spare, needed = inputs + 1 - test.second.rank, numbers + _MARGIN
    if spare < needed:
        raise NotApplicable(
            f"{view.batch} rows leave {spare} of the {inputs + 1} dimensions free in which "
            f"{layers.second} has a gradient, and a test of a row takes {needed}; attack smaller "
            "batches, or try --method tableak"
        )


def _certified(peeling: Peeling, setting: TableSetting) -> tuple[list[bool], dict[str, JsonValue]]:
    """Whether each named row is certified, and what fresh decoys say of the test.

    Limits are set by decoys of each round's spans; the truth plays no part in them. Behind noise no
    row is certified.
    """
    named = peeling.named
    if peeling.precision.noisy:
        return [False] * len(named), {}
    generator = torch_rng(setting.seed, "decoys")
    true = named if setting.batch is None else torch.cat([named, setting.batch])
    blends = not peeling.precision.exact and len(peeling.columns.numeric) > 0
    certified, limits, false, tried = list[bool](), list[JsonValue](), 0, 0
    for done in peeling.rounds:
        limit = limit_of(done.test, done.cells, generator, named)
        share = -(-_DECOYS // len(peeling.rounds))
        fresh, after = decoys_of(done.test, done.cells, true, share, generator)
        false += peeling.passing(done.test, fresh[after < limit])
        tried += len(fresh)
        limits.append(limit)
        certified += ((done.residual < limit) & ((done.times == 1) | (not blends))).tolist()
    facts: dict[str, JsonValue] = {"decoys": tried, "decoys_certified": false}
    return certified, {**facts, "residual_limits": limits}


def _answer(
    peeling: Peeling, test: SpanTest, certified: list[bool], decoys: dict[str, JsonValue]
) -> TableAnswer:
    facts: dict[str, JsonValue] = {
        "ranks": [test.first.rank, test.second.rank if test.second else None],
        "noisy": peeling.precision.noisy,
        "complete": peeling.left == 0,
        "searched": peeling.searched,
        **peeling.unnamed(),
        **decoys,
    }
    answer = guessed(peeling.columns, peeling.batch)
    if peeling.rounds:
        times = peeling.all_of("times").long()
        count, sure = int(times.sum()), torch.tensor(certified).repeat_interleave(times)
        for name in ("cells", "labels", "spread"):
            getattr(answer, name)[:count] = peeling.all_of(name).repeat_interleave(times, 0)
        answer.named[:count], answer.certified[:count] = True, sure
        answer.certainty[:count] = torch.where(sure[:, None], 1.0, _NAMED)
    return replace(answer, facts=facts)
