import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradaudit.attacks.reconstruction.matching import convolutions
from gradaudit.attacks.reconstruction.matching.blocks import Evaluator
from gradaudit.attacks.reconstruction.matching.convolutions import ConvolutionsAsProducts, convolved
from gradaudit.attacks.reconstruction.matching.objectives import Objective
from gradaudit.attacks.reconstruction.matching.unknowns import Targets
from tests.attacks.reconstruction.scenes import cnn, records, view

LAYERS = [
    nn.Conv2d(2, 3, 3),
    nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(0, 1)),
    nn.Conv2d(2, 3, 3, dilation=(1, 2), bias=False),
    nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"),
    nn.Conv2d(2, 4, 3, groups=2),
    nn.Conv2d(2, 4, 3, padding="same"),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("shape", [(2, 6, 7), (3, 2, 6, 7)], ids=str)
def test_convolutions_give_the_same(layer: nn.Conv2d, shape: tuple[int, ...]) -> None:
    layer = layer.double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    with ConvolutionsAsProducts():
        found = layer(x)
    torch.testing.assert_close(found, layer(x), rtol=1e-12, atol=1e-12)


def test_only_small_convolutions_become_products(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.ones(1, 2, 6, 6), torch.ones(3, 2, 3, 3)
    elements = 2 * 9 * 16
    monkeypatch.setattr(convolutions, "MOST_COLUMNS", elements)
    found = convolved(x, weight)
    assert found is not None
    torch.testing.assert_close(found, F.conv2d(x, weight))
    monkeypatch.setattr(convolutions, "MOST_COLUMNS", elements - 1)
    assert convolved(x, weight) is None


def test_a_restart_in_float32_is_evaluated_as_in_float64() -> None:
    seen = view(cnn(), records(1, 6, 6, labels=[1]))
    found = []
    for dtype in (torch.float64, torch.float32):
        objective = Objective(seen.in_precision(dtype), Targets.of(seen.in_precision(dtype), None))
        generator = torch.Generator().manual_seed(0)
        point = torch.randn(1, objective.unknowns, generator=generator, dtype=torch.float64)
        found.append(Evaluator(objective)(point.to(dtype)))
    for wanted, rounded in zip(*found, strict=True):
        torch.testing.assert_close(rounded.double(), wanted, rtol=1e-4, atol=1e-5)
