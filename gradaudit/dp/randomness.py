"""Seeded randomness for mechanisms, which draw from where they like, and a watch on their draws."""

import gc
import os
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from gradaudit.gradients.functional import drawing_from

_KINDS = {
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    random.Random,
    torch.Generator,
}


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


@contextmanager
def watched_randomness(given: torch.Generator) -> Iterator[Callable[[], bytes]]:
    """Yields what tells the state of all randomness in this process.

    As long as it does not change, or comes back to where it was, nothing was drawn but what is
    drawn again. It sees every generator that Python can reach, the global ones among them, and
    requests to the system for entropy, which fresh generators of numpy and the module ``secrets``
    make. It does not see generators that C code keeps or seeds for itself.

    Args:
        given: the generator that a mechanism is handed.
    """
    requests = 0

    def counted(source: Callable[[int], bytes]) -> Callable[[int], bytes]:
        def urandom(size: int, /) -> bytes:
            nonlocal requests
            requests += 1
            return source(size)

        return urandom

    generators = [given, torch.default_generator, *_living_generators()]
    sources: list[tuple[Any, str]] = [(os, "urandom"), (random, "_urandom")]
    kept = [getattr(module, name) for module, name in sources]
    for (module, name), source in zip(sources, kept, strict=True):
        setattr(module, name, counted(source))
    try:
        yield lambda: pickle.dumps((requests, [_state(one) for one in generators]))
    finally:
        for (module, name), source in zip(sources, kept, strict=True):
            setattr(module, name, source)


def _living_generators() -> list[Any]:
    """Every random generator that some object of this process refers to."""
    held = gc.get_referents(*gc.get_objects())
    untracked = [one for one in held if type(one) in (dict, tuple) and not gc.is_tracked(one)]
    held += gc.get_referents(*untracked)
    wanted = {kind for kind in set(map(type, held)) if not _KINDS.isdisjoint(kind.__mro__)}
    return list({id(one): one for one in held if type(one) in wanted}.values())


def _state(generator: Any) -> object:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.BitGenerator):
        return generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state()
    return None if isinstance(generator, random.SystemRandom) else generator.getstate()
