"""What a report says of how ranks were found: methods, tolerances, gaps, certificates."""

from collections import Counter
from collections.abc import Sequence

from pydantic import JsonValue

from gradaudit.ranks.convolution import Evidence, LayerRank
from gradaudit.ranks.matrix_free import ALPHA, ALPHA_SMALLEST, Nullity
from gradaudit.ranks.operator import Gap

_STRONGEST: tuple[Evidence, ...] = ("exact", "dense", "craig", "generic", "bracket")

_MEANING: dict[Evidence, str] = {
    "exact": "follows from the ranks of filters and output gradients by a theorem",
    "dense": "singular values of U, rows orthonormalised",
    "craig": "probes certify that no more is left open, but for the stated probability",
    "generic": "upper bound, met by almost all weights with the real zeros and ties",
    "bracket": "upper bound; the rank lies in the interval",
}

_CLEAR_GAP = 1e3
_ROUNDING = 1e-14


def weakest_method(ranks: Sequence[LayerRank]) -> Evidence:
    """The method that says least, of all groups of some convolutions."""
    return max((group.method for rank in ranks for group in rank.groups), key=_STRONGEST.index)


def account(ranks: Sequence[LayerRank], seed: int) -> dict[str, JsonValue]:
    """The facts behind the ranks of one convolution, the weakest of all groups and records.

    Args:
        ranks: for one or several records.
        seed: root of the probes' randomness.
    """
    groups = [group for rank in ranks for group in rank.groups]
    methods = Counter(group.method for group in groups)
    facts: dict[str, JsonValue] = {
        "method": weakest_method(ranks),
        "meaning": _MEANING[weakest_method(ranks)],
        "by_record": [[rank.low, rank.high] for rank in ranks],
        "bound": _range([sum(group.bound for group in rank.groups) for rank in ranks]),
        "inputs_read": sum(group.touched for group in ranks[0].groups),
        "filters": _weakest_gap([group.filters for group in groups]),
        "output_gradients": _weakest_gap([group.deltas for group in groups]),
    }
    if len(groups) > 1:
        facts["methods"] = {method: methods[method] for method in sorted(methods)}
    spectra = [group.spectrum for group in groups if group.spectrum]
    if spectra:
        facts["singular_values"] = _weakest_gap(spectra)
    searches = [group.search for group in groups if group.search]
    if searches:
        facts["certificate"] = {**_certificate(searches), "seed": seed}
    return facts


def _weakest_gap(gaps: Sequence[Gap]) -> dict[str, JsonValue]:
    """The closest calls: relative singular values on both sides of the tolerance."""
    smallest = min(gap.smallest for gap in gaps)
    dropped = max(gap.largest_dropped for gap in gaps)
    facts: dict[str, JsonValue] = {
        "rank": _range([gap.rank for gap in gaps]),
        "smallest_kept": smallest,
        "largest_dropped": dropped,
        "tolerance": max(gap.tolerance for gap in gaps),
    }
    if any(
        gap.largest_dropped > _ROUNDING and gap.smallest < _CLEAR_GAP * gap.largest_dropped
        for gap in gaps
    ):
        facts["caution"] = "no clear gap at the tolerance: the rank depends on where it is set"
    return facts


def _certificate(searches: Sequence[Nullity]) -> dict[str, JsonValue]:
    """The certificate of all searches together, by the union bound and the weakest of them."""
    facts: dict[str, JsonValue] = {
        "error_probability": ALPHA * sum(search.looks for search in searches),
        "probes": max(search.probes for search in searches),
        "iterations": max(search.iterations for search in searches),
        "residual": max(search.residual for search in searches),
        "full_rank_of": ", ".join(sorted({search.side for search in searches})),
    }
    smallest = [search.smallest for search in searches if search.smallest is not None]
    if smallest:
        facts["smallest_singular_value_at_least"] = min(smallest)
        facts["smallest_singular_value_probability"] = max(0.0, 1 - ALPHA_SMALLEST * len(smallest))
    return facts


def _range(numbers: Sequence[int]) -> JsonValue:
    low, high = min(numbers), max(numbers)
    return low if low == high else [low, high]
