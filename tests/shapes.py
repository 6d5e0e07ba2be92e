"""Small models as users have them: outputs, inputs, labels and layers of every shape."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.ao.quantization import (
    DeQuantStub,
    QuantStub,
    disable_observer,
    get_default_qat_qconfig,
    prepare_qat,
)
from torch.nn.utils import parametrizations

from gradaudit.models.losses import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquaredError
from gradaudit.models.torch_losses import user_loss

COUNT = 12
PlainLoss = Callable[[Tensor, Tensor], Tensor]


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def whole(seed: int, high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


TABLE, PICTURES, TOKENS = drawn(0, COUNT, 6), drawn(1, COUNT, 1, 6, 6), whole(2, 9, COUNT, 4)
CODES = torch.stack([whole(high, high, COUNT) for high in (4, 5)], dim=1)
CLASS, REAL, HALF = whole(3, 3, COUNT), drawn(4, COUNT), whole(5, 2, COUNT)
PIXELS, TAGS, SEVERAL = whole(6, 3, COUNT, 6, 6), whole(7, 4, COUNT, 4), whole(8, 2, COUNT, 3)
UNTAGGED = TAGS.clone()
UNTAGGED[::2, 1:3] = -100
MASK = torch.ones(COUNT, 4, dtype=torch.bool)
MASK[::3, 2:] = False
WEIGHT = torch.tensor([0.2, 0.3, 0.5])


class Net(nn.Module):
    """Parts by name, and what is done with them."""

    def __init__(self, run: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self.run = run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


@dataclass
class ModelOutput:
    """As transformers have it."""

    loss: Tensor | None
    logits: Tensor


def mlp(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, outputs))


def gives(form: Callable[[Tensor], Any], outputs: int = 3) -> nn.Module:
    return Net(lambda net, x: form(net.net(x)), net=mlp(outputs))


def head(body: Callable[..., Tensor], width: int, **parts: nn.Module) -> nn.Module:
    return Net(lambda net, x: net.head(body(net, x)), **parts, head=nn.Linear(width, 3))


def tagger(last: Callable[[Tensor], Tensor]) -> nn.Module:
    return Net(
        lambda net, x: last(net.head(net.gru(net.table(x))[0])),
        table=nn.Embedding(9, 4),
        gru=nn.GRU(4, 4, batch_first=True),
        head=nn.Linear(4, 4),
    )


def tied() -> nn.Module:
    net = Net(
        lambda net, x: net.head(torch.tanh(net.mix(net.table(x).mean(1)))),
        table=nn.Embedding(9, 4),
        mix=nn.Linear(4, 4),
        head=nn.Linear(4, 9, bias=False),
    )
    net.head.weight = net.table.weight
    return net


def frozen() -> nn.Module:
    net = mlp(3)
    net[0].requires_grad_(False)
    return net


def quantised() -> nn.Module:
    """After some steps of calibration, as a checkpoint has it."""
    conv = nn.Sequential(QuantStub(), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten())
    net = nn.Sequential(*conv, nn.Linear(32, 3), DeQuantStub()).train()
    net.qconfig = get_default_qat_qconfig("fbgemm")
    prepare_qat(net, inplace=True)
    net(PICTURES)
    return net.apply(disable_observer).eval()


def masked(net: Any, tokens: Tensor, mask: Tensor, numbers: Tensor) -> Tensor:
    weight = mask[..., None].to(numbers)
    mean = (net.table(tokens) * weight).sum(1) / weight.sum(1)
    return net.head(torch.tanh(mean + net.numbers(numbers)))  # type: ignore[no-any-return]


def cells(net: Any, x: Tensor) -> Tensor:
    state = None
    for step in x.reshape(len(x), 3, 2).unbind(1):
        state = net.cell(step, state)
    return state[0]  # type: ignore[index]


def attended(net: Any, x: Tensor) -> Tensor:
    seen = net.table(x)
    return net.mix(seen, seen, seen)[0].mean(1)  # type: ignore[no-any-return]


def convolved(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), *between, nn.Flatten(), nn.Linear(32, 3))


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels)


def last_are_classes(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs.mT, labels)


def bce(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs, labels.to(outputs).reshape(outputs.shape))


def mse(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.mse_loss(outputs, labels.reshape(outputs.shape))


@dataclass(frozen=True)
class Shape:
    """A model with data and a loss.

    Attributes:
        plain: the loss of a record as torch has it.
        reasons: why an audit has no number of any layer.
        tolerance: of gradients against torch's, which has some in single precision.
    """

    make: Callable[[], nn.Module]
    inputs: Tensor | Mapping[str, Tensor]
    labels: Tensor
    loss: Callable[[], Loss] = CrossEntropy
    plain: PlainLoss = cross_entropy
    mode: str = "eval"
    reasons: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 1e-9

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make()


TOGETHER = dict.fromkeys(
    ("sensitivity", "subspace", "forward"), "normalises by its batch's statistics"
)
SHAPES: dict[str, Shape] = {
    "flat-mse": Shape(lambda: gives(lambda o: o[:, 0], 1), TABLE, REAL, MeanSquaredError, mse),
    "flat-bce": Shape(lambda: gives(lambda o: o[:, 0], 1), TABLE, HALF, BinaryCrossEntropy, bce),
    "column-bce": Shape(lambda: mlp(1), TABLE, HALF, BinaryCrossEntropy, bce),
    "column-labels": Shape(
        lambda: mlp(3), TABLE, CLASS[:, None], plain=lambda o, y: cross_entropy(o, y.reshape(-1))
    ),
    "two-real": Shape(lambda: mlp(2), TABLE, drawn(9, COUNT, 2), MeanSquaredError, mse),
    "mapping": Shape(lambda: gives(lambda o: {"logits": o}), TABLE, CLASS),
    "tuple": Shape(lambda: gives(lambda o: (o, None)), TABLE, CLASS),
    "model-output": Shape(lambda: gives(lambda o: ModelOutput(None, o)), TABLE, CLASS),
    "multi-label": Shape(lambda: mlp(3), TABLE, SEVERAL, BinaryCrossEntropy, bce),
    "segmentation": Shape(
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.ConvTranspose2d(2, 3, 3)),
        PICTURES,
        PIXELS,
    ),
    "autoencoder": Shape(
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.ConvTranspose2d(2, 1, 3)),
        PICTURES,
        PICTURES.clone(),
        MeanSquaredError,
        mse,
    ),
    "tags": Shape(lambda: tagger(lambda o: o.mT), TOKENS, TAGS),
    "tags-last": Shape(
        lambda: Net(
            lambda net, x: net.head(net.table(x)), table=nn.Embedding(9, 4), head=nn.Linear(4, 5)
        ),
        TOKENS,
        TAGS,
        plain=last_are_classes,
    ),
    "ignored": Shape(lambda: tagger(lambda o: o.mT), TOKENS, UNTAGGED),
    "weighted-ignored": Shape(
        lambda: nn.Conv2d(1, 3, 3, padding=1),
        PICTURES,
        PIXELS,
        lambda: user_loss(nn.CrossEntropyLoss(WEIGHT, ignore_index=1), "file.py:loss"),
        lambda o, y: F.cross_entropy(o, y, WEIGHT.to(o), ignore_index=1),
    ),
    "arguments": Shape(
        lambda: Net(
            masked, table=nn.Embedding(9, 4), numbers=nn.Linear(6, 4), head=nn.Linear(4, 3)
        ),
        {"tokens": TOKENS, "mask": MASK, "numbers": TABLE},
        CLASS,
    ),
    "code": Shape(
        lambda: head(lambda net, x: net.table(x), 4, table=nn.Embedding(9, 4)), TOKENS[:, 0], CLASS
    ),
    "codes": Shape(
        lambda: head(
            lambda net, x: torch.cat([net.a(x[:, 0]), net.b(x[:, 1])], 1),
            5,
            a=nn.Embedding(4, 3),
            b=nn.Embedding(5, 2),
        ),
        CODES,
        CLASS,
    ),
    "codes-and-numbers": Shape(
        lambda: head(
            lambda net, x: torch.tanh(net.a(x[:, 0].long()) + net.b(x[:, 1:])),
            3,
            a=nn.Embedding(4, 3),
            b=nn.Linear(6, 3),
        ),
        torch.cat([CODES[:, :1].float(), TABLE], dim=1),
        CLASS,
    ),
    "bag": Shape(
        lambda: head(lambda net, x: net.table(x), 4, table=nn.EmbeddingBag(9, 4)), TOKENS, CLASS
    ),
    "attention": Shape(
        lambda: head(
            attended,
            4,
            table=nn.Embedding(9, 4),
            mix=nn.MultiheadAttention(4, 2, batch_first=True),
        ),
        TOKENS,
        CLASS,
    ),
    "lstm-cell": Shape(lambda: head(cells, 3, cell=nn.LSTMCell(2, 3)), TABLE, CLASS),
    "gru": Shape(
        lambda: head(
            lambda net, x: net.gru(x.reshape(-1, 3, 2))[0][:, -1],
            3,
            gru=nn.GRU(2, 3, batch_first=True),
        ),
        TABLE,
        CLASS,
    ),
    "group-norm": Shape(lambda: convolved(nn.GroupNorm(1, 2), nn.ReLU()), PICTURES, CLASS),
    "batch-norm": Shape(lambda: convolved(nn.BatchNorm2d(2), nn.ReLU()), PICTURES, CLASS),
    "batch-norm-training": Shape(
        lambda: convolved(nn.BatchNorm2d(2), nn.ReLU()),
        PICTURES,
        CLASS,
        mode="train",
        reasons=TOGETHER,
    ),
    "batch-norm-of-vectors-training": Shape(
        lambda: head(
            lambda net, x: net.norm(net.first(x)).relu(),
            5,
            first=nn.Linear(6, 5),
            norm=nn.BatchNorm1d(5),
        ),
        TABLE,
        CLASS,
        mode="train",
        reasons=TOGETHER,
    ),
    "hard-sigmoid": Shape(
        lambda: convolved(nn.Hardswish(), nn.Hardsigmoid()), PICTURES, CLASS, tolerance=1e-7
    ),
    "bare-hard-functions": Shape(
        lambda: Net(
            lambda net, x: net.head(
                F.hardsigmoid(F.hardswish(net.conv(x)), inplace=True).flatten(1)
            ),
            conv=nn.Conv2d(1, 2, 3),
            head=nn.Linear(32, 3),
        ),
        PICTURES,
        CLASS,
        tolerance=1e-7,
    ),
    "weight-norm": Shape(
        lambda: nn.Sequential(
            parametrizations.weight_norm(nn.Linear(6, 4)),
            nn.Tanh(),
            parametrizations.weight_norm(nn.Linear(4, 3)),
        ),
        TABLE,
        CLASS,
    ),
    "tied": Shape(tied, TOKENS, CLASS),
    "frozen": Shape(frozen, TABLE, CLASS),
    "quantised": Shape(quantised, PICTURES, CLASS, tolerance=1e-4),
}
