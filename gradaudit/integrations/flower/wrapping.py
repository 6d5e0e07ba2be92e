"""Base class of strategies that wrap another strategy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any, Self

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.sharing.named import NamedUpdate


class WrappedStrategy(Strategy):
    """A strategy that delegates everything to another one but what concerns training.

    Args:
        strategy: the other.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

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
        """Delegate every other attribute to the wrapped strategy."""
        if name == "strategy":
            raise AttributeError(name)
        return getattr(self.strategy, name)


@dataclass(frozen=True)
class Form:
    """The form that all replies of a round share: names, shapes and metrics.

    Attributes:
        records: names of the records of arrays and of metrics.
        keys: of the arrays, by their names in the model, in the order in which clients send them.
        came: what the round began with, by name.
        still: what a client sends that trained nothing, by name.
        trained: shapes of what clients train, by name.
    """

    records: tuple[str, str]
    keys: Mapping[str, str]
    came: Mapping[str, Tensor]
    still: Mapping[str, NDArray[Any]]
    trained: Mapping[str, torch.Size]

    @classmethod
    def of(cls, reply: RecordDict, update: NamedUpdate, names: Sequence[str] = ()) -> Self:
        """Returns the form of a reply; ``names`` are the model's, for replies without names."""
        record, arrays = next(iter(reply.array_records.items()))
        known = arrays if set(update.after) <= set(arrays) else names
        keys = dict(zip(known, arrays, strict=True))
        came = {name: update.before[name] for name in keys}
        held = {name: tensor.numpy() for name, tensor in came.items()}
        nothing = {name: np.zeros_like(array) for name, array in held.items()}
        return cls(
            records=(record, next(iter(reply.metric_records), "metrics")),
            keys=keys,
            came=came,
            still=held if update.kind == "weights" else nothing,
            trained={name: tensor.shape for name, tensor in update.after.items()},
        )

    def reply(self, update: Mapping[str, Tensor], metrics: Mapping[str, Any]) -> RecordDict:
        """Returns a reply whose trained arrays differ from the received ones by these elements."""
        arrays = dict(self.still)
        for name, moved in update.items():
            held = arrays[name]
            arrays[name] = held + moved.numpy().reshape(held.shape).astype(held.dtype)
        record = ArrayRecord({key: Array(np.asarray(arrays[n])) for n, key in self.keys.items()})
        return RecordDict({self.records[0]: record, self.records[1]: MetricRecord(dict(metrics))})

    def moved(self, released: ArrayRecord) -> dict[str, Tensor]:
        """Returns the round's change of each trained array, by name."""
        return {
            name: torch.tensor(released[self.keys[name]].numpy()) - self.came[name]
            for name in self.trained
        }


def typical(replies: Sequence[RecordDict], weighted_by: str) -> dict[str, Any]:
    """Returns the weighted mean of each metric, which leaves the mean unchanged."""
    records = [dict(next(iter(reply.metric_records.values()), {})) for reply in replies]
    weights = np.array([record.get(weighted_by, 1) for record in records], float)
    shared = [name for name in records[0] if all(name in record for record in records)]
    means = {
        name: np.average([record[name] for record in records], axis=0, weights=weights).tolist()
        for name in shared
    }
    if weighted_by in means:
        means[weighted_by] = median_low(record[weighted_by] for record in records)
    return means
