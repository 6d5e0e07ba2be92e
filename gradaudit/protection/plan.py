"""A protection plan, and the plans that it is compared with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradaudit.protection.guards import Protection
from gradaudit.protection.lessons import ProtectionVerdict
from gradaudit.protection.updates import UndefendedUpdates
from gradaudit.report import Report


@dataclass(frozen=True)
class Trial:
    """A protection that was measured while the plan was searched for."""

    protection: Protection
    cost: float
    verdict: ProtectionVerdict


@dataclass(frozen=True)
class Plan:
    """A protection plan with its report and trials.

    Attributes:
        protection: the plan; where none passes, the nearest.
        cost: of it.
        least: what every protection that passes costs at least.
        naive: the cheapest of each simple strategy that passes, by its name, with its cost.
        judged: the report of the plan on records that the search did not see.
        verdict: what the rules say of it there.
        trials: on the search's records, in order, of those that keep the rules on floors.
        rounds: how often it was verified.
        untried: whether protections that may pass were left untried for want of time.
        prices: what hiding each layer costs.
        updates: what the layers share.
    """

    protection: Protection
    cost: float
    least: float
    naive: Mapping[str, tuple[Protection, float]]
    judged: Report
    verdict: ProtectionVerdict
    trials: Sequence[Trial]
    rounds: int
    untried: bool
    prices: Mapping[str, float]
    updates: UndefendedUpdates

    @property
    def cheapest_naive(self) -> tuple[str, float] | None:
        """The best simple strategy and what it costs; None where none passes."""
        costs = [(name, cost) for name, (_, cost) in self.naive.items()]
        return min(costs, key=lambda pair: pair[1], default=None)
