"""Whether a chain rounds to half precision before or after its noise, told by releases alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gradaudit.audits.dp_audit.middleware.payload import Arrays, Layout, Outgoing
from gradaudit.audits.job.loading.chains import JobChain
from gradaudit.audits.job.probing import probe


def chain(elements: int, sigma: float, *, first: bool) -> JobChain:
    """A chain that adds noise, and rounds to half precision before it or after it."""

    def carry(received: Arrays, given: Outgoing) -> Outgoing:
        left = {}
        for key, array in given.arrays.items():
            array = array.clip(-6e4, 6e4)
            sent = array.astype(np.float16).astype(np.float32) if first else array
            noisy = sent + sigma * np.random.normal(size=array.shape)  # noqa: NPY002 - as filters do
            left[key] = noisy.astype(np.float16).astype(np.float32)
        return replace(given, arrays=left)

    made = JobChain("train", (), "difference", carry)
    return made.receiving(Layout.of({"weight": torch.zeros(elements)}))


@pytest.mark.slow
@pytest.mark.parametrize(("elements", "seeds"), [(73, 3), (2307, 3), (20_000, 1)])
@pytest.mark.parametrize("sigma", [0.5, 5.0])
def test_rounding_after_the_noise_is_no_rounding_before_it(
    elements: int, seeds: int, sigma: float
) -> None:
    for seed in range(seeds):
        after = probe(chain(elements, sigma, first=False), seed)
        assert after.halved
        assert not after.halved_first
        assert probe(chain(elements, sigma, first=True), seed).halved_first
