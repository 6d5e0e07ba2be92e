"""Reconstruction attacks: one a file, found by name."""

from typing import Any

from gradaudit.attacks.reconstruction.base import Candidates, Reconstruction
from gradaudit.attacks.reconstruction.view import AttackerView, LocalTraining
from gradaudit.parts import discover

__all__ = ["AttackerView", "Candidates", "LocalTraining", "Reconstruction", "reconstructions"]


def reconstructions() -> dict[str, type[Reconstruction[Any]]]:
    """Every reconstruction attack by its name."""
    return discover("gradaudit.attacks.reconstruction", Reconstruction)
