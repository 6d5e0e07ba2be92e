"""Regression trees that are grown all at once, a level at a time.

A tree of some hundred rows is too small a piece of work to pay for a call of its own: a level of
all trees is one step of array operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradaudit.families.base import Features, FloatArray, IntArray

_CELLS = 1 << 16
"""Number of rows times cuts that are tried at a time, so that they fit into the cache."""
_TRIED = 3
"""Cuts that a node tries for each of √columns: with one, it misses the few columns that matter."""
_PATIENCE = 5
"""Levels in a row that divide no node, after which those left are leaves."""
Sums = NDArray[np.float32]


@dataclass(frozen=True)
class Trees:
    """Grown trees; the roots come first, and every right child stands next to the left one.

    Attributes:
        count: how many trees there are.
        columns: (nodes,) what a node looks at; −1 in a leaf.
        cuts: (nodes,): what is larger goes to the right.
        left: (nodes,) the left child.
        values: (nodes, targets) means of the rows that came there.
    """

    count: int
    columns: IntArray
    cuts: Features
    left: IntArray
    values: Sums

    def of_columns(self, places: IntArray) -> Trees:
        """Renumber the columns that the trees look at."""
        return replace(self, columns=np.where(self.columns < 0, -1, places[self.columns]))

    def votes(self, features: Features) -> FloatArray:
        """Mean over trees of the leaves of rows (rows, features), (rows, targets)."""
        rows, width = features.shape
        flat = np.ascontiguousarray(features).reshape(-1)
        begins = np.tile(np.arange(rows) * width, self.count)
        at = np.repeat(np.arange(self.count), rows)
        places = np.arange(len(at))
        while len(places := places[self.columns[at[places]] >= 0]):
            nodes = at[places]
            right = flat[begins[places] + self.columns[nodes]] > self.cuts[nodes]
            at[places] = self.left[nodes] + right
        leaves = self.values[at].reshape(self.count, rows, -1)
        return np.asarray(leaves.mean(axis=0, dtype=np.float64))


def grow_trees(
    columns: Features,
    targets: FloatArray,
    times: IntArray,
    generator: np.random.Generator,
    *,
    halfway: bool = True,
) -> Trees:
    """Grow trees until the rows of a node have the same targets, or the same features.

    A node tries 3√columns cuts, and takes the one that explains most of the targets' variance. A
    cut lies in a random column, between two random rows of the node: so cuts are as dense as rows
    are, and no heavy tail or outlier draws them away. Where these are alike it lies beside the
    value that they share, so that every column which varies in a node can divide it.

    Args:
        columns: (columns, rows), contiguous.
        targets: (rows, targets), each 0 or 1.
        times: (trees, rows) how often a tree sees a row; every tree sees one at least.
        generator: of columns and cuts.
        halfway: cut half way between the two rows, and not just anywhere between.
    """
    growing = _Growing(columns, generator, halfway)
    level = growing.root_level(targets, times)
    idle = 0
    while len(level.nodes) and idle < _PATIENCE:
        cuts = growing.best(level)
        idle = 0 if cuts.divide.any() else idle + 1
        level = growing.divided(level, cuts)
    return growing.trees(len(times))


class _Level(NamedTuple):
    """Nodes whose rows differ in their targets.

    Attributes:
        nodes: (nodes,) their numbers.
        sizes: (nodes,) how many rows each has.
        totals: (1 + targets, nodes) sums over them.
        rows: (entries,) one node's after the other's.
        sums: (1 + targets, entries): how often each was drawn, and as often its targets.
    """

    nodes: IntArray
    sizes: IntArray
    totals: Sums
    rows: IntArray
    sums: Sums

    @classmethod
    def of(cls, nodes: IntArray, sizes: IntArray, rows: IntArray, sums: Sums) -> _Level:
        """A level of nodes, with the totals of their sums."""
        totals = np.add.reduceat(sums, sizes.cumsum() - sizes, axis=1)
        return cls(nodes, sizes, totals, rows, sums)

    @property
    def starts(self) -> IntArray:
        """The position at which each node's rows begin, (nodes,)."""
        return np.asarray(self.sizes.cumsum() - self.sizes)

    def entries(self, nodes: IntArray) -> IntArray:
        """Positions of the rows of some nodes, one node after the other."""
        sizes = self.sizes[nodes]
        before = sizes.cumsum() - sizes
        return np.arange(sizes.sum()) + np.repeat(self.starts[nodes] - before, sizes)

    def means(self) -> Sums:
        """Means of the targets, (nodes, targets)."""
        return np.asarray((self.totals[1:] / self.totals[0]).T)

    def impure(self) -> _Level:
        """The nodes that are worth dividing."""
        often, *of_targets = self.totals
        kept = np.any([(each > 0) & (each < often) for each in of_targets], axis=0)
        entries = np.repeat(kept, self.sizes)
        return _Level(
            self.nodes[kept],
            self.sizes[kept],
            self.totals[:, kept],
            self.rows[entries],
            self.sums[:, entries],
        )


