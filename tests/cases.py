"""The one table of small cases that all tests of measuring code run over: models × losses.

A case is small enough for a dense float64 Jacobian of every layer's gradient by a plain loop.
Use it as ``@pytest.mark.parametrize("case", CASES, ids=str)``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from subjects import seeded
from torch import Tensor, nn

from gradaudit.models.custom_loss import CustomLoss
from gradaudit.models.losses import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquaredError
from gradaudit.models.target import Target

RECORDS = 3


@dataclass(frozen=True)
class Case:
    """A model and a few records that fit it.

    Attributes:
        id: a readable name.
        build: makes the model; draws from torch's global generator.
        inputs: (RECORDS, …) float64, or int64 tokens.
        labels: (RECORDS,) int64 classes, or float64 targets.
        loss: the training loss.
        couples: whether a record's gradient depends on the other records in training mode.
    """

    id: str
    build: Callable[[], nn.Module]
    inputs: Tensor
    labels: Tensor
    loss: Loss
    couples: bool = False

    def __str__(self) -> str:
        return self.id

    def make_model(self, seed: int = 0) -> nn.Module:
        """The model in float64 and eval mode, with weights and buffers drawn under the seed."""
        with seeded(seed):
            model = self.build().double().eval()
            for name, buffer in model.named_buffers():
                if name.endswith("running_mean"):
                    buffer.normal_()
                elif name.endswith("running_var"):
                    buffer.uniform_(0.5, 2)
        return model

    def target(self, seed: int = 0) -> Target:
        """The model as a target in eval mode."""
        return Target(self.make_model(seed), self.loss, description=self.id)


def _real(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(RECORDS, *shape, generator=generator, dtype=torch.float64)


def _classes(count: int) -> Tensor:
    return torch.arange(RECORDS) % count


def _tokens(length: int, vocabulary: int) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(vocabulary, (RECORDS, length), generator=generator)


def _log_cosh(outputs: Tensor, targets: Tensor) -> Tensor:
    """A custom loss that reduces to a mean."""
    return (outputs - targets).cosh().log().mean()


def _squared_hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    """A custom loss that gives one loss a record, for class labels."""
    margins = 1 - outputs.gather(1, targets[:, None]) + outputs
    return margins.relu().square().sum(dim=1)


CROSS_ENTROPY = CrossEntropy()
MSE = MeanSquaredError()
BCE = BinaryCrossEntropy()
LOG_COSH = CustomLoss(_log_cosh, "cases.py:log_cosh")
SQUARED_HINGE = CustomLoss(_squared_hinge, "cases.py:squared_hinge")


def _mlp(inputs: int, outputs: int, activation: type[nn.Module], *, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 4, bias), activation(), nn.Linear(4, outputs, bias))


def _saturated() -> nn.Module:
    """Certain of its labels (drawn with seed 0) by up to 27 nats: 1 − p_y is lost in a float."""
    model = _mlp(4, 3, nn.Tanh)
    with torch.no_grad():
        model[2].weight.mul_(120)  # type: ignore[index]
    return model


class Tied(nn.Module):
    """An autoencoder whose decoder's weight is the encoder's, held by two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.decoder = nn.Linear(4, 4)
        self.decoder.weight = self.encoder.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x).tanh())  # type: ignore[no-any-return]


class Reused(nn.Module):
    """One module called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.step(self.step(x).tanh()).tanh())  # type: ignore[no-any-return]


class Unused(nn.Module):
    """A layer that never runs, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(4, 3)
        self.frozen = nn.Linear(4, 4).requires_grad_(requires_grad=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.frozen(x).tanh())  # type: ignore[no-any-return]


class OwnParameters(nn.Module):
    """Parameters that the model itself owns, used by no layer's forward."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))
        self.mixing = nn.Parameter(torch.randn(4, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x * self.scale @ self.mixing).tanh())  # type: ignore[no-any-return]


class Residual(nn.Module):
    """A convolution block with a skip connection and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 2, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(2)
        self.fc = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = (x + self.norm1(self.conv1(x))).tanh()
        return self.fc(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


class Text(nn.Module):
    """Embedded tokens, a convolution over them, the mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 3)
        self.conv = nn.Conv1d(3, 4, 2)
        self.fc = nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.conv(self.embedding(tokens).transpose(1, 2)).tanh()
        return self.fc(x.mean(dim=2))  # type: ignore[no-any-return]


class Conv1D(nn.Module):
    """A linear layer whose weight lies as (in, out), as transformers has it and calls it."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.nf = outputs
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return flat.reshape(*x.shape[:-1], self.nf)


class Language(nn.Module):
    """Tokens, a feed-forward block, and the embedding as the head; the mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 3)
        self.norm = nn.LayerNorm(3)
        self.up, self.down = Conv1D(5, 3), Conv1D(3, 5)
        self.head = nn.Linear(3, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.down(self.up(self.norm(x)).tanh())
        return self.head(x).mean(dim=1)  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """An LSTM read out at its last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 3, batch_first=True)
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(x)[0][:, -1])  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Self-attention with two heads, the mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.fc(x.mean(dim=1))  # type: ignore[no-any-return]


def _head(*layers: nn.Module, features: int, outputs: int = 3) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, outputs))


