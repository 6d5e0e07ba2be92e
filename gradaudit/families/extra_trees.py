"""Extremely randomised trees."""

from gradaudit.families.forest import Forest


class ExtraTrees(Forest):
    """Fifty trees with random thresholds, on all rows instead of bootstrap samples.

    Source: P. Geurts et al., "Extremely randomized trees" (2006), table 1.
    """

    name = "extra-trees"
    summary = "50 trees with random thresholds, votes smoothed by Laplace's rule."
    splitter = "random"
    bootstrap = False
