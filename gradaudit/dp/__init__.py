"""Differential privacy measured: what a mechanism promises, and what its releases show."""
