"""Whole rows from the row spaces of the first two layers' gradients."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from pydantic import JsonValue
from torch import Tensor

from gradaudit.attacks.reconstruction.base import AttackerView
from gradaudit.audits.attack_table.averaged import between_steps, of_several_steps
from gradaudit.audits.attack_table.base import TableAnswer, TableAttack, TableSetting, guessed
from gradaudit.audits.attack_table.peeling import Peeling
from gradaudit.audits.attack_table.polishing import SpanTest, decoys_of, limit_of
from gradaudit.audits.attack_table.structure import TwoLayers, two_layers
from gradaudit.core.randomness import torch_rng
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress

_NAMED = 0.99
"""The certainty of a cell of a row that is named without a certificate."""
_MARGIN = 4
"""Equations beyond the numeric columns' that a test needs (prototype: with fewer, 3 false rows)."""


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
        view, columns = view.in_precision(torch.float64, torch.device("cpu")), setting.columns
        several = view.training is not None and not view.training.gives_gradient(view.batch)
        view = between_steps(view) if several else view
        layers = usable(two_layers(view.model, columns, view.update), view)
        peeling = Peeling.of(view, layers, columns)
        if several:
            return of_several_steps(peeling, setting, progress)
        test = peeling.test()
        _expect_spare(test, view, len(columns.numeric))
        with progress.task("attack table", view.batch) as advance:
            peeling.run(torch_rng(setting.seed, "starts"), setting.patience, advance)
        if peeling.precision.noisy:
            peeling.refine()
        draws = torch_rng(setting.seed, "decoys")
        certificates = Certificates.of(peeling, draws, setting.decoys, setting.batch)
        facts: dict[str, JsonValue] = {
            "ranks": [test.first.rank, test.second.rank if test.second else None],
            "noisy": peeling.precision.noisy,
            "explained": peeling.explained,
        }
        return _answer(peeling, certificates, facts)


def usable(layers: TwoLayers, view: AttackerView) -> TwoLayers:
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


@dataclass(frozen=True)
class Certificates:
    """Certificates of the rows of one update, and what decoys say of their test.

    Attributes:
        certified: (rows,) whether each named row is, round by round.
        limits: (rounds,) the residual below which a row of the round is certified.
        tried: fresh decoys that took the whole test.
        false: those that passed it.
    """

    certified: tuple[bool, ...]
    limits: tuple[float, ...]
    tried: int
    false: int

    @classmethod
    def of(
        cls, peeling: Peeling, generator: torch.Generator, count: int, batch: Tensor | None = None
    ) -> Self:
        """Set limits by decoys in every round, and try others on the rounds' tests.

        Args:
            peeling: the rows that are named.
            generator: of decoys.
            count: fresh decoys that are tried.
            batch: (rows, cells) the truth, that no fresh decoy may be; it plays no part in limits.
        """
        named, certified, limits, tried, false = peeling.named, list[bool](), list[float](), 0, 0
        for done in peeling.rounds:
            limit = limit_of(done.test, done.cells, generator, named)
            share = -(-count // len(peeling.rounds))
            true = named if batch is None else torch.cat([named, batch])
            fresh, after = decoys_of(done.test, done.cells, true, share, generator)
            false += _passing(peeling, done.test, fresh[after < limit])
            tried += len(fresh)
            limits.append(limit)
            blends = not peeling.precision.exact and len(peeling.columns.numeric) > 0
            alone = (done.times == 1) | torch.tensor(not blends)
            explained = peeling.explained or not peeling.precision.noisy
            certified += ((done.residual < limit) & alone & explained).tolist()
        return cls(tuple(certified), tuple(limits), tried, false)


def _passing(peeling: Peeling, test: SpanTest, decoys: Tensor) -> int:
    """How many decoys pass the rest of the test as well."""
    if not len(decoys):
        return 0
    rows, labels, _ = peeling.terms.of(test, decoys)
    if not peeling.precision.noisy:
        return len(set(rows.tolist()))
    passing = [
        peeling.explained and peeling.replaces(decoys[row], label)
        for row, label in zip(rows, labels, strict=True)
    ]
    return sum(passing)


def _answer(
    peeling: Peeling, certificates: Certificates, facts: dict[str, JsonValue]
) -> TableAnswer:
    answer, rounds = guessed(peeling.columns, peeling.batch), peeling.rounds
    if rounds:
        times = torch.cat([done.times.long() for done in rounds])
        count = int(times.sum())
        sure = torch.tensor(certificates.certified).repeat_interleave(times)
        for name in ("cells", "labels", "spread"):
            found = torch.cat([getattr(done, name) for done in rounds])
            getattr(answer, name)[:count] = found.repeat_interleave(times, 0)
        answer.named[:count], answer.certified[:count] = True, sure
        answer.certainty[:count] = torch.where(sure[:, None], 1.0, _NAMED)
    facts |= {
        "complete": peeling.left == 0,
        "searched": peeling.searched,
        **peeling.unnamed(),
        "decoys": certificates.tried,
        "decoys_certified": certificates.false,
        "residual_limits": list(certificates.limits),
    }
    return replace(answer, facts=facts)
