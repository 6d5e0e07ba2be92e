"""Operations by hand, and as torch's own counter has them."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gradaudit.gradients.memory import flops

MODELS = {
    "convolution": (nn.Conv2d(3, 8, 3, stride=2, groups=1), (2, 3, 9, 9)),
    "groups": (nn.Conv2d(4, 8, 3, groups=2), (2, 4, 9, 9)),
    "attention": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
}


def test_a_matrix_product_has_two_operations_for_each_multiplication() -> None:
    assert flops(lambda: torch.ones(4, 3) @ torch.ones(3, 5) + 1) == 2 * 4 * 3 * 5


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [False, True])
def test_models_are_counted_as_torch_counts_them(name: str, training: bool) -> None:
    model, shape = MODELS[name]
    model.train(training)

    def call() -> None:
        model(torch.ones(shape)).sum().backward()

    with FlopCounterMode(display=False) as counter:
        call()
    assert flops(call) == counter.get_total_flops() > 0
