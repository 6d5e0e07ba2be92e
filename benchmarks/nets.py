"""Models that several benchmarks take: residual nets, and language models by their sizes."""

import json
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from gradaudit.models.building import load_model

Norm = Callable[[int], nn.Module]


def group_norm(channels: int) -> nn.Module:
    """Of four groups."""
    return nn.GroupNorm(4, channels)


def pointwise(before: int, after: int, stride: int) -> nn.Module:
    """A convolution of 1 × 1 without a bias."""
    return nn.Conv2d(before, after, 1, stride, bias=False)


class Residual(nn.Module):
    """Two convolutions of 3 × 3 with norms, and a way around them (He et al. 2015).

    The way around is what came in, or a convolution of 1 × 1 with a norm where the shape changes;
    ``shortcut`` makes another one.
    """

    def __init__(
        self,
        before: int,
        after: int | None = None,
        stride: int = 1,
        *,
        norm: Norm = nn.BatchNorm2d,
        bias: bool = False,
        shortcut: Callable[[int, int, int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        after = after or before
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=bias)
        self.norm1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=bias)
        self.norm2 = norm(after)
        self.around: nn.Module = nn.Sequential()
        if shortcut is not None:
            self.around = shortcut(before, after, stride)
        elif before != after:
            self.around = nn.Sequential(pointwise(before, after, stride), norm(after))

    def forward(self, x: Tensor) -> Tensor:
        """(records, before, height, width) to (records, after, …)."""
        inner = torch.relu(self.norm1(self.conv1(x)))
        output: Tensor = torch.relu(self.norm2(self.conv2(inner)) + self.around(x))
        return output


def resnet18(*, classes: int) -> nn.Module:
    """ResNet-18 for small pictures, without the first pool."""
    net: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(3, 64, 3, padding=1, bias=False), bn1=nn.BatchNorm2d(64), relu=nn.ReLU()
    )
    before = 64
    for number, after in enumerate((64, 128, 256, 512), start=1):
        first = Residual(before, after, 1 if number == 1 else 2)
        net[f"layer{number}"] = nn.Sequential(first, Residual(after))
        before = after
    net |= OrderedDict(
        pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), output=nn.Linear(512, classes)
    )
    return nn.Sequential(net)


def small_residual() -> nn.Module:
    """Three blocks of 16 to 64 channels for pictures in colour, ten classes."""
    widths = ((16, 16, 1), (16, 32, 2), (32, 64, 2))
    blocks = [Residual(*width, shortcut=pointwise) for width in widths]
    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), *blocks, *ends)


def of_config(kind: str, architecture: str, **sizes: object) -> nn.Module:
    """A model of ``transformers`` with fresh weights, loaded as ``hf:FOLDER`` loads it."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"model_type": kind, "architectures": [architecture], **sizes}
        (Path(folder) / "config.json").write_text(json.dumps(settings))
        return load_model(f"hf:{folder}")
