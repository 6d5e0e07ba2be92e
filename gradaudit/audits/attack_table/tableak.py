"""Cells of a table by optimisation, pooled over an ensemble, each with a calibrated certainty."""

from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.optimize import isotonic_regression, linear_sum_assignment
from torch import Tensor

from gradaudit.attacks.reconstruction.base import AttackerView, Update
from gradaudit.attacks.reconstruction.matching.replay import ReplayedEvaluation
from gradaudit.audits.attack_table.base import TableAnswer, TableAttack, TableSetting
from gradaudit.audits.attack_table.columns import TableColumns
from gradaudit.audits.attack_table.scores import right_cells
from gradaudit.progress import Progress
from gradaudit.randomness import torch_rng

_RATE = 0.06
_BETAS = 0.9, 0.999
_TINY = 1e-8
_EVERY = 50
"""Steps between two words on the progress."""


class TabLeak(TableAttack):
    """Optimise relaxed rows until their gradient is the one that was shared; pool an ensemble.

    A categorical column is the softmax of free numbers, which makes it continuous; the cosine
    distance of gradients is minimised by Adam (rate .06) from several starts; the results are
    matched with the best by an optimal assignment, categories averaged and numbers replaced by the
    median (Vero et al. 2023, sections 4.1 and 4.2). Categories that no weight of the first layer
    moved for are ruled out, which the paper does not do. The certainty of a cell is 1 − entropy
    over its largest, or the spread over the ensemble (section 4.3), turned into a probability by
    the same attack on an update of the attacker's own records (isotonic regression).
    """

    name = "tableak"
    summary = "Cells by matching gradients, pooled over an ensemble (Vero et al. 2023)."

    def run(self, view: AttackerView, setting: TableSetting, progress: Progress) -> TableAnswer:
        """Optimise, pool, and calibrate on an update of the attacker's own records.

        Raises:
            NotApplicable: columns are of codes.
        """
        columns, count = setting.columns, setting.ensemble
        view = view.in_precision(torch.float32, torch.device("cpu"))
        draws = torch_rng(setting.seed, "tableak")
        own = own_batch(view, columns, draws)
        matching = Matching(view, columns, (view.update, own.update), count)
        points = matching.minimised(matching.starts(draws), setting.steps, progress)
        cells, losses = matching.relaxed(points), matching.losses(points)
        labels = matching.named_labels(points)
        pooled = [
            pool(columns, cells[part], labels[part], losses[part])
            for part in (slice(0, count), slice(count, 2 * count))
        ]
        certainty = calibrated(columns, pooled[1], own.cells, pooled[0], setting.tolerance)
        nothing = torch.zeros(view.batch, dtype=torch.bool)
        spread = torch.full((view.batch, len(columns.numeric)), torch.nan).double()
        facts = {"ensemble": count, "steps": setting.steps, "loss": float(losses[:count].min())}
        rounded = columns.rounded(pooled[0].cells)
        return TableAnswer(
            rounded, pooled[0].labels, certainty, nothing, nothing, spread, dict(facts)
        )


@dataclass(frozen=True)
class OwnBatch:
    """Records of the attacker's own and the update that they would have caused."""

    cells: Tensor
    update: Update


def own_batch(view: AttackerView, columns: TableColumns, draws: torch.Generator) -> OwnBatch:
    """As many of the attacker's records as are behind the update, with labels that the model gives.

    His records have no labels; each is drawn from the model's own probabilities, or is the output
    of a regression with a unit of noise.
    """
    rows = torch.randint(len(columns.known), (view.batch,), generator=draws)
    cells = columns.known[rows]
    inputs = view.model.cast(columns.inputs(cells))
    outputs = view.model.outputs({}, inputs).detach()
    if view.labels is not None:
        labels = view.labels
    elif not view.classes:
        labels = outputs + torch.randn(outputs.shape, generator=draws).to(outputs)
    elif outputs[0].numel() == 1:
        labels = torch.bernoulli(outputs.sigmoid().flatten(), generator=draws).long()
    else:
        labels = torch.multinomial(outputs.softmax(dim=1), 1, generator=draws)[:, 0]
    return OwnBatch(cells, {n: g.detach() for n, g in view.simulated(inputs, labels).items()})


