"""Loads job folders as NVFlare and Flower compose them, without training or traces left behind."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import nn


@contextmanager
def fresh_imports(folders: Sequence[Path]) -> Iterator[None]:
    """Import from these folders first; afterwards the path and their modules are gone again.

    Two jobs often have modules of the same name; without this the second gets the first's.
    Generators of NumPy that they make without a seed draw as the global one, which can be seeded.
    """
    kept, made, numpy_random = list(sys.path), np.random.default_rng, cast("Any", np.random)

    def default_rng(seed: Any = None) -> np.random.Generator:
        return np.random.Generator(numpy_random.get_bit_generator()) if seed is None else made(seed)

    sys.path[:0] = [str(folder.resolve()) for folder in folders]
    try:
        np.random.default_rng = default_rng
        yield
    finally:
        np.random.default_rng = made
        sys.path[:] = kept
        for name, _ in modules_in(folders):
            del sys.modules[name]


def models_in(folders: Sequence[Path]) -> list[tuple[Path, type]]:
    """Classes of models that the modules imported from these folders define, with their files."""
    return [
        (file, value)
        for name, file in modules_in(folders)
        for value in vars(sys.modules[name]).values()
        if isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == name
    ]


def modules_in(folders: Sequence[Path]) -> list[tuple[str, Path]]:
    """Names and files of the imported modules that lie in these folders."""
    roots = tuple(f"{folder.resolve()}{os.sep}" for folder in folders)
    files = {
        name: getattr(module, "__dict__", {}).get("__file__")
        for name, module in list(sys.modules.items())
    }
    return [
        (name, Path(file))
        for name, file in files.items()
        if isinstance(file, str) and file.startswith(roots)
    ]
