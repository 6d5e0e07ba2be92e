"""Federated averaging: weights are averaged after local training."""

from gradaudit.federation.algorithms import Algorithm
from gradaudit.federation.clients import ClientModel, Clients, Server


class FedAvg(Algorithm):
    """w ← w + Σ_k (n_k/n) (w_k − w), with w_k what client k's local training makes of w.

    Running statistics of norms are averaged with the same weights. Optimizers start afresh in
    every round.

    Source: B. McMahan et al., "Communication-efficient learning of deep networks from
    decentralized data" (2017), algorithm 1, with all clients in every round; L. Fan et al.,
    "Rethinking privacy preserving deep learning" (2020), algorithms 1 to 3 (whose plain mean is
    this one for clients with equally many records).
    """

    name = "fedavg"
    summary = "every client trains from the server's weights; the server averages what they get"

    def round(
        self, server: Server, clients: Clients, client_model: ClientModel, number: int
    ) -> float:
        """All clients train from the same weights; the weighted mean moves the server."""
        state = server.state()
        sent = (client_model.training(client, state, number) for client in clients)
        mean = client_model.mean(sent, number)
        server.move(mean.update)
        server.set_buffers(mean.buffers)
        return mean.loss
