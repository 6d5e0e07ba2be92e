"""Regression trees that are grown all at once, a level at a time.

A tree of some hundred rows is too small a piece of work to pay for a call of its own: a level of
all trees is one step of array operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradaudit.families.base import Features, FloatArray, IntArray

_CELLS = 1 << 16
"""Rows times cuts that are tried at a time, so that they stay in the cache."""
_TRIED = 3
"""Cuts that a node tries for each of √columns: with one, it misses what few of many tell."""
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
        """The same trees where the columns stand at these places."""
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


def grown(
    columns: Features,
    targets: FloatArray,
    times: IntArray,
    generator: np.random.Generator,
    *,
    halfway: bool = True,
) -> Trees:
    """Grow trees until the rows of a node have the same targets, or cannot be told apart.

    A node tries 3√columns cuts, and takes the one that explains most of the targets' variance. A
    cut lies in a random column, between two random rows of the node: so cuts are as dense as rows
    are, and no heavy tail or outlier draws them away. Where these are alike it lies beside the
    value that they share, so that every column which varies in a node can divide it.

    Args:
        columns: (columns, rows), contiguous.
        targets: (rows, targets) in [0, 1].
        times: (trees, rows) how often a tree sees a row; every tree sees one at least.
        generator: of columns and cuts.
        halfway: cut half way between the two rows, and not just anywhere between.
    """
    growing = _Growing(columns, generator, halfway)
    level = growing.sown(targets, times)
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
        """With the totals."""
        totals = np.add.reduceat(sums, sizes.cumsum() - sizes, axis=1)
        return cls(nodes, sizes, totals, rows, sums)

    def means(self) -> Sums:
        """Of the targets, (nodes, targets)."""
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


class _Growing:
    """Trees as far as they are grown."""

    def __init__(self, columns: Features, generator: np.random.Generator, halfway: bool) -> None:
        self._columns, self._generator, self._halfway = columns, generator, halfway
        self._values: list[Sums] = []
        self._inner: list[tuple[IntArray, IntArray, Features, IntArray]] = []
        self._nodes = 0

    def sown(self, targets: FloatArray, times: IntArray) -> _Level:
        """The roots."""
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
        blocks = [
            self._explained(level, columns[start : start + at_once])
            for start in range(0, tried, at_once)
        ]
        values, gains = (np.concatenate(each) for each in zip(*blocks, strict=True))
        chosen = gains.argmax(axis=0), nodes
        return _Cuts(gains[chosen] > 0, columns[chosen], values[chosen])

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
        """What is grown."""
        columns = np.full(self._nodes, -1)
        cuts, left = np.zeros(self._nodes, self._columns.dtype), np.zeros(self._nodes, np.int64)
        for nodes, *of_nodes in self._inner:
            columns[nodes], cuts[nodes], left[nodes] = of_nodes
        return Trees(count, columns, cuts, left, np.concatenate(self._values))

    def _explained(self, level: _Level, columns: IntArray) -> tuple[Features, Sums]:
        """A cut in each column, and how much of the targets' squares it explains, (cuts, nodes)."""
        starts = level.sizes.cumsum() - level.sizes
        places = np.repeat(columns * self._columns.shape[1], level.sizes, axis=1)
        places += level.rows
        looked = self._columns.reshape(-1).take(places)
        cuts = self._between(looked, starts, level.sizes)
        right = (looked > np.repeat(cuts, level.sizes, axis=1)).astype(np.float32)
        often, *of_targets = (np.add.reduceat(right * each, starts, axis=1) for each in level.sums)
        everywhere, *totals = level.totals
        rest, gains = everywhere - often, np.zeros_like(often)
        with np.errstate(divide="ignore", invalid="ignore"):
            for passed, total in zip(of_targets, totals, strict=True):
                gains += passed**2 / often + (total - passed) ** 2 / rest
        return cuts, np.where((often > 0) & (rest > 0), gains, 0)

    def _between(self, looked: Features, starts: IntArray, sizes: IntArray) -> Features:
        """Of values (cuts, entries) a place between two random rows of each node.

        It is below the larger one, and ∞ where the node's rows are alike.
        """
        shape = len(looked), len(sizes)
        place, further = self._generator.random((2, *shape))
        first = (place * sizes).astype(np.int64)
        second = (further * (sizes - 1)).astype(np.int64)
        second += second >= first
        begins = np.arange(0, looked.size, looked.shape[1])[:, None] + starts
        one, other = looked.take(begins + first), looked.take(begins + second)
        tied = (one == other).any(axis=1)
        if tied.any():
            other[tied] = self._apart(looked[tied], one[tied], other[tied], starts, sizes)
        if self._halfway:
            between = one / 2 + other / 2
        else:
            share = self._generator.random(shape).astype(one.dtype)
            between = (1 - share) * one + share * other
        between = np.where(between < np.maximum(one, other), between, np.minimum(one, other))
        return np.where(one == other, np.inf, between).astype(one.dtype)

    def _apart(
        self, looked: Features, one: Features, other: Features, starts: IntArray, sizes: IntArray
    ) -> Features:
        """The other rows' values (cuts, nodes); where they are the same as ``one``, its neighbour.

        That is the next value above or below it, so that a value which most rows share, as zero in
        sparse gradients, is told from the others.
        """
        shared = np.repeat(one, sizes, axis=1)
        above = np.minimum.reduceat(np.where(looked > shared, looked, np.inf), starts, axis=1)
        below = np.maximum.reduceat(np.where(looked < shared, looked, -np.inf), starts, axis=1)
        up = (self._generator.random(one.shape) < 0.5) | np.isinf(below)
        up &= np.isfinite(above)
        beside = np.where(up, above, np.where(np.isinf(below), one, below))
        return np.where(one == other, beside, other)
