"""Measures distances between groups' subspaces, and makes rows of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from pydantic import JsonValue

from gradaudit.audits.rows import Rows, by_round
from gradaudit.audits.subspace import Subspace
from gradaudit.audits.subspace.comparing import (
    DISTANCES,
    ComparisonFamily,
    PrincipalAngles,
    most_significant,
)
from gradaudit.audits.subspace.distances import Comparison, Outcome
from gradaudit.audits.subspace.groups import Split, splits_of
from gradaudit.core.statistics.laws import replicated_p_value
from gradaudit.data.records import with_rare_merged
from gradaudit.errors import GradauditError, NotApplicable
from gradaudit.measurement import NO_EVIDENCE
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Variant
from gradaudit.subject import Subject, defenses_note

_RECORDS = 256
_MOST_RECORDS = 1000
"""The work grows with their cube: in a scan of the sample 1,800 take minutes, 1,000 seconds."""
_UNDEFENDED = "none applied: these are gradients of single records, not what is shared"
FEWEST_PERMUTATIONS = 100
"""The fewest whose smallest p-value, 1 / (number + 1), is below the default limit of 0.01."""
_TOO_FEW = (
    "its p-value cannot be below {:.3g}; at least "
    f"{FEWEST_PERMUTATIONS} permutations are needed (--permutations)"
)
_RANGE = 0.95
_NO_INTERVAL = "none: resampled records repeat, and repeated records span less"


def gradients(audit: Subspace, subject: Subject) -> float:
    """Count the gradients, and the decompositions that grow with the square of the records."""
    if not subject.attributes:
        return 0.0
    looked_at = min(subject.samples or _RECORDS, _MOST_RECORDS, len(subject.records))
    readings = 2 if audit.options.reading == "mean" else 1
    return readings * looked_at * max(1.0, looked_at / 10) * len(subject.targets)


def run(audit: Subspace, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Rows of every shown layer; older checkpoints are the variants ``round``.

    Raises:
        NotApplicable: no attribute is named, no group is large enough, or the model couples the
            records of a batch.
        AuditError: the model cannot be run on the records.
    """
    if not subject.attributes:
        raise NotApplicable("no private attribute is named; name one with --attribute")
    options, records = audit.options, subject.sample(_RECORDS, _MOST_RECORDS)
    asked = {name: records.attributes[name] for name in subject.attributes}
    records, merged = with_rare_merged(replace(records, attributes=asked), options.merge_rare)
    splits = splits_of(records, subject.attributes, options.permutations, subject.seed)
    usable = tuple(split for split in splits if split.refusal is None)
    if not usable:
        raise NotApplicable("; ".join(str(split.refusal) for split in splits))
    notes = defenses_note(subject, _UNDEFENDED)
    if merged:
        notes["merged_values"] = {name: list(values) for name, values in merged.items()}
    for target, variant in by_round(subject):
        comparison = Comparison(
            target, records, subject.layers, usable, subject.seed, subject.memory
        )
        workers = subject.workers
        outcomes = dict(comparison.outcomes(options.reading, progress, workers))
        rows = Rows(type(audit), variant, {"reading": options.reading})
        of_target = _TargetRows(rows, splits, options.permutations, notes)
        yield from of_target.of({layer.name: outcomes[layer.name] for layer in subject.layers})


