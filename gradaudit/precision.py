"""Single precision in full: CUDA's products may round to 11 bits (TF32), where gradients have 24."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.backends import cuda, cudnn


@contextmanager
def full_single_precision() -> Iterator[None]:
    """Let products and convolutions of float32 keep all its bits; what was set comes back.

    torch lets convolutions round unless it is told otherwise.
    """
    places = cuda.matmul, cudnn.conv, cudnn.rnn
    before = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = "ieee"
        yield
    finally:
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = precision
