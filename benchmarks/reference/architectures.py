"""The architectures of the reference models that neither the zoo nor a library has."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.nets import Residual, group_norm
from gradaudit.data.records import Feature


def resnet18_gn(classes: int, width: int = 4) -> nn.Module:
    """ResNet-18 with group norms, of so many channels in the first of its four stages."""
    widths = (width, width, 2 * width, 4 * width, 8 * width)
    blocks = [
        block
        for stage, (before, after) in enumerate(pairwise(widths))
        for block in (
            Residual(before, after, 2 if stage else 1, norm=group_norm),
            Residual(after, norm=group_norm),
        )
    ]
    start = [nn.Conv2d(3, width, 3, padding=1, bias=False), group_norm(width), nn.ReLU()]
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes)]
    return nn.Sequential(*start, *blocks, *end)


class FtTransformer(nn.Module):
    """A transformer whose tokens are a table's columns (Gorishniy et al. 2021).

    A column's token is its one-hot group, or its number, times the rows of ``tokens`` that are the
    column's.
    """

    mine: Tensor

    def __init__(self, features: Sequence[Feature], width: int = 16, classes: int = 2) -> None:
        super().__init__()
        positions = sum(len(feature.positions) for feature in features)
        mine = torch.zeros(len(features), positions)
        for row, feature in zip(mine, features, strict=True):
            row[list(feature.positions)] = 1
        self.register_buffer("mine", mine)
        self.tokens = nn.Linear(positions, width, bias=False)
        self.columns = nn.Parameter(torch.randn(len(features), width) / 4)
        block = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0, batch_first=True)
        self.encoder = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(records, positions) to scores (records, classes)."""
        tokens = self.tokens(x[:, None] * self.mine) + self.columns
        scores: Tensor = self.head(self.encoder(tokens).mean(1))
        return scores


class GruClassifier(nn.Module):
    """Words looked up, read by a GRU, and judged by its last state."""

    def __init__(self, words: int, width: int = 16, classes: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """(texts, positions) to scores (texts, classes)."""
        states, _ = self.gru(self.words(ids))
        scores: Tensor = self.head(states.mean(1))
        return scores


class UNet(nn.Module):
    """One step down, one step up, and the finer features beside the coarser (Ronneberger 2015)."""

    def __init__(self, channels: int = 1, width: int = 8, classes: int = 2) -> None:
        super().__init__()
        self.fine = nn.Conv2d(channels, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.coarse = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.joined = nn.Conv2d(2 * width, width, 3, padding=1)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(records, channels, height, width) to scores (records, classes, height, width)."""
        fine = self.fine(x).relu()
        coarse = self.coarse(self.down(fine).relu()).relu()
        scores: Tensor = self.head(self.joined(torch.cat([fine, self.up(coarse)], 1)).relu())
        return scores


class WaveNet1d(nn.Module):
    """Two strided convolutions over a wave, and the mean of what they find."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(1, 8, 16, stride=4)
        self.conv2 = nn.Conv1d(8, 16, 8, stride=4)
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(records, samples) to scores (records, classes)."""
        found = self.conv2(self.conv1(x[:, None]).relu()).relu()
        scores: Tensor = self.head(found.mean(2))
        return scores
