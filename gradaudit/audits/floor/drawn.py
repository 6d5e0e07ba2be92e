"""Records drawn from a prior, in units that share the genie's side information."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from gradaudit.audits.floor.genie import Genie, slopes_of
from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.errors import NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.randomness import torch_rng

_UNIT = 4
"""Records of a unit: more, smaller units tell the average better, larger ones their own number."""
_LOOKED_AT = 64
"""Records that the genie looks at, at most."""


@dataclass(frozen=True)
class PriorSample:
    """Records of the prior; each alone is a draw of it.

    Attributes:
        records: (records, …).
        labels: (records, …), the same in a unit.
        cells: which half of which unit each is in, 2 · unit + half, in order.
        genie: what it tells of each unit.
    """

    records: Tensor
    labels: Tensor
    cells: Tensor
    genie: Genie

    @classmethod
    def of(
        cls,
        view: FunctionalModel,
        names: Sequence[str],
        prior: GaussianPrior,
        labels: Tensor,
        *,
        shape: Sequence[int],
        seed: int,
        most: int,
    ) -> Self:
        """Draw as many records as there are labels, after a look at other records' gradients.

        A unit takes its first record's label; the genie looks at records with the others.

        Args:
            view: the model.
            names: parameters whose gradients are shared.
            prior: of the records.
            labels: (records, …), four or more.
            shape: of one record.
            seed: of all that is drawn.
            most: units, at most; there are two or more.

        Raises:
            AuditError: the model cannot be run on such records.
            NotApplicable: records have no gradients of their own.
        """
        cells = _cells(len(labels), most)
        first = torch.cat([cells.new_ones(1), cells.diff()]).bool() & (cells % 2 == 0)
        others = labels[~first][:_LOOKED_AT]
        before = view.cast(prior.draw(len(others), torch_rng(seed, "floor", "genie")))
        before = before.reshape(-1, *shape)
        _expect_own_gradients(view, before, view.cast(others))
        slopes, energies = slopes_of(view, names, before, view.cast(others))
        genie = Genie.of(slopes.cpu(), energies.cpu(), prior)
        drawn = _drawn(prior, genie, cells // 2, torch_rng(seed, "floor", "records"))
        return cls(drawn.reshape(-1, *shape), labels[first][cells // 2], cells, genie)

    @property
    def units(self) -> int:
        """How many there are."""
        return int(self.cells[-1]) // 2 + 1


def _cells(records: int, most: int) -> Tensor:
    units = max(2, min(records // _UNIT, most))
    return torch.arange(records) * 2 * units // records


def _drawn(prior: GaussianPrior, genie: Genie, units: Tensor, generator: torch.Generator) -> Tensor:
    """Records, (records, d), of which those of a unit have the same u."""
    normal = torch.randn(len(units), prior.size, generator=generator, dtype=torch.float64)
    count = int(units[-1]) + 1
    shared = torch.randn(count, prior.leading, generator=generator, dtype=torch.float64)
    axes = prior.axes[: prior.leading]
    leading = normal @ axes.mT
    return prior.at(normal + (genie.mixed(leading, shared[units]) - leading) @ axes)


def _expect_own_gradients(view: FunctionalModel, inputs: Tensor, labels: Tensor) -> None:
    view.check(inputs, labels)
    reason = view.coupling(inputs, labels)
    if reason:
        raise NotApplicable(f"records have no gradients of their own: {reason}; use --mode eval")
    if view.stochastic(inputs[:2]):
        raise NotApplicable(
            "the model draws random numbers (dropout), so that a record has no one gradient; use "
            "--mode eval"
        )
