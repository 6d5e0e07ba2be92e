"""Models of several inputs, which data gives by the names of the arguments."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gradaudit.config import SubjectSettings
from gradaudit.data.common.packing import arguments
from gradaudit.errors import DataError
from gradaudit.gradients.per_sample import per_sample_gradients
from gradaudit.run.opening import open_subject

N = 6
generator = torch.Generator().manual_seed(0)
LEFT, RIGHT = (torch.rand(N, 3, generator=generator) for _ in range(2))
USERS, ITEMS = torch.arange(N), torch.arange(N).flip(0)
CLASS, SCORE = torch.tensor([0, 1] * 3), torch.rand(N, generator=generator)


class Pair(nn.Module):
    """Two vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.cat([left, right.square()], dim=1))
        return scores


class Liking(nn.Module):
    """A code of a user and one of an item, as recommenders take them."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(N, 4), nn.Embedding(N, 4)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.users(user) * self.items(item)).sum(1)


LOADED: list[Callable[[Any], Any]] = [lambda d: d, lambda d: DataLoader(d, 4)]


@pytest.mark.parametrize("loaded", LOADED, ids=["data set", "loader"])
@pytest.mark.parametrize(
    ("build", "inputs", "labels", "loss"),
    [
        (Pair, {"left": LEFT, "right": RIGHT}, CLASS, "cross-entropy"),
        (Liking, {"user": USERS, "item": ITEMS}, SCORE, "mse"),
    ],
    ids=["vectors", "codes"],
)
def test_a_model_of_two_arguments_gets_them_by_name(
    build: Callable[[], nn.Module], inputs: dict[str, Tensor], labels: Tensor, loss: str,
    loaded: Callable[[Any], Any],
) -> None:  # fmt: skip
    model = build()
    items = [({k: x[i] for k, x in inputs.items()}, labels[i]) for i in range(N)]
    data = loaded(items)
    subject = open_subject(SubjectSettings(device="cpu", loss=loss), model=model, records=data)
    records = subject.records
    assert torch.equal(records.labels, labels)
    assert not records.attributes
    _, given = arguments(records.parts, records.inputs)
    assert all(torch.equal(given[name], values) for name, values in inputs.items())
    model.double()
    chunks = per_sample_gradients(
        subject.target, records.inputs, records.labels, subject.layers, dtype=torch.float64
    )
    found = torch.cat([torch.cat([*chunk.values()], dim=1) for chunk in chunks])
    for index in range(N):
        one = [x[index : index + 1] for x in inputs.values()]
        outputs = model(*(x.double() if x.is_floating_point() else x for x in one))
        y = labels[index : index + 1]
        plain = (
            F.cross_entropy(outputs, y)
            if loss == "cross-entropy"
            else F.mse_loss(outputs, y.double())
        )
        slopes = torch.autograd.grad(plain, [layer.weight for layer in model.children()])
        expected = torch.cat([slope.flatten() for slope in slopes])
        torch.testing.assert_close(found[index], expected, rtol=1e-9, atol=1e-12)


def test_a_tuple_of_three_is_refused() -> None:
    with pytest.raises(DataError, match=r"item 0 is tuple of 3; the forms are"):
        open_subject(
            SubjectSettings(device="cpu"), model=Pair(), records=TensorDataset(LEFT, RIGHT, CLASS)
        )
