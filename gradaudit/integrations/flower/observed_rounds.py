"""A client mod that observes what leaves, and a strategy that observes what arrives.

Flower runs the first of ``ClientApp(mods=[…])`` outermost: put ``ObserverMod`` first, so that it
looks at what noise, clipping and compression have left. Only the verdict travels, as numbers in the
reply's metrics, which a strategy averages as any other.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.app.message_type import MessageType
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from gradaudit.errors import AuditError
from gradaudit.integrations.flower.wrapping import WrappedStrategy
from gradaudit.observer.observer import Observation, Observer, stopwatch
from gradaudit.sharing.named import Kind, named_update

EXAMPLES = "num-examples"
ROUND = "server-round"
Arrays = dict[str, dict[str, Array]]


class ObserverMod:
    """A client mod that observes the arrays of a training reply before they leave.

    Whether weights or their difference leave is found by comparing them with those that came. With
    ``on_fail="raise"`` the reply is an error, which carries no arrays; with ``"withhold"`` the
    weights that came leave again, or a difference of zeros. A client that fails is passed on as it
    is.

    Args:
        observer: looks; one of the node's own, since it keeps time over rounds.
        state: ``model.state_dict()``, where arrays are sent without names (``NumPyClient``).
        kind: ``weights`` or ``difference``: what leaves, where comparing cannot show it (of weights
            that begin at zero).
    """

    def __init__(
        self,
        observer: Observer,
        state: Mapping[str, Tensor] | None = None,
        kind: Kind | None = None,
    ) -> None:
        self.observer, self.state, self.kind = observer, state, kind

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let the client train, observe its reply, and add the verdict to its metrics.

        Raises:
            Blocked: the policy does not let it leave, and ``on_fail`` is ``raise``.
            AuditError: it is withheld, and what could leave instead is not known.
        """
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        came, trained = _arrays_in(message.content), stopwatch()
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        observation = self.observer.observe(
            *_matching(came, _arrays_in(reply.content)),
            seconds=trained(),
            records=_examples(reply.content),
            state=self.state,
            kind=self.kind,
            label=f"node-{context.node_id}-round-{_round_of(message)}",
        )
        if self.observer.on_fail == "withhold" and not observation.verdict.may_leave:
            _give_back(came, reply.content, weights=self._are_weights(came, reply.content))
        _metrics_of(reply.content).update(observation.verdict.metrics())
        return reply

    def _are_weights(self, came: Arrays, content: RecordDict) -> bool:
        """Whether weights leave rather than a difference."""
        before, left = _matching(came, _arrays_in(content))
        return named_update(before, left, state=self.state, kind=self.kind).kind == "weights"


class ObservedStrategy(WrappedStrategy):
    """A strategy that observes every client's reply on arrival, as a curious server would.

    Its time is a share of the round's, for all clients together. With ``on_fail="withhold"``
    replies that the policy does not let pass are left out of the aggregate; with ``"raise"`` the
    run ends.

    Args:
        strategy: does everything else.
        observer: looks.
        state: ``model.state_dict()``, where arrays come without names.
        kind: ``weights`` or ``difference``: what comes, where comparing does not show it.

    Attributes:
        observations: of the last round, by the client's node.
        absent: how many clients answered with an error in the last round.
    """

    def __init__(
        self,
        strategy: Strategy,
        observer: Observer,
        state: Mapping[str, Tensor] | None = None,
        kind: Kind | None = None,
    ) -> None:
        super().__init__(strategy)
        self.observer, self.state, self.kind = observer, state, kind
        self.observations: dict[int, Observation] = {}
        self.absent = 0
        self._sent: dict[str, Array] = {}
        self._waited = stopwatch()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keep the weights that are sent."""
        self._sent, self._waited = dict(arrays), stopwatch()
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Observe the replies that arrived, and aggregate them."""
        arrived = list(replies)
        answers = [reply for reply in arrived if not reply.has_error()]
        self.absent, seconds = len(arrived) - len(answers), self._waited()
        self.observations = {
            reply.metadata.src_node_id: self._observed(reply, server_round, seconds / len(answers))
            for reply in answers
        }
        kept = [reply for reply in arrived if reply.has_error() or self._accepted(reply)]
        return self.strategy.aggregate_train(server_round, kept)

    def _observed(self, reply: Message, server_round: int, seconds: float) -> Observation:
        came, left = _matching({"": self._sent}, _arrays_in(reply.content))
        return self.observer.observe(
            came,
            left,
            seconds=seconds,
            records=_examples(reply.content),
            state=self.state,
            kind=self.kind,
            label=f"from-node-{reply.metadata.src_node_id}-round-{server_round}",
        )

    def _accepted(self, reply: Message) -> bool:
        verdict = self.observations[reply.metadata.src_node_id].verdict
        return self.observer.on_fail != "withhold" or verdict.may_leave


def _arrays_in(content: RecordDict) -> Arrays:
    """Returns the arrays of each record now, since clients may remove them while reading."""
    return {name: dict(record) for name, record in content.array_records.items()}


def _matching(came: Arrays, left: Arrays) -> tuple[dict[str, Array], dict[str, Array]]:
    """Matches received and sent arrays by name, with their record's name where several leave."""
    if len(left) > 1:
        return _joined(came), _joined(left)
    name, arrays = next(iter(left.items()), ("", {}))
    only = next(iter(came.values()), {})
    return came.get(name, only if len(came) == 1 else {}), arrays


def _joined(records: Arrays) -> dict[str, Array]:
    return {
        f"{record}.{name}": array
        for record, arrays in records.items()
        for name, array in arrays.items()
    }


def _give_back(came: Arrays, content: RecordDict, *, weights: bool) -> None:
    """Replace weights that leave by the received ones, and a difference by zeros.

    Raises:
        AuditError: there is nothing of the same name that came.
    """
    for name, record in content.array_records.items():
        before, left = _matching(came, {name: dict(record)})
        if not left.keys() <= before.keys():
            raise AuditError(
                f"{name}: was not received, so that nothing can be sent instead; "
                "use on_fail='raise'"
            )
        content[name] = ArrayRecord(
            {
                key: before[key] if weights else Array(np.zeros_like(array.numpy()))
                for key, array in left.items()
            }
        )


def _metrics_of(content: RecordDict) -> MetricRecord:
    """Returns the reply's record of metrics, as strategies expect exactly one; else a new one."""
    for record in content.metric_records.values():
        return record
    content["metrics"] = MetricRecord()
    return content.metric_records["metrics"]


def _examples(content: RecordDict) -> int | None:
    for record in content.metric_records.values():
        count = record.get(EXAMPLES)
        if isinstance(count, int):
            return count
    return None


def _round_of(message: Message) -> object:
    """Returns the round that the strategy sends to clients, else the message's group."""
    rounds = (record.get(ROUND) for record in message.content.config_records.values())
    return next((number for number in rounds if number is not None), message.metadata.group_id or 0)
