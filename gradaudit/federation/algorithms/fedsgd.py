"""Federated SGD: gradients are averaged."""

from typing import ClassVar

from gradaudit.federation.algorithms import Algorithm
from gradaudit.federation.clients import ClientModel, Clients, Server


class FedSgd(Algorithm):
    """w ← w − rate · Σ_k (n_k/n) g_k, with g_k the gradient of client k at w.

    g_k is that of all its n_k records, or with a batch size of so many drawn afresh each round.
    The step is the server's optimizer's, which keeps its momentum from round to round.

    Source: B. McMahan et al., "Communication-efficient learning of deep networks from
    decentralized data" (2017), section 2.
    """

    name = "fedsgd"
    summary = "every client sends the gradient of one batch; the server steps along their mean"
    batch_size: ClassVar[int | None] = None
    one_step: ClassVar[bool] = True

    def round(
        self, server: Server, clients: Clients, client_model: ClientModel, number: int
    ) -> float:
        """Take one step of the server along the weighted mean of the clients' gradients."""
        state = server.state()
        sent = (client_model.gradient(client, state, number) for client in clients)
        mean = client_model.mean(sent, number)
        server.step(mean.update)
        server.set_buffers(mean.buffers)
        return mean.loss
