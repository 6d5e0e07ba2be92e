"""Items of several parts: which are inputs is said, or told by the model, and never guessed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gradaudit
from gradaudit.config import SubjectSettings
from gradaudit.data.common.packing import arguments
from gradaudit.data.common.user_data import records_of
from gradaudit.errors import DataError
from gradaudit.gradients.per_sample import per_sample_gradients
from gradaudit.models.outputs import positional_arguments
from gradaudit.run.opening import open_subject

N = 6
generator = torch.Generator().manual_seed(0)
LEFT, RIGHT = (torch.rand(N, 3, generator=generator) for _ in range(2))
USERS, ITEMS = torch.arange(N), torch.arange(N).flip(0)
CLASS, SCORE = torch.tensor([0, 1] * 3), torch.rand(N, generator=generator)
GROUP = torch.tensor([1, 0, 0, 1, 1, 0])


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


class Optional(nn.Module):
    """One vector, and perhaps another."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, left: Tensor, right: Tensor | None = None) -> Tensor:
        scores: Tensor = self.head(left if right is None else left + right)
        return scores


LOADED: list[Callable[[TensorDataset], Any]] = [lambda d: d, lambda d: DataLoader(d, 4)]


@pytest.mark.parametrize("loaded", LOADED, ids=["data set", "loader"])
@pytest.mark.parametrize(
    ("build", "inputs", "labels", "loss"),
    [(Pair, (LEFT, RIGHT), CLASS, "cross-entropy"), (Liking, (USERS, ITEMS), SCORE, "mse")],
    ids=["vectors", "codes"],
)
def test_a_model_of_two_arguments_gets_the_first_two(
    build: Callable[[], nn.Module], inputs: tuple[Tensor, Tensor], labels: Tensor, loss: str,
    loaded: Callable[[TensorDataset], Any],
) -> None:  # fmt: skip
    model = build()
    data = loaded(TensorDataset(*inputs, labels))
    subject = open_subject(SubjectSettings(device="cpu", loss=loss), model=model, records=data)
    records = subject.records
    assert torch.equal(records.labels, labels)
    assert not records.attributes
    given, _ = arguments(records.parts, records.inputs)
    assert all(torch.equal(one, other) for one, other in zip(given, inputs, strict=True))
    model.double()
    chunks = per_sample_gradients(
        subject.target, records.inputs, records.labels, subject.layers, dtype=torch.float64
    )
    found = torch.cat([torch.cat([*chunk.values()], dim=1) for chunk in chunks])
    for index in range(N):
        one = [x[index : index + 1] for x in inputs]
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


def test_a_fourth_part_is_the_attribute() -> None:
    data = TensorDataset(LEFT, RIGHT, CLASS, GROUP)
    subject = open_subject(SubjectSettings(device="cpu"), model=Pair(), records=data)
    assert torch.equal(subject.records.labels, CLASS)
    assert subject.records.attributes["attribute"].codes.tolist() == GROUP.tolist()


def test_a_model_of_one_argument_has_an_attribute_third() -> None:
    data = TensorDataset(LEFT, CLASS, GROUP)
    subject = open_subject(SubjectSettings(device="cpu"), model=nn.Linear(3, 2), records=data)
    assert torch.equal(subject.records.inputs, LEFT)
    assert torch.equal(subject.records.labels, CLASS)
    assert subject.records.attributes["attribute"].codes.tolist() == GROUP.tolist()


def test_how_many_are_inputs_may_be_said() -> None:
    data = TensorDataset(LEFT, RIGHT[:, :2], CLASS)
    two = records_of(data, "d", inputs=2)
    assert [part.name for part in two.parts] == ["0", "1"]
    one = records_of(data, "d")
    assert torch.equal(one.labels, RIGHT[:, :2])
    assert one.attributes["attribute"].codes.tolist() == CLASS.tolist()


def test_it_is_said_on_the_command_line_and_the_model_is_asked_there_too(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "from torch.utils.data import TensorDataset\n"
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_several_inputs import LEFT, RIGHT, CLASS, Optional, Pair\n"
        "def data(): return TensorDataset(LEFT, RIGHT, CLASS)\n"
        "def own(inputs: int): return TensorDataset(LEFT[:inputs], CLASS[:inputs])\n"
    )
    for model, spec in (("Pair", "data"), ("Optional", "data?inputs=2")):
        settings = SubjectSettings(model=f"{file}:{model}", data=f"{file}:{spec}", device="cpu")
        assert len(open_subject(settings).records.parts) == 2
    settings = SubjectSettings(model=f"{file}:Optional", data=f"{file}:own?inputs=4", device="cpu")
    assert len(open_subject(settings).records) == 4


def test_in_python_the_model_is_asked_too() -> None:
    data: Any = TensorDataset(LEFT, RIGHT, CLASS)
    report = gradaudit.audit(Pair(), data, audits=["sensitivity"], samples=3)
    assert report.data["notes"] == {"inputs": {"0": [3], "1": [3]}}
    with pytest.raises(DataError, match=r"item 0 is tuple of 3, and 3 inputs and a label"):
        records_of(data, "data", inputs=3)


@pytest.mark.parametrize(
    ("forward", "takes"),
    [
        (lambda x: x, (1, 1)),
        (lambda x, y: x, (2, 2)),
        (lambda x, y=None: x, (1, 2)),
        (lambda x, *, y: x, (1, 1)),
        (lambda **named: 0, (0, 0)),
    ],
)
def test_arguments_are_counted(forward: Callable[..., Any], takes: tuple[int, int]) -> None:
    model = nn.Module()
    model.forward = forward
    assert positional_arguments(model) == takes
