"""Observes what updates give away as they leave, within a share of the round's time."""

from gradaudit.observer.observer import Blocked, Observation, Observer, OnFail
from gradaudit.observer.shared_verdict import Verdict
from gradaudit.observer.watching import Steps, StepsCallback, Watch, watch

__all__ = [
    "Blocked",
    "Observation",
    "Observer",
    "OnFail",
    "Steps",
    "StepsCallback",
    "Verdict",
    "Watch",
    "watch",
]
