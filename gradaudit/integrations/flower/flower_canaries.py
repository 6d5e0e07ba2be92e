"""Canaries in a Flower run: random updates that are mixed into the replies of every round.

They are those of ``gradaudit train`` (``federation.canaries``): what the run's strategy releases
says which were let in, and ``gradaudit dp-audit --mode one-run`` makes of that a bound on the ε of
a client. To the strategy a canary is one more client: its reply has the arrays, records and weight
of the others', and passes through the clients' mods.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.app.message_type import MessageType
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.core.files import write_atomically
from gradaudit.core.randomness import number, rng
from gradaudit.errors import AuditError, UsageError
from gradaudit.federation.canaries import FILE, Canaries, coins, pieces
from gradaudit.federation.settings import MOST_CANARIES
from gradaudit.integrations.flower.wrapping import Form, WrappedStrategy, typical
from gradaudit.sharing.named import Kind, NamedUpdate, named_update

log = logging.getLogger(__name__)

_NOTHING = (
    "gradaudit: round %d released nothing, so nothing was seen of its canaries: a client failed "
    "that the strategy does not do without, or it expects another number of replies"
)


def let_in(count: int, seed: int = 0) -> int:
    """Returns how many of so many canaries are included.

    Strategies that divide their noise by a number of clients count these too.

    Raises:
        UsageError: there is no canary, or an argument is no number.
    """
    _expect_coins(count, seed)
    return int(coins(count, seed).sum())


class CanaryStrategy(WrappedStrategy):
    """A strategy that mixes canaries into another's rounds; it must be the outermost.

    A canary that its coin let in takes part as clients do: in all rounds, or in a share of them
    where only a share of the nodes is asked. Its reply is what came and a direction of its own,
    drawn evenly over the sphere of the trained arrays; buffers, whole numbers and single numbers
    are as they came. After each round the folder holds the coins and the cosines of what was
    released with all directions, in and out; nothing else depends on the coins.

    Args:
        strategy: does everything else: clips, averages, adds noise.
        folder: for ``canaries.safetensors``; it is made where there is none.
        count: of canaries, of which half are let in.
        seed: of coins, directions and rounds.
        norm: how long a canary's update is; without it the strategy's ``clipping_norm``, where it
            has one, else as the median client's, round by round.
        mods: as of ``ClientApp(mods=…)``: canaries pass through the clients' mods too.
        weighted_by: the metric by which the strategy weights replies.
        state: ``model.state_dict()``, where arrays come without names.
        kind: ``weights`` or ``difference``: what clients send, where comparing does not show it.
        parameters: names of what clients train; without it all but buffers.

    Raises:
        UsageError: an argument is of a wrong type or out of range, or the folder holds the
            canaries of another run.
    """

    def __init__(
        self,
        strategy: Strategy,
        folder: str | Path,
        *,
        count: int,
        seed: int = 0,
        norm: float | None = None,
        mods: Sequence[Mod] = (),
        weighted_by: str = "num-examples",
        state: Mapping[str, Tensor] | None = None,
        kind: Kind | None = None,
        parameters: Iterable[str] | None = None,
    ) -> None:
        _expect(strategy, count, seed, norm, mods)
        super().__init__(strategy)
        self.count, self.seed, self.norm, self.mods = count, seed, norm, list(mods)
        self.weighted_by, self.state, self.kind = weighted_by, state, kind
        self.parameters = None if parameters is None else tuple(parameters)
        self.canaries: Canaries | None = None
        self._path = _claimed(folder)
        self._contexts: dict[int, Context] = {}
        self._sent: dict[str, Array] = {}
        self._configs: dict[str, ConfigRecord] = {}
        self._record, self._share, self._round = "arrays", 1.0, 0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keep the weights that are sent, and the share of nodes that they are sent to."""
        self._sent, self._round = dict(arrays), self._round + 1
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        for message in messages[:1]:
            self._configs = dict(message.content.config_records)
            self._record = next(iter(message.content.array_records), self._record)
        nodes = len(list(grid.get_node_ids()))
        self._share = min(len(messages) / nodes, 1.0) if nodes else 0.0
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the clients' and the canaries' replies, and score the canaries by the result.

        Raises:
            AuditError: names or shapes of what clients send are not those of what was sent, or its
                kind is not known, or a mod refuses a canary.
        """
        arrived = list(replies)
        answers = [reply.content for reply in arrived if not reply.has_error()]
        if not answers:
            return self.strategy.aggregate_train(server_round, arrived)
        update = self._update_in(answers[0])
        form = Form.of(answers[0], update, list(self.state or ()))
        self.kind, self.canaries = (
            update.kind,
            self.canaries
            or Canaries(
                count=self.count, shapes=form.trained, seed=self.seed, device=torch.device("cpu")
            ),
        )
        joining = self._replies(server_round, answers, form, self.canaries)
        arrays, metrics = self.strategy.aggregate_train(server_round, [*arrived, *joining])
        if arrays:
            self.canaries.see(form.moved(arrays))
            write_atomically(self._path, self.canaries.scores.packed())
        else:
            log.warning(_NOTHING, server_round)
        return arrays, metrics

    def _replies(
        self, server_round: int, answers: Sequence[RecordDict], form: Form, canaries: Canaries
    ) -> Iterator[Message]:
        """Returns the replies of included canaries that take part in this round."""
        metrics, length = typical(answers, self.weighted_by), self._length(answers)
        for numbers in pieces(np.flatnonzero(canaries.included & self._takes_part())):
            rows = canaries.directions(numbers)
            for row, canary in enumerate(numbers):
                update = {name: part[row] * length for name, part in rows.items()}
                reply = form.reply(update, metrics)
                yield self._through_mods(int(canary), reply, server_round)

    def _length(self, answers: Sequence[RecordDict]) -> float:
        """Returns a canary's length: the strategy's clip, or the median client's length."""
        if self.norm is not None:
            return self.norm
        clip = getattr(self.strategy, "clipping_norm", None)
        return median(map(self._norm, answers)) if clip is None else float(clip)

    def _norm(self, answer: RecordDict) -> float:
        update = self._update_in(answer)
        norms = [float(update.change(name).double().norm()) for name in update.after]
        return math.hypot(*norms)

    def _update_in(self, answer: RecordDict) -> NamedUpdate:
        arrays = dict(next(iter(answer.array_records.values()), {}))
        return named_update(
            self._sent, arrays, kind=self.kind, parameters=self.parameters, state=self.state
        )

    def _takes_part(self) -> NDArray[np.bool_]:
        """Whether each canary takes part in this round if it is included, (canaries,).

        Rounds are counted over all starts, which count theirs anew.
        """
        draws = rng(self.seed, "federation", "canaries", "round", self._round)
        return np.asarray(draws.random(self.count) < self._share)

    def _through_mods(self, canary: int, reply: RecordDict, server_round: int) -> Message:
        node = number(self.seed, "federation", "canary", "node", canary)
        content = RecordDict({self._record: ArrayRecord(self._sent), **self._configs})
        asked = Message(content, node, MessageType.TRAIN, group_id=str(server_round))
        fresh = Context(asked.metadata.run_id, node, {}, RecordDict(), {})
        app = ClientApp(mods=self.mods)
        app.train()(lambda message, _: Message(reply, reply_to=message))
        answer = app(asked, self._contexts.setdefault(canary, fresh))
        if answer.has_error():
            raise AuditError(f"a mod refuses the canaries' replies: {answer.error.reason}")
        return answer


