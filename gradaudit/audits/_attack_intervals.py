"""Being replaced by ``gradaudit.statistics``."""

from gradaudit.statistics import CONFIDENCE

__all__ = ["CONFIDENCE", "clopper_pearson"]


def clopper_pearson(hits: int, count: int) -> tuple[float, float]:
    """Exact two-sided interval of a share."""
    from gradaudit.statistics.rates import clopper_pearson as exact

    return exact(hits, count)
