"""Whole rows from the row spaces of the first two layers' gradients."""

from dataclasses import replace

import torch
from pydantic import JsonValue

from gradaudit.attacks.reconstruction.base import AttackerView
from gradaudit.audits.attack_table.averaged import ranked_rows
from gradaudit.audits.attack_table.base import TableAnswer, TableAttack, TableSetting, guessed
from gradaudit.audits.attack_table.certificate import Certificates
from gradaudit.audits.attack_table.peeling import Peeling
from gradaudit.audits.attack_table.polishing import SpanTest
from gradaudit.audits.attack_table.spans import GradientRowSpace, Precision
from gradaudit.audits.attack_table.structure import TwoLayers, two_layers
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress
from gradaudit.randomness import torch_rng
from gradaudit.sharing.protocol import LocalTraining

_NAMED = 0.99
"""The certainty of a cell of a row that is named without a certificate."""
_LIKELY = 0.9
"""The certainty of a cell of a row that is ranked and not tested."""
_ROUNDS = 48
_EXACT, _ROUNDED = 1e-8, 1e-3
"""Residuals at the first layer up to which a row is in its span."""
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
        if view.training is not None and not view.training.gives_gradient(view.batch):
            view = between_steps(view, view.training)
            layers = usable(two_layers(view.model, columns, view.update), view)
            return _of_steps(Peeling.of(view, layers, columns), setting, progress)
        layers = usable(two_layers(view.model, columns, view.update), view)
        peeling = Peeling.of(view, layers, columns)
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


def between_steps(view: AttackerView, training: LocalTraining) -> AttackerView:
    """The view with a model whose weights are the mean of those at which gradients were computed.

    The second layer's inputs at these weights are the mean over local steps to the first order.
    """
    steps = len(training.batches(view.batch))
    share = training.rate * (steps - 1) / (2 * steps)
    parameters = {
        name: weight - share * view.update[name] if name in view.update else weight
        for name, weight in view.model.parameters.items()
    }
    return replace(view, model=replace(view.model, parameters=parameters))


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
    """Refuse spans that fill what they could be told from.

    Raises:
        NotApplicable: so it is.
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


def _of_steps(peeling: Peeling, setting: TableSetting, progress: Progress) -> TableAnswer:
    """The answer for an update of several local steps, of which nothing is certified."""
    columns, batch, layers = peeling.columns, peeling.batch, peeling.layers
    one, two = layers.matrices(peeling.update)
    precision = Precision.of(peeling.update, (one, None), batch)
    first, second = GradientRowSpace.of(one, precision.edges[0]), None
    if first.rank < batch:
        raise NotApplicable(
            f"the span of {layers.first} has {first.rank} dimensions for {batch} rows of several "
            "local steps; attack smaller batches, or try --method tableak"
        )
    if two is not None:
        values = torch.linalg.svdvals(two)
        second = GradientRowSpace.of(two, float(values[min(batch, len(values) - 1)]))
    with progress.task("attack table", _ROUNDS) as advance:
        generator = torch_rng(setting.seed, "starts")
        accept = _EXACT if precision.exact else _ROUNDED
        spaces = first, second
        found = ranked_rows(
            layers, columns, peeling.labels, spaces, accept, batch, _ROUNDS, generator, advance
        )
    answer = guessed(columns, batch)
    count = len(found.cells)
    answer.cells[:count], answer.labels[:count] = found.cells, found.labels
    answer.named[:count], answer.certainty[:count] = True, _LIKELY
    facts: dict[str, JsonValue] = {"ranks": [first.rank, None], "misfit": found.misfit.tolist()}
    return replace(answer, facts=facts)


def _answer(
    peeling: Peeling, certificates: Certificates, facts: dict[str, JsonValue]
) -> TableAnswer:
    answer = guessed(peeling.columns, peeling.batch)
    answer.named[: peeling.batch - peeling.left] = True
    place, sure = 0, iter(certificates.certified)
    for done in peeling.rounds:
        times = done.times.long()
        here = slice(place, place + int(times.sum()))
        answer.cells[here] = done.cells.repeat_interleave(times, 0)
        answer.labels[here] = done.labels.repeat_interleave(times).double()
        answer.spread[here] = done.spread.repeat_interleave(times, 0)
        proved = torch.tensor([next(sure) for _ in times])
        answer.certified[here] = proved.repeat_interleave(times)
        answer.certainty[here] = torch.where(answer.certified[here, None], 1.0, _NAMED)
        place = here.stop
    facts |= {
        "complete": peeling.left == 0,
        "searched": peeling.searched,
        **peeling.unnamed(),
        **certificates.facts(),
    }
    return replace(answer, facts=facts)