def _expect(strategy: object, count: int, seed: int, norm: float | None, mods: object) -> None:
    """Raise an error before the run for settings with which no run can be audited.

    Raises:
        UsageError: an argument is of a wrong type, or out of range.
    """
    if not isinstance(strategy, Strategy):
        raise UsageError(
            f"strategy: {strategy!r} is not a strategy of the message API; give one of "
            "flwr.serverapp.strategy"
        )
    _expect_coins(count, seed)
    known = norm is None or (isinstance(norm, int | float | np.floating) and 0 < norm < math.inf)
    if not known:
        raise UsageError(f"norm={norm!r}: a length must be above 0; give another, or none")
    if not isinstance(mods, Sequence) or not all(map(callable, mods)):
        raise UsageError(f"mods={mods!r}: is not a list of mods; give one as to ClientApp")


def _expect_coins(count: object, seed: object) -> None:
    if not isinstance(count, int | np.integer) or not 0 < count <= MOST_CANARIES:
        raise UsageError(
            f"count={count!r}: let in one canary at least, {MOST_CANARIES:,} at most; a bound "
            "needs about a hundred"
        )
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise UsageError(f"seed={seed!r}: give a whole number from 0 on")


def _claimed(folder: str | Path) -> Path:
    """Returns the path of the scores, in a folder that no other run uses.

    Raises:
        UsageError: the folder cannot be made, or holds another run's.
    """
    try:
        path = Path(folder) / FILE
        taken = path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, TypeError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"folder {str(folder)!r}: {why}; name another folder") from error
    if taken:
        raise UsageError(f"{path}: belongs to another run; name another folder")
    return path
