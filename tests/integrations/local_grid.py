"""Flower's grid and context without processes."""

from collections.abc import Iterable, Mapping

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp


def context(node: int = 1) -> Context:
    return Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})


class LocalGrid:
    """Flower's grid, whose nodes answer in this process; one of them may be dead."""

    def __init__(self, apps: Mapping[int, ClientApp], dead: int = 0) -> None:
        self.apps, self.dead, self.asked = apps, dead, list[list[int]]()

    def get_node_ids(self) -> list[int]:
        return list(self.apps)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        asked = list(messages)
        self.asked.append([message.metadata.dst_node_id for message in asked])
        return [self._answer(message) for message in asked]

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if node == self.dead:
            return Message(Error(code=0, reason="died"), reply_to=message)
        return self.apps[node](message, context(node))
