"""Whole rows from the row spaces of the first two layers' gradients."""

import torch
from pydantic import JsonValue

from gradaudit.attacks.reconstruction.base import AttackerView
from gradaudit.audits.attack_table.base import TableAnswer, TableAttack, TableSetting, best_guess
from gradaudit.audits.attack_table.certificate import Certificates
from gradaudit.audits.attack_table.peeling import Peeling
from gradaudit.audits.attack_table.spans import RowSpace
from gradaudit.audits.attack_table.structure import TwoLayers, two_layers
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress
from gradaudit.randomness import torch_rng

_NAMED = 0.99
"""The certainty of a cell of a row that is named without a certificate."""
_MARGIN = 4
"""Equations beyond the numeric columns' that a test needs (prototype: with fewer, 3 false rows)."""


class RowSpaceAttack(TableAttack):
    """Test each record alone against the row spaces of both layers' gradients, and peel.

    [x; 1] lies in the row space of [dW₁ | db₁] and [φ(W₁x + b₁); 1] in that of [dW₂ | db₂]
    (Petrov et al. 2024, DAGER, theorem 3.1, for the span check); one-hot columns make the search
    for such x a least-squares problem in few unknowns, and rank-one updates tell labels.
    """

    name = "row-space"
    summary = "Whole rows, tested alone against the row spaces of the first two layers' gradients."

    def run(self, view: AttackerView, setting: TableSetting, progress: Progress) -> TableAnswer:
        """Search, certify, and guess what is not named."""
        view = view.in_precision(torch.float64, torch.device("cpu"))
        columns = setting.columns
        layers = two_layers(view.model, columns, frozenset(view.update))
        if layers.second is None:
            raise NotApplicable(layers.why_alone)
        peeling = Peeling.of(view, layers, columns)
        test = peeling.test()
        assert test.second is not None
        _expect_spare(test.second, layers, view, len(columns.numeric))
        with progress.task("attack table", view.batch) as advance:
            peeling.run(torch_rng(setting.seed, "starts"), setting.patience, advance)
        certificates = Certificates.of(peeling, torch_rng(setting.seed, "decoys"), setting.decoys)
        facts: dict[str, JsonValue] = {
            "ranks": [test.first.rank, test.second.rank],
            "noisy": peeling.precision.noisy,
        }
        return _answer(peeling, certificates, facts)


def _expect_spare(space: RowSpace, layers: TwoLayers, view: AttackerView, numbers: int) -> None:
    """Refuse a second layer whose span fills what its inputs and outputs leave it.

    Raises:
        NotApplicable: so it is.
    """
    weight = view.update[str(layers.second)]
    outputs, inputs = (int((weight != 0).any(dim=side).sum()) for side in (1, 0))
    spare, needed = inputs + 1 - space.rank, numbers + _MARGIN
    if spare < needed:
        raise NotApplicable(
            f"{view.batch} rows leave {spare} of the {inputs + 1} dimensions free in which "
            f"{layers.second} has a gradient, and a test of a row takes {needed}; attack smaller "
            "batches, or try --method tableak"
        )
    if space.rank >= outputs and view.batch > outputs:
        raise NotApplicable(
            f"{view.batch} rows share {outputs} outputs of {layers.second} that have a gradient, "
            "so that its span does not hold them all; attack smaller batches, or try "
            "--method tableak"
        )


def _answer(
    peeling: Peeling, certificates: Certificates, facts: dict[str, JsonValue]
) -> TableAnswer:
    columns, batch = peeling.columns, peeling.batch
    cells, certainty = best_guess(columns, batch)
    labels = torch.full((batch,), torch.nan, dtype=torch.float64)
    named = torch.arange(batch) < batch - peeling.left
    certified = torch.zeros(batch, dtype=torch.bool)
    spread = torch.full((batch, len(columns.numeric)), torch.nan, dtype=torch.float64)
    place, sure = 0, iter(certificates.certified)
    for done in peeling.rounds:
        times = done.times.long()
        here = slice(place, place + int(times.sum()))
        cells[here] = done.cells.repeat_interleave(times, 0)
        labels[here] = done.labels.repeat_interleave(times).double()
        spread[here] = done.spread.repeat_interleave(times, 0)
        proved = torch.tensor([next(sure) for _ in times])
        certified[here] = proved.repeat_interleave(times)
        certainty[here] = torch.where(certified[here, None], 1.0, _NAMED)
        place = here.stop
    facts |= {
        "complete": peeling.left == 0,
        "searched": peeling.searched,
        **certificates.facts(),
    }
    return TableAnswer(cells, labels, certainty, named, certified, spread, facts)
