"""Base class of a strategy that wraps another."""

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy


class WrappedStrategy(Strategy):
    """A strategy that does as another does.

    Args:
        strategy: the other.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegate to the wrapped strategy."""
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Delegate to the wrapped strategy."""
        return self.strategy.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegate to the wrapped strategy."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Delegate to the wrapped strategy."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Delegate to the wrapped strategy."""
        self.strategy.summary()

    def __getattr__(self, name: str) -> Any:
        """Whatever else the strategy has."""
        if name == "strategy":
            raise AttributeError(name)
        return getattr(self.strategy, name)
