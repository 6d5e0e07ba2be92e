"""Inference games: what a shared gradient says of an attribute, a property, a ratio, a user."""
