"""Shared by everything that infers from gradients: splits, batches of one value, scores."""
