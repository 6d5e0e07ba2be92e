"""Round robin: the server takes one client's update after the other."""

from typing import ClassVar

from gradaudit.federation.algorithms import Algorithm
from gradaudit.federation.clients import ClientModel, Clients, Server


class RoundRobin(Algorithm):
    """For each client in turn: w ← w + (w_k − w), so the next one starts from what this one got.

    L. Fan et al., "Rethinking privacy preserving deep learning" (2020), algorithm 4, is printed
    like algorithm 3 (federated averaging), but named after the protocol of R. Shokri and
    V. Shmatikov, "Privacy-preserving deep learning" (2015), in which the server is updated after
    each client.
    """

    name = "round-robin"
    summary = "one client after the other trains and updates the server"
    averages: ClassVar[bool] = False

    def round(
        self, server: Server, clients: Clients, client_model: ClientModel, number: int
    ) -> float:
        """Every client trains once, each from the weights that the one before left."""
        sums, records = 0.0, 0
        for client in clients:
            sent = client_model.training(client, server.state(), number)
            server.move(sent.update)
            server.set_buffers(sent.buffers)
            sums += sent.loss * sent.records
            records += sent.records
        return sums / records
