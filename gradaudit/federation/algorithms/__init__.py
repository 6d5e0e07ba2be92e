"""Federated algorithms, one a file: the clients' order of training and the server's step."""

from abc import ABC, abstractmethod
from typing import ClassVar

from gradaudit.core.parts import discover
from gradaudit.core.specs import pick
from gradaudit.federation.clients import ClientModel, Clients, Server


class Algorithm(ABC):
    """A federated algorithm: how clients train in a round and how the server moves.

    Attributes:
        name: as on the command line.
        summary: one line for ``gradaudit list``.
        batch_size: records in a client's step where the user names none; None for all it holds.
        one_step: whether a client takes a single step a round, so that ``epochs`` must be 1.
        averages: whether the server sees a mean of the clients' updates.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    batch_size: ClassVar[int | None] = 32
    one_step: ClassVar[bool] = False
    averages: ClassVar[bool] = True

    @abstractmethod
    def round(
        self, server: Server, clients: Clients, client_model: ClientModel, number: int
    ) -> float:
        """Train one round; the server then holds the new shared model.

        All clients take part, in this order; rounds count from 1. Returns the mean loss of the
        records that were trained on.

        Raises:
            AuditError: the training diverged.
        """


def algorithms() -> dict[str, type[Algorithm]]:
    """Returns the algorithms by name."""
    return discover("gradaudit.federation.algorithms", Algorithm)


def choose_algorithm(name: str) -> Algorithm:
    """Returns the algorithm of that name.

    Raises:
        UsageError: there is none.
    """
    return pick(name, algorithms(), f"--algorithm {name}", "algorithm")()
