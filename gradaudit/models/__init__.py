"""Builds models, losses and weights from what a user names on the command line."""
