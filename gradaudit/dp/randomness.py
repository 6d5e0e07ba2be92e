"""Seeded randomness for mechanisms, which may draw from where they like."""

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from gradaudit.gradients.functional import drawing_from


@contextmanager
def reproducible(seed: np.random.SeedSequence, device: torch.device) -> Iterator[torch.Generator]:
    """A generator from a seed; the global generators are seeded too, and put back afterwards.

    A mechanism should draw from the generator that it is given. One that draws from the global
    generators of torch, numpy or Python gets the same numbers in every run all the same.
    """
    own, of_torch, of_numpy, of_python = (int(word) for word in seed.generate_state(4))
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        np.random.seed(of_numpy)  # noqa: NPY002
        random.seed(of_python)
        with drawing_from(of_torch, device):
            yield torch.Generator(device).manual_seed(own)
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)


def randomness_state(generator: torch.Generator) -> bytes:
    """The state of a generator and of the global ones: equal states draw equal numbers."""
    of_torch = [generator.get_state(), torch.get_rng_state()]
    if generator.device.type == "cuda":
        of_torch.append(torch.cuda.get_rng_state(generator.device))
    numpy_state = np.random.get_state()  # noqa: NPY002
    return pickle.dumps(([s.numpy() for s in of_torch], numpy_state, random.getstate()))
