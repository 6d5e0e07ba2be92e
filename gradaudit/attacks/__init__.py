"""Attacks that reconstruct private records from a shared update."""
