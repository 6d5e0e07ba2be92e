"""One audit over a grid of settings: what is varied, its rows in one report, its curves."""
