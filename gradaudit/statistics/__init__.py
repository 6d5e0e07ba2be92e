"""Intervals, tests and bootstraps: one home each, whatever they are of."""

CONFIDENCE = 0.95
"""Confidence level of every two-sided interval for which none is asked for."""
