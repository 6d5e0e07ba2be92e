"""Bounds and laws of the privacy parameter ε."""
