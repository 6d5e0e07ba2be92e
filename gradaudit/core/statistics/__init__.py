"""Intervals, tests and bootstraps, each in one place for all audits."""

CONFIDENCE = 0.95
"""Confidence level of every two-sided interval for which none is asked for."""
