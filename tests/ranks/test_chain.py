"""Which models c(M) is defined for."""

import pytest
import torch
from torch import Tensor, nn

from gradaudit.errors import NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.losses import CrossEntropy
from gradaudit.models.target import Mode, Target
from gradaudit.ranks.observe import chain_of_convolutions

GENERATOR = torch.Generator().manual_seed(0)
RECORD = torch.randn(1, 2, 6, 6, generator=GENERATOR, dtype=torch.float64)


def chain(model: nn.Module, mode: Mode = "eval", record: Tensor = RECORD) -> list[str]:
    functional = FunctionalModel.of(Target(model, CrossEntropy(), mode))
    return chain_of_convolutions(functional, record, 0)


def convolutional(*between: nn.Module) -> nn.Module:
    """Two convolutions with something between them, and a head."""
    body = nn.Sequential(nn.Conv2d(2, 3, 3), *between, nn.Conv2d(3, 2, 2), nn.Flatten()).eval()
    return body.append(nn.Linear(body(RECORD.float()).numel(), 4))


class Flip(nn.Module):
    """Turns pictures around."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flip(3)


def warm(norm: nn.Module) -> nn.Module:
    norm.running_mean.fill_(0.3)
    norm.running_var.fill_(2.0)
    return norm


ELEMENTWISE = {
    "nothing": [],
    "tanh": [nn.Tanh()],
    "relu-in-place": [nn.ReLU(inplace=True)],
    "prelu": [nn.PReLU()],
    "batch-norm": [warm(nn.BatchNorm2d(3)), nn.ReLU()],
    "dropout": [nn.Dropout(0.5)],
}

MIXING = {
    "max-pool": [nn.MaxPool2d(2, padding=1)],
    "max-pool-of-the-same-size": [nn.MaxPool2d(3, stride=1, padding=1)],
    "average-pool-of-the-same-size": [nn.AvgPool2d(3, stride=1, padding=1)],
    "group-norm": [nn.GroupNorm(1, 3)],
    "softmax": [nn.Softmax(dim=1)],
    "flip": [Flip()],
    "upsampling": [nn.Upsample(scale_factor=2)],
}


@pytest.mark.parametrize("between", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_elementwise_functions_keep_the_chain(between: list[nn.Module]) -> None:
    names = chain(convolutional(*between))
    assert names == ["0", str(1 + len(between))]


def test_dropout_keeps_the_chain_in_training_mode_and_batch_norm_breaks_it() -> None:
    assert chain(convolutional(nn.Dropout(0.5)), "train") == ["0", "2"]
    with pytest.raises(NotApplicable, match="2 does not read 0 element by element"):
        chain(convolutional(nn.BatchNorm2d(3)), "train")


@pytest.mark.parametrize("between", MIXING.values(), ids=MIXING)
def test_functions_of_several_elements_break_it(between: list[nn.Module]) -> None:
    with pytest.raises(NotApplicable, match=r"2 (reads 0 through pooling|does not read 0 element)"):
        chain(convolutional(*between))


def test_pooling_before_the_fully_connected_layer_breaks_it() -> None:
    pooled = nn.Sequential(nn.Conv2d(2, 3, 3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 4))
    with pytest.raises(NotApplicable, match="3 reads 0 through pooling"):
        chain(pooled)


def test_several_fully_connected_layers_belong_to_it() -> None:
    head = [nn.Flatten(), nn.Linear(48, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 4)]
    assert chain(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), *head)) == ["0"]


class Branching(nn.Module):
    """Two convolutions and a head, wired as ``kind`` says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first = nn.Conv2d(2, 2, 3, padding=1)
        self.second = nn.Conv2d(2, 2, 3, padding=1)
        self.head = nn.Linear(72, 4)

    def forward(self, x: Tensor) -> Tensor:
        one = self.first(x).tanh()
        two = self.second(x if self.kind == "parallel" else one)
        if self.kind == "residual":
            two = two + one
        elif self.kind == "from-the-record":
            two = two + x
        elif self.kind == "again":
            two = self.second(two)
        outputs: Tensor = self.head(two.flatten(1))
        return outputs + one.mean() if self.kind == "to-the-output" else outputs


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("residual", "a skip connection leads from first to head"),
        ("from-the-record", "a skip connection leads from the record to head"),
        ("to-the-output", "a skip connection leads from first to the output"),
        ("parallel", "second does not read what first gives"),
        ("again", "second is used more than once"),
    ],
)
def test_branches_break_it(kind: str, words: str) -> None:
    with pytest.raises(NotApplicable, match=words):
        chain(Branching(kind))


def test_the_plain_wiring_is_a_chain() -> None:
    assert chain(Branching("plain")) == ["first", "second"]


def test_no_fully_connected_layer_or_one_in_between_breaks_it() -> None:
    with pytest.raises(NotApplicable, match="not followed by fully connected layers"):
        chain(nn.Sequential(nn.Conv2d(2, 3, 6), nn.Flatten()))
    between = [nn.Conv2d(2, 1, 3), nn.Flatten(), nn.Linear(16, 16), nn.Unflatten(1, (1, 4, 4))]
    with pytest.raises(NotApplicable, match="not followed by fully connected layers"):
        chain(nn.Sequential(*between, nn.Conv2d(1, 1, 2), nn.Flatten(), nn.Linear(9, 4)))


def test_embedded_tokens_are_not_the_record() -> None:
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(9, 3)
            self.conv = nn.Conv1d(3, 2, 2)
            self.head = nn.Linear(8, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            outputs: Tensor = self.head(self.conv(self.embedding(tokens).mT).tanh().flatten(1))
            return outputs

    with pytest.raises(NotApplicable, match="conv does not read what the record gives"):
        chain(Text(), record=torch.tensor([[1, 2, 3, 4, 5]]))