@dataclass(frozen=True)
class Matching:
    """The distance of gradients over points, each a relaxed batch of rows and their labels.

    Attributes:
        view: of the update, in the precision of the computation.
        columns: of the table.
        updates: that are matched, as many points each.
        count: points of an update.
    """

    view: AttackerView
    columns: TableColumns
    updates: tuple[Update, ...]
    count: int

    def starts(self, draws: torch.Generator) -> Tensor:
        """(points, unknowns) normal numbers; those of free labels are small."""
        size = self.view.batch * (self.columns.cells_in_all + self._per_label)
        points = torch.randn(len(self.updates) * self.count, size, generator=draws)
        points[:, self.view.batch * self.columns.cells_in_all :] *= 0.1
        return points

    def minimised(self, points: Tensor, steps: int, progress: Progress) -> Tensor:
        """The points after so many steps of Adam."""
        evaluate = ReplayedEvaluation(self._evaluated)
        first, second = torch.zeros_like(points), torch.zeros_like(points)
        with progress.task("tableak", steps) as advance:
            for step in range(1, steps + 1):
                gradient = evaluate(points)[1].nan_to_num(0.0)
                first = _BETAS[0] * first + (1 - _BETAS[0]) * gradient
                second = _BETAS[1] * second + (1 - _BETAS[1]) * gradient.square()
                size = (second / (1 - _BETAS[1] ** step)).sqrt() + _TINY
                points = points - _RATE * first / (1 - _BETAS[0] ** step) / size
                if step % _EVERY == 0:
                    advance(_EVERY)
        return points

    def losses(self, points: Tensor) -> Tensor:
        """1 − cosine of each point's gradient and the update, (points,)."""
        return self._evaluated(points)[0]

    def relaxed(self, points: Tensor) -> Tensor:
        """Cells, (points, rows, cells), float64; categories add up to one."""
        split = self.view.batch * self.columns.cells_in_all
        rows = points[:, :split].reshape(len(points), self.view.batch, -1)
        updates = torch.arange(len(points)) // self.count
        return torch.stack(
            [self._softened(row, self._absent[u]) for row, u in zip(rows, updates, strict=True)]
        ).double()

    def named_labels(self, points: Tensor) -> Tensor:
        """(points, rows) classes or targets; known ones where they are."""
        if self.view.labels is not None:
            return self.view.labels.double().expand(len(points), -1)
        free = self._label_part(points)
        if self._per_label > 1:
            return free.argmax(dim=2).double()
        return (free[:, :, 0] > 0).double() if self.view.classes else free[:, :, 0].double()

    @property
    def _per_label(self) -> int:
        return 0 if self.view.labels is not None else max(1, self.view.classes)

    def _label_part(self, points: Tensor) -> Tensor:
        split = self.view.batch * self.columns.cells_in_all
        return points[..., split:].reshape(*points.shape[:-1], self.view.batch, -1)

    @cached_property
    def _map(self) -> tuple[Tensor, Tensor]:
        matrix, offset = self.columns.linear
        return self.view.model.cast(matrix), self.view.model.cast(offset)

    @cached_property
    def _absent(self) -> Tensor:
        """(updates, cells) minus infinity for categories that no row of an update has."""
        first = next((g for g in self.updates[0] if g.endswith("weight")), None)
        masks = []
        for update in self.updates:
            mask = torch.zeros(self.columns.cells_in_all)
            weight = None if first is None else update[first]
            if weight is not None and weight.dim() == 2 and weight.shape[1] == len(self._map[1]):
                still = (self._map[0] != 0).to(weight) @ (weight != 0).any(dim=0).to(weight) == 0
                for group in self.columns.groups:
                    if not bool(still[group].all()):
                        mask[group[still[group]]] = -1e4
            masks.append(mask)
        return torch.stack(masks)

    def _softened(self, rows: Tensor, absent: Tensor) -> Tensor:
        """Free numbers of rows (rows, cells) as cells."""
        scores = rows + absent
        parts = []
        for feature, (start, stop) in self.columns.placed:
            block = scores[:, start:stop]
            parts.append(block.softmax(dim=1) if feature.values else block)
        return torch.cat(parts, dim=1)

    def _evaluated(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Distances (points,) and their gradients."""
        which = torch.arange(len(points)) // self.count
        shared = {n: torch.stack([u[n] for u in self.updates])[which] for n in self.updates[0]}
        made = torch.func.vmap(torch.func.grad_and_value(self._distance))
        gradients, values = made(points, shared, self._absent[which])
        return values, gradients

    def _distance(self, point: Tensor, shared: Update, absent: Tensor) -> Tensor:
        view = self.view
        split = view.batch * self.columns.cells_in_all
        cells = self._softened(point[:split].reshape(view.batch, -1), absent)
        inputs = (cells @ self._map[0] + self._map[1]).reshape(view.batch, *view.shape)
        update = view.simulated(inputs, self._targets(point))
        dot = sum((update[n] * shared[n]).sum() for n in update)
        one = sum(update[n].square().sum() for n in update)
        other = sum(shared[n].square().sum() for n in update)
        return 1 - dot / (one * other + 1e-30) ** 0.5

    def _targets(self, point: Tensor) -> Tensor:
        if self.view.labels is not None:
            return self.view.labels
        free = self._label_part(point)
        if self._per_label > 1:
            return free.softmax(dim=1)
        return free.sigmoid() if self.view.classes else free


@dataclass(frozen=True)
class Pooled:
    """An ensemble's answer.

    Attributes:
        cells: (rows, cells) means of categories and medians of numbers.
        labels: (rows,) by the most.
        scores: (rows, columns) how much the ensemble agrees, higher is surer.
    """

    cells: Tensor
    labels: Tensor
    scores: Tensor


def pool(columns: TableColumns, cells: Tensor, labels: Tensor, losses: Tensor) -> Pooled:
    """Match the members of an ensemble with the best, and pool them (Vero et al. 2023, 4.2).

    Args:
        columns: of the table.
        cells: (members, rows, cells).
        labels: (members, rows).
        losses: (members,).
    """
    best = cells[int(losses.argmin())]
    orders = [_order(best, member) for member in cells]
    cells = torch.stack([m[o] for m, o in zip(cells, orders, strict=True)])
    labels = torch.stack([m[o] for m, o in zip(labels, orders, strict=True)])
    pooled, scores = best.clone(), []
    for feature, (start, stop) in columns.placed:
        block = cells[:, :, start:stop]
        if feature.values:
            mean = block.mean(dim=0)
            pooled[:, start:stop] = mean
            entropy = torch.special.entr(mean).sum(dim=1)
            scores.append(1 - entropy / max(float(torch.tensor(stop - start).log()), 1e-9))
        else:
            pooled[:, start:stop] = block.median(dim=0).values
            scores.append(-block[:, :, 0].std(dim=0, correction=0))
    return Pooled(pooled, labels.mode(dim=0).values, torch.stack(scores, dim=1))


def _order(best: Tensor, member: Tensor) -> Tensor:
    distance = torch.cdist(best, member).square()
    return torch.from_numpy(linear_sum_assignment(distance.numpy())[1])


def calibrated(
    columns: TableColumns, own: Pooled, truth: Tensor, answer: Pooled, tolerance: float
) -> Tensor:
    """The probability that each cell of an answer is right, (rows, columns).

    Categories and numbers each have a rising function of how much the ensemble agrees, fitted to
    the answer for the attacker's own records.

    Args:
        columns: of the table.
        own: the answer for the attacker's records.
        truth: (rows, cells) those records.
        answer: whose certainty is asked for.
        tolerance: deviations by which a number may be off.
    """
    hits = right_cells(columns, columns.rounded(own.cells), truth, tolerance)
    rows, matched = linear_sum_assignment(-hits.double().sum(dim=2).numpy())
    right = hits[torch.from_numpy(rows), torch.from_numpy(matched)].double()
    certainty = torch.empty_like(answer.scores)
    kinds = torch.tensor([bool(feature.values) for feature in columns.features])
    for kind in (kinds, ~kinds):
        if bool(kind.any()):
            fitted = _rising(own.scores[:, kind], right[:, kind])
            certainty[:, kind] = _looked_up(*fitted, answer.scores[:, kind])
    return certainty


def _rising(scores: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Scores in order, and the isotonic share of right ones at each."""
    order = scores.flatten().argsort()
    fit = isotonic_regression(right.flatten()[order].numpy()).x
    return scores.flatten()[order], torch.from_numpy(fit)


def _looked_up(scores: Tensor, shares: Tensor, asked: Tensor) -> Tensor:
    places = torch.searchsorted(scores, asked.contiguous()).clamp(max=len(scores) - 1)
    return shares[places]
