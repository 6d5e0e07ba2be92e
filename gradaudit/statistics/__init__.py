"""Intervals, tests and bootstraps: one home each, whatever they are of."""

CONFIDENCE = 0.95
"""Of every two-sided interval that nobody asked otherwise of."""
