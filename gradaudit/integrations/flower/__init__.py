"""Flower: a client mod that sees what leaves, strategies that see what arrives or let canaries in.

Source: Flower's documentation of its message API (2025), mods and strategies, as of flwr 1.41.
"""

from gradaudit.integrations.flower.canaries import CanaryStrategy, let_in
from gradaudit.integrations.flower.observing import ObservedStrategy, ObserverMod

__all__ = ["CanaryStrategy", "ObservedStrategy", "ObserverMod", "let_in"]