class _Cuts(NamedTuple):
    """The best cut of each node, of those that were tried.

    Attributes:
        divide: (nodes,) whether it leaves rows on both sides.
        columns: (nodes,).
        values: (nodes,).
    """

    divide: NDArray[np.bool_]
    columns: IntArray
    values: Features


_Look = tuple[IntArray, Features, Sums]
"""Nodes, values (nodes, cuts, rows) that are cut, and sums (nodes, rows, 1 + targets) over rows."""


class _Growing:
    """Trees that are still growing."""

    def __init__(self, columns: Features, generator: np.random.Generator, halfway: bool) -> None:
        self._columns, self._generator, self._halfway = columns, generator, halfway
        self._values: list[Sums] = []
        self._inner: list[tuple[IntArray, IntArray, Features, IntArray]] = []
        self._nodes = 0

    def root_level(self, targets: FloatArray, times: IntArray) -> _Level:
        """Make the level of the roots, one root for each tree."""
        trees, rows = np.nonzero(times)
        drawn = times[trees, rows]
        sums = np.vstack([drawn, drawn * targets[rows].T]).astype(np.float32)
        roots = _Level.of(np.arange(len(times)), np.bincount(trees), rows, sums)
        self._values.append(roots.means())
        self._nodes = len(times)
        return roots.impure()

    def best(self, level: _Level) -> _Cuts:
        """Try cuts of every node."""
        tried, nodes = math.isqrt(_TRIED**2 * len(self._columns)), np.arange(len(level.nodes))
        columns = self._generator.integers(len(self._columns), size=(tried, len(nodes)))
        at_once = max(1, _CELLS // len(level.rows))
        starts = range(0, tried, at_once)
        values = np.concatenate(
            [self._between(level, columns[start : start + at_once]) for start in starts]
        )
        gains = _explained(level, self._passed(level, columns.T, values.T))
        chosen = gains.argmax(axis=1)
        return _Cuts(gains[nodes, chosen] > 0, columns[chosen, nodes], values[chosen, nodes])

    def divided(self, level: _Level, cuts: _Cuts) -> _Level:
        """The children, and the nodes that none of their cuts divided."""
        new = self._nodes + np.arange(2 * cuts.divide.sum()).reshape(-1, 2)
        which = cuts.divide
        self._inner.append((level.nodes[which], cuts.columns[which], cuts.values[which], new[:, 0]))
        numbers = np.repeat(level.nodes[:, None], 2, axis=1)
        numbers[cuts.divide] = new
        node = np.repeat(np.arange(len(level.nodes)), level.sizes)
        right = self._columns[cuts.columns[node], level.rows] > cuts.values[node]
        side = 2 * node + right
        sizes, order = np.bincount(side, minlength=numbers.size), np.argsort(side, kind="stable")
        there = sizes > 0
        children = _Level.of(
            numbers.reshape(-1)[there], sizes[there], level.rows[order], level.sums[:, order]
        )
        self._values.append(children.means()[np.repeat(cuts.divide, 2)[there]])
        self._nodes += new.size
        return children.impure()

    def trees(self, count: int) -> Trees:
        """The grown trees."""
        columns = np.full(self._nodes, -1)
        cuts, left = np.zeros(self._nodes, self._columns.dtype), np.zeros(self._nodes, np.int64)
        for nodes, *of_nodes in self._inner:
            columns[nodes], cuts[nodes], left[nodes] = of_nodes
        return Trees(count, columns, cuts, left, np.concatenate(self._values))

    def _passed(self, level: _Level, columns: IntArray, cuts: Features) -> Sums:
        """Sums (nodes, cuts, 1 + targets) over the rows above cuts (nodes, cuts) in columns."""
        passed = np.empty((*columns.shape, len(level.sums)), np.float32)
        for nodes, looked, weights in self._rows_of(level, columns):
            above = looked > cuts[nodes, :, None]
            passed[nodes] = above.astype(np.float32) @ weights
        return passed

    def _rows_of(self, level: _Level, columns: IntArray) -> Iterator[_Look]:
        """Values of the nodes' rows in these columns, nodes of about one size together."""
        rows, nodes = self._columns.shape[1], np.argsort(-level.sizes, kind="stable")
        while len(nodes):
            width = level.sizes[nodes[0]]
            some, nodes = np.split(nodes, [max(1, _CELLS // (width * columns.shape[1]))])
            sizes, place = level.sizes[some, None], np.arange(width)
            entries = level.starts[some, None] + np.minimum(place, sizes - 1)
            weights = np.where((place < sizes)[:, :, None], level.sums.T[entries], 0)
            places = (columns[some] * rows)[:, :, None] + level.rows[entries][:, None]
            yield some, self._columns.reshape(-1).take(places), weights

    def _between(self, level: _Level, columns: IntArray) -> Features:
        """A place in columns (cuts, nodes) between two random rows of each node.

        It is below the larger one, and ∞ where the node's rows are alike.
        """
        starts, sizes = level.starts, level.sizes
        place, further = self._generator.random((2, *columns.shape))
        first = (place * sizes).astype(np.int64)
        second = (further * (sizes - 1)).astype(np.int64)
        second += second >= first
        flat, begins = self._columns.reshape(-1), columns * self._columns.shape[1]
        one = flat.take(begins + level.rows.take(starts + first))
        other = flat.take(begins + level.rows.take(starts + second))
        tied = one == other
        if tied.any():
            other[tied] = self._beside(level, columns, one, tied)
        if self._halfway:
            between = one / 2 + other / 2
        else:
            share = self._generator.random(columns.shape).astype(one.dtype)
            between = (1 - share) * one + share * other
        larger, smaller = np.maximum(one, other), np.minimum(one, other)
        between = np.asarray(np.where(between < larger, between, smaller))
        between[tied & (one == other)] = np.inf
        return between

    def _beside(
        self, level: _Level, columns: IntArray, shared: Features, tied: NDArray[np.bool_]
    ) -> Features:
        """The values next to those (cuts, nodes) that two rows share, of the pairs that are tied.

        That is the next value above or below it in the node, so that a value which most rows
        share, as zero in sparse gradients, is kept from the others; itself where there is none.
        """
        of_cuts = tied.any(axis=1)
        heads = self._generator.random((int(of_cuts.sum()), tied.shape[1])) < 0.5
        nodes, value = tied.nonzero()[1], shared[tied]
        sizes = level.sizes[nodes]
        places = np.repeat(columns[tied] * self._columns.shape[1], sizes)
        places += level.rows[level.entries(nodes)]
        looked, alike = self._columns.reshape(-1).take(places), np.repeat(value, sizes)
        begins = sizes.cumsum() - sizes
        above = np.minimum.reduceat(np.where(looked > alike, looked, np.inf), begins)
        below = np.maximum.reduceat(np.where(looked < alike, looked, -np.inf), begins)
        up = (heads[tied[of_cuts]] | np.isinf(below)) & np.isfinite(above)
        return np.where(up, above, np.where(np.isinf(below), value, below))


def _explained(level: _Level, passed: Sums) -> Sums:
    """Compute how much of the targets' squares each cut explains, (nodes, cuts)."""
    often, *of_targets = np.moveaxis(passed, 2, 0)
    everywhere, *totals = level.totals[:, :, None]
    rest, gains = everywhere - often, np.zeros_like(often)
    with np.errstate(divide="ignore", invalid="ignore"):
        for above, total in zip(of_targets, totals, strict=True):
            gains += above**2 / often + (total - above) ** 2 / rest
    return np.where((often > 0) & (rest > 0), gains, 0)
