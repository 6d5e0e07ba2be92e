"""Single precision in full: CUDA's products may round to 11 bits (TF32) where floats have 24."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import backends


@contextmanager
def full_single_precision() -> Iterator[None]:
    """Let products and convolutions of float32 keep all its bits; what was set comes back.

    torch lets convolutions round unless it is told otherwise.
    """
    all_of_torch: Any = backends  # whose stubs do not know these
    cuda, cudnn = all_of_torch.cuda, all_of_torch.cudnn
    places = cuda.matmul, cudnn.conv, cudnn.rnn
    before = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = "ieee"
        yield
    finally:
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = precision
