"""Rows of the rank deficiency audit; their details say what the ranks rest on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from gradaudit.report import Measurement, skipped

if TYPE_CHECKING:
    from gradaudit.ranks.model import LayerRanks

UNIT = "dimensions"
ADVICE = (
    "A network is less secure against COPA if wide convolutions greatly enlarge the feature space "
    "near the input and it only shrinks towards the last layer; where that matters, prefer a "
    "design with a small (strongly negative) c(M), which loses dimensions in its first layers "
    "(Chen & Campbell 2021, recommendations on architectural design)."
)


def layer_rows(audit: str, ranks: LayerRanks, seed: int) -> Iterator[Measurement]:
    """The rows of one convolution; the facts behind the rank stand with each of them."""
    from gradaudit.ranks.account import account

    facts = account(ranks.records, seed)
    size, count = ranks.inputs, len(ranks.records)
    high, span = fmean(ranks.high), (min(ranks.low), max(ranks.high))

    def row(metric: str, value: float, interval: tuple[float, float], unit: str) -> Measurement:
        return Measurement(
            audit=audit,
            metric=metric,
            layer=ranks.layer,
            value=value,
            interval=_spread(*interval),
            unit=unit,
            n=count,
            details=facts,
        )

    yield row("rank_deficit", size - high, (size - span[1], size - span[0]), UNIT)
    yield row("rank", high, span, UNIT)
    yield row("inputs", size, (size, size), UNIT)
    yield row("rank_share", high / size, (span[0] / size, span[1] / size), "")


def c_row(
    audit: str,
    chain: Sequence[str],
    ranks: Mapping[str, LayerRanks],
    reasons: Mapping[str, str],
) -> Measurement:
    """c(M) of a chain of convolutions, or which of them has no rank."""
    from gradaudit.ranks.account import weakest_method
    from gradaudit.ranks.model import rank_deficiency

    for name in chain:
        if name not in ranks:
            why = reasons.get(name, "left out of this audit, or frozen")
            return skipped(audit, ["c"], [None], f"{name} has no rank: {why}")[0]
    measured = [ranks[name] for name in chain]
    sizes = [layer.inputs for layer in measured]
    low = rank_deficiency([layer.low for layer in measured], sizes)
    high = rank_deficiency([layer.high for layer in measured], sizes)
    return Measurement(
        audit=audit,
        metric="c",
        value=fmean(high),
        interval=_spread(min(low), max(high)),
        n=len(high),
        details={
            "method": weakest_method([rank for layer in measured for rank in layer.records]),
            "convolutions": list(chain),
            "by_record": [list(ends) for ends in zip(low, high, strict=True)],
            "advice": ADVICE,
            "remark": ADVICE,
        },
    )


def _spread(low: float, high: float) -> tuple[float, float] | None:
    """Brackets and records that differ; None where all records have one and the same rank."""
    return (low, high) if low < high else None
