"""torchvision beside a torch it was not built for.

A torchvision wheel with compiled operators does not import where its extension cannot be loaded
(a CPU-only torch, for one): it registers shapes for the operators ``nms`` and ``qnms``, which then
do not exist. Models and data sets need neither; with their schemas defined the import succeeds.
"""

import importlib
from functools import cache
from types import ModuleType
from typing import Any

import torch

from gradaudit.errors import UsageError

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def import_torchvision(submodule: str) -> Any:
    """Import ``torchvision.<submodule>``.

    Args:
        submodule: for example ``models`` or ``datasets``.

    Raises:
        UsageError: torchvision is missing or does not fit the installed torch.
    """
    try:
        return _import(f"torchvision.{submodule}")
    except (ImportError, RuntimeError) as error:
        reason = str(error).split("\n")[0]
        raise UsageError(
            f"torchvision cannot be imported ({reason}); install the release that goes with "
            f"torch {torch.__version__}"
        ) from error


def _import(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except RuntimeError as error:
        if not str(error).startswith("operator torchvision::nms does not exist"):
            raise
    _define_missing_operators()
    return importlib.import_module(module)


@cache
def _define_missing_operators() -> torch.library.Library:
    """Kept for the life of the process: the definitions go when the library object does."""
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        library.define(operator + _SCHEMA)  # type: ignore[no-untyped-call]
    return library