@dataclass(frozen=True)
class _TargetRows:
    """Makes the rows of one target; ``splits`` are all comparisons, also those that are refused."""

    rows: Rows
    splits: tuple[Split, ...]
    permutations: int
    notes: Mapping[str, JsonValue]

    def of(self, outcomes: Mapping[str, Outcome]) -> Iterator[Measurement]:
        """Make every layer's headline, and a row of each comparison where there are several.

        Outcomes, by layer, are of the splits that are not refused, by their number among them.
        """
        every = [one for outcome in outcomes.values() for one in _compared(outcome).values()]
        family = ComparisonFamily.of(every)
        for layer, outcome in outcomes.items():
            yield from self._headline(layer, outcome, family, len(every))
            if len(self.splits) > 1:
                yield from self._variants(layer, outcome)

    def _headline(
        self, layer: str, outcome: Outcome, family: ComparisonFamily, comparisons: int
    ) -> Iterator[Measurement]:
        """Make the row of the most significant comparison, corrected for all others."""
        compared = _compared(outcome)
        if not compared:
            why = outcome[0]
            assert isinstance(why, GradauditError)
            yield from self.rows.without(why, layers=[layer])
            return
        chosen = list(compared)[most_significant(list(compared.values()))]
        best, split = compared[chosen], self._usable[chosen]
        yield from self._measured(self.rows, layer, split, best, family.p_values(best), comparisons)

    def _variants(self, layer: str, outcome: Outcome) -> Iterator[Measurement]:
        for number, split in enumerate(self._usable):
            rows, compared = self.rows.of(_variant(split)), outcome[number]
            if isinstance(compared, PrincipalAngles):
                p_values = {name: compared.p_value(name) for name in DISTANCES}
                yield from self._measured(rows, layer, split, compared, p_values)
            else:
                yield from rows.without(compared, layers=[layer])
        for split in self.splits:
            if split.refusal is not None:
                yield from self.rows.of(_variant(split)).skipped(split.refusal, layers=[layer])

    def _measured(
        self,
        rows: Rows,
        layer: str,
        split: Split,
        compared: PrincipalAngles,
        p_values: Mapping[str, float],
        comparisons: int = 1,
    ) -> Iterator[Measurement]:
        rows = rows.of({}, self._facts(split, compared) | {"comparisons": comparisons})
        n, (mean, *spanned) = sum(split.sizes), _at_random(compared, "grassmann")
        for name in DISTANCES:
            value = compared.distance(name)
            permuted_mean, *permuted_range = _at_random(compared, name)
            details: dict[str, JsonValue] = {
                **_known_to(compared.known_to(name, value)),
                "p_value": p_values[name],
                "p_value_alone": compared.p_value(name),
                "permuted_mean": permuted_mean,
                "permuted_range": [*permuted_range],
                "interval": _NO_INTERVAL,
            }
            yield rows.measured(name, value, layer=layer, n=n, details=details)
        known = _known_to(compared.known_to("grassmann", mean, permuted=True))
        yield rows.measured(
            "grassmann_permuted", mean, layer=layer, n=n, details={"range": [*spanned], **known}
        )
        p_value, alone = p_values["grassmann"], compared.p_value("grassmann")
        error = (p_value * (1 - p_value) / (self.permutations + 1)) ** 0.5
        redrawn = replicated_p_value(p_value, self.permutations)
        details = {"monte_carlo_error": error, "p_value_alone": alone, **_known_to(redrawn)}
        few = self.permutations < FEWEST_PERMUTATIONS
        details |= {NO_EVIDENCE: True} if few else {}
        yield rows.measured(
            "p_value",
            p_value,
            layer=layer,
            n=n,
            interval=(0.0, 1.0) if few else None,
            imprecise=_TOO_FEW.format(1 / (self.permutations + 1)) if few else "",
            details=details,
        )

    def _facts(self, split: Split, compared: PrincipalAngles) -> dict[str, JsonValue]:
        facts: dict[str, JsonValue] = {
            "attribute": split.attribute,
            "records": list(split.sizes),
            "permutations": self.permutations,
            "permuted": f"labels of {split.permuted}",
            **self.notes,
            **compared.facts,
            "smallest_angle": float(compared.observed.angles[0]),
        }
        return facts if split.value is None else {**facts, "value": split.value}

    @property
    def _usable(self) -> list[Split]:
        return [split for split in self.splits if split.refusal is None]


def _variant(split: Split) -> Variant:
    value = {} if split.value is None else {"value": split.value}
    return {"attribute": split.attribute, **value}


def _compared(outcome: Outcome) -> dict[int, PrincipalAngles]:
    return {i: one for i, one in outcome.items() if isinstance(one, PrincipalAngles)}


def _known_to(ends: tuple[float, float] | None) -> dict[str, JsonValue]:
    return {} if ends is None else {"known_to": [*ends]}


def _at_random(compared: PrincipalAngles, name: str) -> tuple[float, float, float]:
    """Compute random groups' mean distance, and the range of 95 % of them."""
    values = compared.permuted[name]
    low, high = np.quantile(values, [(1 - _RANGE) / 2, (1 + _RANGE) / 2])
    return float(values.mean()), float(low), float(high)