def _conv_strided() -> nn.Module:
    first = nn.Conv2d(2, 3, 3, stride=2, padding=1)
    return _head(first, nn.Tanh(), nn.Conv2d(3, 2, 2), nn.Tanh(), features=8)


def _conv_grouped() -> nn.Module:
    first = nn.Conv2d(4, 4, (2, 1), groups=2, dilation=2, padding=(1, 0))
    return _head(first, nn.Sigmoid(), nn.Conv2d(4, 4, 2, groups=4), nn.Tanh(), features=12)


def _conv_padding_modes() -> nn.Module:
    first = nn.Conv2d(1, 2, 3, padding="same", padding_mode="reflect")
    second = nn.Conv2d(2, 2, (1, 3), stride=(2, 1), padding=(0, 1), padding_mode="circular")
    return _head(first, nn.Tanh(), second, nn.Tanh(), features=16)


def _conv_pooled() -> nn.Module:
    first = nn.Conv2d(1, 3, 3, padding=1, bias=False)
    return _head(first, nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 1), nn.Tanh(), features=8)


def _conv_1d() -> nn.Module:
    first = nn.Conv1d(2, 3, 3, stride=2, padding=2)
    return _head(first, nn.Tanh(), nn.AvgPool1d(2), features=6)


def _conv_3d() -> nn.Module:
    return _head(nn.Conv3d(1, 2, 2, padding=(1, 0, 0)), nn.Tanh(), features=24)


def _autoencoder() -> nn.Module:
    down = nn.Conv2d(1, 2, 2, stride=2)
    return nn.Sequential(down, nn.Tanh(), nn.ConvTranspose2d(2, 1, 2, stride=2))


def _group_norm() -> nn.Module:
    return _head(nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.Tanh(), features=16)


def _layer_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3))


def _batch_norm() -> nn.Module:
    return _head(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.Sigmoid(), features=12)


def _transformer() -> nn.Module:
    block = nn.TransformerEncoderLayer(4, 2, dim_feedforward=5, dropout=0.0, batch_first=True)
    return nn.Sequential(block, nn.Flatten(), nn.Linear(8, 2))


CASES = [
    Case("mlp-tanh", lambda: _mlp(4, 3, nn.Tanh), _real(4), _classes(3), CROSS_ENTROPY),
    Case("mlp-relu-mse", lambda: _mlp(5, 2, nn.ReLU), _real(5), _real(2), MSE),
    Case("mlp-mse-on-classes", lambda: _mlp(4, 3, nn.Tanh), _real(4), _classes(3), MSE),
    Case("mlp-bce-one-logit", lambda: _mlp(4, 1, nn.Sigmoid), _real(4), _classes(2), BCE),
    Case("mlp-no-bias", lambda: _mlp(4, 3, nn.GELU, bias=False), _real(4), _classes(3), BCE),
    Case("mlp-custom-mean", lambda: _mlp(4, 2, nn.Tanh), _real(4), _real(2), LOG_COSH),
    Case("mlp-custom-each", lambda: _mlp(4, 3, nn.Tanh), _real(4), _classes(3), SQUARED_HINGE),
    Case("mlp-saturated", _saturated, _real(4), torch.tensor([2, 0, 1]), CROSS_ENTROPY),
    Case("conv-strided", _conv_strided, _real(2, 5, 5), _classes(3), CROSS_ENTROPY),
    Case("conv-grouped-dilated", _conv_grouped, _real(4, 4, 2), _classes(3), CROSS_ENTROPY),
    Case("conv-padding-modes", _conv_padding_modes, _real(1, 4, 4), _real(3), MSE),
    Case("conv-pooled", _conv_pooled, _real(1, 4, 4), _classes(3), CROSS_ENTROPY),
    Case("conv-1d", _conv_1d, _real(2, 6), _classes(3), CROSS_ENTROPY),
    Case("conv-3d", _conv_3d, _real(1, 2, 3, 3), _classes(3), CROSS_ENTROPY),
    Case("conv-autoencoder", _autoencoder, _real(1, 4, 4), _real(1, 4, 4), MSE),
    Case("group-norm", _group_norm, _real(1, 3, 3), _classes(3), CROSS_ENTROPY),
    Case("layer-norm", _layer_norm, _real(4), _classes(3), CROSS_ENTROPY),
    Case("batch-norm", _batch_norm, _real(1, 3, 3), _classes(3), CROSS_ENTROPY, couples=True),
    Case("residual", Residual, _real(2, 3, 3), _classes(3), CROSS_ENTROPY, couples=True),
    Case("tied-weights", Tied, _real(4), _real(4), MSE),
    Case("reused-module", Reused, _real(4), _classes(3), CROSS_ENTROPY),
    Case("unused-and-frozen", Unused, _real(4), _classes(3), CROSS_ENTROPY),
    Case("own-parameters", OwnParameters, _real(4), _classes(3), CROSS_ENTROPY),
    Case("text", Text, _tokens(5, 9), _classes(2), CROSS_ENTROPY),
    Case("language", Language, _tokens(4, 9), _classes(9), CROSS_ENTROPY),
    Case("lstm", Recurrent, _real(3, 2), _classes(2), CROSS_ENTROPY),
    Case("attention", Attention, _real(3, 4), _classes(3), CROSS_ENTROPY),
    Case("transformer", _transformer, _real(2, 4), _classes(2), CROSS_ENTROPY),
]
