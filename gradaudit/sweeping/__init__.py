"""Runs one audit over a grid of settings, with all rows in one report and their curves."""
