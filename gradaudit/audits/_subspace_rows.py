"""From compared groups to rows: the headline, every comparison, and what to say with them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue

from gradaudit.errors import GradauditError, NotApplicable
from gradaudit.report import Measurement, Status, Variant

if TYPE_CHECKING:
    from gradaudit.subspaces.comparing import Compared, Family
    from gradaudit.subspaces.measure import Outcome
    from gradaudit.subspaces.splits import Split

DISTANCE_TITLES: Mapping[str, str] = {
    "grassmann": "Grassmann distance: root of the sum of squared principal angles",
    "asimov": "Asimov distance: the largest principal angle",
    "chordal": "Chordal distance: root of the sum of squared sines of the principal angles",
    "procrustes": "Procrustes distance: twice the root of the sum of squared sines of half of them",
}
PERMUTED = "grassmann_permuted"
P_VALUE = "p_value"
_RANGE = 0.95
_NO_INTERVAL = "none: resampled records repeat, and repeated records span less"


@dataclass(frozen=True)
class Rows:
    """Makes the rows of one target.

    Attributes:
        audit: its name.
        variant: the round, if it is not the newest.
        reading: of what a group's subspace is.
        splits: all comparisons, also those that are refused.
        permutations: how many there are.
        notes: what every row says.
    """

    audit: str
    variant: Variant
    reading: str
    splits: "tuple[Split, ...]"
    permutations: int
    notes: Mapping[str, JsonValue]

    def of(self, outcomes: "Mapping[str, Outcome]") -> Iterator[Measurement]:
        """The headline of every layer and, where there are several comparisons, each of them.

        Args:
            outcomes: by layer, what was found of the splits that are not refused, by their number
                among them.
        """
        from gradaudit.subspaces.comparing import Family

        every = [each for outcome in outcomes.values() for each in _found(outcome).values()]
        family = Family.of(every)
        for layer, outcome in outcomes.items():
            yield from self._of_layer(layer, outcome, family, len(every))

    def _of_layer(
        self, layer: str, outcome: "Outcome", family: "Family", comparisons: int
    ) -> Iterator[Measurement]:
        from gradaudit.subspaces.comparing import most_significant

        usable = [split for split in self.splits if split.refusal is None]
        found = _found(outcome)
        if found:
            numbers = list(found)
            chosen = numbers[most_significant(list(found.values()))]
            best, p_values = found[chosen], family.p_values(found[chosen])
            yield from self._measured(
                layer, self.variant, usable[chosen], best, p_values, comparisons
            )
        else:
            yield from self._without(layer, self.variant, *_reason(outcome[0]))
        if len(self.splits) == 1:
            return
        for i, split in enumerate(usable):
            variant = self._variant(split)
            if i in found:
                p_values = {name: found[i].p_value(name) for name in DISTANCE_TITLES}
                yield from self._measured(layer, variant, split, found[i], p_values)
            else:
                yield from self._without(layer, variant, *_reason(outcome[i]))
        for split in self.splits:
            if split.refusal is not None:
                yield from self._without(layer, self._variant(split), "skipped", split.refusal)

    def _measured(
        self,
        layer: str,
        variant: Variant,
        split: "Split",
        compared: "Compared",
        p_values: Mapping[str, float],
        comparisons: int = 1,
    ) -> Iterator[Measurement]:
        facts = self._facts(split, compared) | {"comparisons": comparisons}
        for name in DISTANCE_TITLES:
            mean, low, high = _at_random(compared, name)
            details: dict[str, JsonValue] = {
                **facts,
                "p_value": p_values[name],
                "p_value_alone": compared.p_value(name),
                "permuted_mean": mean,
                "permuted_range": [low, high],
                "interval": _NO_INTERVAL,
            }
            yield self._row(layer, name, variant, split, compared.distance(name), details)
        mean, low, high = _at_random(compared, "grassmann")
        row = self._row(layer, PERMUTED, variant, split, mean, facts)
        yield row.model_copy(update={"interval": (low, high), "confidence": _RANGE})
        p_value = p_values["grassmann"]
        error = (p_value * (1 - p_value) / (self.permutations + 1)) ** 0.5
        facts |= {"monte_carlo_error": error, "p_value_alone": compared.p_value("grassmann")}
        yield self._row(layer, P_VALUE, variant, split, p_value, facts)

    def _facts(self, split: "Split", compared: "Compared") -> dict[str, JsonValue]:
        facts: dict[str, JsonValue] = {
            "reading": self.reading,
            "attribute": split.attribute,
            "records": list(split.sizes),
            "permutations": self.permutations,
            "permuted": f"labels of {split.permuted}",
            **self.notes,
            **compared.facts,
            "smallest_angle": float(compared.angles[0]),
        }
        if split.value is not None:
            facts["value"] = split.value
        return facts

    def _row(
        self,
        layer: str,
        metric: str,
        variant: Variant,
        split: "Split",
        value: float,
        details: dict[str, JsonValue],
    ) -> Measurement:
        return Measurement(
            audit=self.audit,
            metric=metric,
            layer=layer,
            variant=variant,
            value=value,
            unit="" if metric == P_VALUE else "rad",
            n=sum(split.sizes),
            details=details,
        )

    def _without(
        self, layer: str, variant: Variant, status: Status, reason: str
    ) -> Iterator[Measurement]:
        for metric in (*DISTANCE_TITLES, PERMUTED, P_VALUE):
            yield Measurement(
                audit=self.audit,
                metric=metric,
                layer=layer,
                variant=variant,
                status=status,
                reason=reason,
                details={"reading": self.reading},
            )

    def _variant(self, split: "Split") -> Variant:
        value = {} if split.value is None else {"value": split.value}
        return {**self.variant, "attribute": split.attribute, **value}


def _found(outcome: "Outcome") -> "dict[int, Compared]":
    """The splits of which something was found."""
    return {i: each for i, each in outcome.items() if not isinstance(each, GradauditError)}


def _at_random(compared: "Compared", name: str) -> tuple[float, float, float]:
    """Mean distance of random groups, and the range that holds 95 % of them."""
    import numpy as np

    values = compared.permuted[name]
    low, high = np.quantile(values, [(1 - _RANGE) / 2, (1 + _RANGE) / 2])
    return float(values.mean()), float(low), float(high)


def _reason(why: object) -> tuple[Status, str]:
    return ("skipped" if isinstance(why, NotApplicable) else "failed"), str(why)
