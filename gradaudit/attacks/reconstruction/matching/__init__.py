"""Matching of gradients: objectives, starting points, and minimisers of many problems at once."""
