"""Flower: a client mod that observes updates, and strategies that observe or add canaries.

Source: Flower's documentation of its message API (2025), mods and strategies, as of flwr 1.41.
"""

from gradaudit.integrations.flower.flower_canaries import CanaryStrategy, let_in
from gradaudit.integrations.flower.observed_rounds import ObservedStrategy, ObserverMod

__all__ = ["CanaryStrategy", "ObservedStrategy", "ObserverMod", "let_in"]
