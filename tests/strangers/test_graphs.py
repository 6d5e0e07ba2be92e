"""Graphs are audited in a dense form; as PyTorch Geometric gives them they are refused."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from gradaudit.config import SubjectSettings
from gradaudit.data.common.user_data import records_of
from gradaudit.errors import DataError
from gradaudit.gradients.per_sample import per_sample_gradients
from gradaudit.run.opening import open_subject

N, NODES = 5, 6
generator = torch.Generator().manual_seed(0)


@dataclass
class Graph:
    """What PyTorch Geometric's ``Data`` has."""

    x: Tensor
    edge_index: Tensor
    y: Tensor

    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: str) -> Tensor:
        found: Tensor = getattr(self, key)
        return found


@dataclass
class Batched(Graph):
    """And a batch of several, which is one large graph."""

    batch: Tensor
    ptr: Tensor


def ring(nodes: int, label: Tensor) -> Graph:
    places = torch.arange(nodes)
    edges = torch.stack([places, places.roll(1)])
    x = torch.rand(nodes, 3, generator=generator)
    return Graph(x, torch.cat([edges, edges.flip(0)], dim=1), label)


GRAPHS = [ring(3 + k % 4, torch.tensor([k % 2])) for k in range(N)]
LABELLED = ring(NODES, torch.tensor([0, 1, -100, 1, 0, -100]))


def collated(graphs: list[Graph]) -> Batched:
    sizes = torch.tensor([len(graph.x) for graph in graphs])
    ptr = F.pad(sizes.cumsum(0), (1, 0))
    edges = [graph.edge_index + start for graph, start in zip(graphs, ptr.tolist(), strict=False)]
    return Batched(
        torch.cat([graph.x for graph in graphs]), torch.cat(edges, dim=1),
        torch.cat([graph.y for graph in graphs]),
        torch.arange(len(graphs)).repeat_interleave(sizes), ptr,
    )  # fmt: skip


@pytest.mark.parametrize(
    "returned",
    [
        GRAPHS,
        collated(GRAPHS),
        DataLoader(GRAPHS, 2, collate_fn=collated),  # type: ignore[arg-type]
        [(graph, 1) for graph in GRAPHS],
    ],
    ids=["list", "batch", "loader", "pairs"],
)
def test_graphs_of_edges_are_none_of_the_forms(returned: Any) -> None:
    with pytest.raises(DataError, match=r"data\.py:make"):
        records_of(returned, "data.py:make")


class Convolution(nn.Module):
    """A mean over neighbours, dense or by edges; of each node, or of the graph."""

    def __init__(self, nodes: bool) -> None:
        super().__init__()
        self.inner, self.outer, self.nodes = nn.Linear(3, 4), nn.Linear(4, 2), nodes

    def forward(self, x: Tensor, adj: Tensor, mask: Tensor) -> Tensor:
        spread = adj @ self.inner(x) / adj.sum(2, keepdim=True).clamp(min=1)
        hidden = spread.tanh() * mask.unsqueeze(2)
        if self.nodes:
            return self.outer(hidden)  # type: ignore[no-any-return]
        return self.outer(hidden.sum(1) / mask.sum(1, keepdim=True))  # type: ignore[no-any-return]

    def by_edges(self, graph: Graph) -> Tensor:
        """The same of one graph, as message passing has it."""
        source, target = graph.edge_index
        messages = self.inner(graph.x.double())[source]
        sums = torch.zeros(len(graph.x), 4).double().index_add(0, target, messages)
        hidden = (sums / target.bincount(minlength=len(graph.x)).unsqueeze(1)).tanh()
        outputs = self.outer(hidden if self.nodes else hidden.mean(0, keepdim=True))
        return F.cross_entropy(outputs, graph.y)


def dense(graphs: list[Graph]) -> dict[str, Tensor]:
    """As ``to_dense_batch`` and ``to_dense_adj`` make it."""
    x, adj = torch.zeros(len(graphs), NODES, 3), torch.zeros(len(graphs), NODES, NODES)
    mask = torch.zeros(len(graphs), NODES, dtype=torch.bool)
    for place, graph in enumerate(graphs):
        x[place, : len(graph.x)], mask[place, : len(graph.x)] = graph.x, True
        adj[place, graph.edge_index[1], graph.edge_index[0]] = 1
    return {"x": x, "adj": adj, "mask": mask}


@pytest.mark.parametrize("nodes", [False, True], ids=["graphs", "nodes"])
def test_the_dense_form_has_the_gradients_of_message_passing(nodes: bool) -> None:
    graphs = [LABELLED] if nodes else GRAPHS
    labels = torch.stack([graph.y for graph in graphs])
    data = {"inputs": dense(graphs), "labels": labels if nodes else labels[:, 0]}
    subject = open_subject(SubjectSettings(device="cpu"), model=Convolution(nodes), records=data)
    records, model = subject.records, subject.target.model.double()
    chunks = per_sample_gradients(
        subject.target, records.inputs, records.labels, subject.layers, dtype=torch.float64
    )
    found = torch.cat([torch.cat([*chunk.values()], dim=1) for chunk in chunks])
    assert len(found) == len(graphs)
    for row, graph in zip(found, graphs, strict=True):
        weights = [model.inner.weight, model.outer.weight]
        slopes = torch.autograd.grad(model.by_edges(graph), weights)  # type: ignore[operator, arg-type]
        expected = torch.cat([slope.flatten() for slope in slopes])
        torch.testing.assert_close(row, expected, rtol=1e-9, atol=1e-12)
