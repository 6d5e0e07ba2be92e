"""Sets of consecutive layers whose updates an attacker uses together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue

from gradaudit.audits._vinfo_rows import AUDIT
from gradaudit.report import Measurement, Variant, skipped

if TYPE_CHECKING:
    from gradaudit.models.target import Layer

METRICS = VINFO, SUCCESS = "original_vinfo", "original_success"


@dataclass(frozen=True)
class LayerSet:
    """Consecutive layers whose updates an attacker uses together."""

    layers: "tuple[Layer, ...]"

    @property
    def names(self) -> list[JsonValue]:
        """The layers' names."""
        return [layer.name for layer in self.layers]

    @property
    def layer(self) -> str | None:
        """The layer of its rows: a single one's own."""
        return self.layers[0].name if len(self.layers) == 1 else None

    @property
    def variant(self) -> Variant:
        """Names the layers where there are several."""
        if len(self.layers) == 1:
            return {}
        return {"layers": "+".join(layer.name for layer in self.layers)}


def layer_sets(layers: "Sequence[Layer]", sizes: Sequence[int]) -> list[LayerSet]:
    """Sets of so many consecutive layers: what lies between them in the model is among them."""
    windows = [
        tuple(layers[start : start + size])
        for size in sizes
        for start in range(len(layers) - size + 1)
    ]
    return [
        LayerSet(window)
        for window in windows
        if window[-1].position - window[0].position == len(window) - 1
    ]


def skipped_rows(chosen: LayerSet | None, variant: Variant, reason: str) -> Iterator[Measurement]:
    """Rows of a set that was not attacked."""
    layer = chosen.layer if chosen else None
    own = {**variant, **(chosen.variant if chosen else {})}
    for row in skipped(AUDIT, METRICS, [layer], reason):
        yield row.model_copy(update={"variant": own})
