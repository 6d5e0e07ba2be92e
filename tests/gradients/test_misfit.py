"""Where a model cannot be run, its error names the module and the size that would do."""

import pytest
import torch
from torch import nn

from gradaudit.errors import AuditError
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.losses import BUILT_IN
from gradaudit.models.target import Target

FLAT = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
CONVOLVED = nn.Sequential(nn.Conv2d(3, 2, 5), nn.Flatten(), nn.Linear(2 * 28 * 28, 10))


@pytest.mark.parametrize(
    ("model", "shape", "words"),
    [
        (
            FLAT,
            (1, 32, 32),
            r"1 expects 784 inputs; these records flatten to 1024: say size=28x28 ",
        ),
        (FLAT, (3, 32, 32), r"records flatten to 3072: it takes pictures of 1x28x28"),
        (FLAT, (12,), r"1 expects 784 inputs; these records flatten to 12; name"),
        (CONVOLVED, (3, 64, 64), r"2 expects 1568 inputs; it gets 7200: say size=32x32 in --data"),
        (CONVOLVED, (1, 32, 32), r"0 expects 3 channels; it gets 1: say channels=3 in --data"),
        (nn.Embedding(3, 2), (4,), r"it is an embedding, which looks up whole numbers"),
    ],
)
def test_the_size_that_would_do_is_named(
    model: nn.Module, shape: tuple[int, ...], words: str
) -> None:
    functional = FunctionalModel.of(Target(model, BUILT_IN["cross-entropy"]()))
    with pytest.raises(AuditError, match=words):
        functional.check(functional.cast(torch.zeros(2, *shape)), torch.zeros(2, dtype=torch.long))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_codes_beyond_an_embedding_are_named() -> None:
    model = nn.Sequential(nn.Embedding(300, 2), nn.Flatten(), nn.Linear(8, 2))
    functional = FunctionalModel.of(Target(model, BUILT_IN["cross-entropy"]()))
    words = r"0 is an embedding of 300 codes, .* have codes up to 999: say vocabulary=300 in --data"
    with pytest.raises(AuditError, match=words):
        functional.check(torch.tensor([[1, 2, 3, 999]]), torch.zeros(1, dtype=torch.long))
