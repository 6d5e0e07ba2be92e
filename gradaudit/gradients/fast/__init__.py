"""Faster ways to the same norms, each with a benchmark and the ratio that keeps it."""
