"""The modules that defenses build into a model, and the terms they add to its loss."""
