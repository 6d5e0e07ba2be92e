"""What crosses from one process to another."""

import pytest

from gradaudit.core import user_code
from gradaudit.executors.shipping import received, shipped

_MISSING = {"operators": True}


class OfTorchvision:
    """Loads where torchvision can be imported, as a model of a library that imports it."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """How it is loaded."""
        return _loaded, ()


def _loaded() -> str:
    if _MISSING["operators"]:
        raise RuntimeError("operator torchvision::nms does not exist")
    return "loaded"


def test_a_worker_defines_the_operators_that_torchvision_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        user_code, "_define_missing_operators", lambda: _MISSING.update(operators=False)
    )
    assert received(shipped(OfTorchvision())) == "loaded"
