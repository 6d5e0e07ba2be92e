"""Makes rows of usable information about the input, from the success of reconstructions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from pydantic import JsonValue

from gradaudit.attacks.reconstruction import Method, load_method, load_methods
from gradaudit.attacks.reconstruction.attempts import (
    KINDS,
    Similarities,
    expect_pictures,
    guesses,
    seen,
    similarities,
)
from gradaudit.attacks.reconstruction.campaign import Campaign, Choice
from gradaudit.attacks.reconstruction.observing import ThreatModel
from gradaudit.audits.rows import Rows, by_round
from gradaudit.audits.vinfo import ITERATIONS, ORIGINAL, SUCCESS, VINFO, Vinfo, VinfoOptions
from gradaudit.audits.vinfo.reconstructions import (
    THRESHOLDS,
    FloatArray,
    Original,
    Spread,
    Tally,
    ceiling,
    information,
    spread,
)
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.models.target import Layer
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Variant
from gradaudit.statistics.intervals import clopper_pearson
from gradaudit.subject import Subject

NOTHING = "no success to compare: neither reconstructions nor random guesses reach this SSIM"


def threshold_rows(
    rows: Rows,
    layer: str | None,
    rebuilt: Similarities,
    guessed: FloatArray,
    threshold: float,
) -> Iterator[Measurement]:
    """Make rows of a set of layers at ``threshold``, with every threshold as a variant.

    ``guessed`` is (kinds, updates, records, guesses) SSIM of random reconstructions.
    """
    thresholds = tuple(sorted({*THRESHOLDS, threshold}))
    tally = Tally.of(rebuilt.own, guessed, thresholds)
    beside = None
    if rebuilt.others is not None:
        beside = Tally.of(rebuilt.others, np.roll(guessed, -1, axis=1), thresholds)
    levels = _Levels(
        rows, layer, rebuilt, thresholds, tally, information(tally), spread(tally), beside
    )
    yield from levels.rows_at(thresholds.index(threshold), {})
    for index, level in enumerate(thresholds):
        yield from levels.rows_at(index, {"threshold": level})


@dataclass(frozen=True)
class _Levels:
    """A set's numbers at all ascending thresholds, with counts against other records."""

    rows: Rows
    layer: str | None
    rebuilt: Similarities
    thresholds: tuple[float, ...]
    tally: Tally
    original: Original
    spread: Spread
    beside: Tally | None

    def rows_at(self, at: int, variant: Variant) -> Iterator[Measurement]:
        """Make rows of both metrics at one threshold."""
        rows = self.rows.of(variant, self._counts(at))
        if self.tally.comparable[at]:
            yield self._information(at, rows)
        else:
            yield from rows.skipped(NOTHING, [VINFO], [self.layer])
        yield self._success(at, rows)

    def _information(self, at: int, rows: Rows) -> Measurement:
        values = self.original.members[at]
        best = int(self.original.best[at])
        value = float(self.original.values[at])
        low, high = self.spread.values[at].tolist()
        members = self.rebuilt.members
        more: dict[str, JsonValue] = {}
        if self.beside is not None:  # each reconstruction compared with other records
            other = information(self.beside)
            rate = float(self.beside.rates[at, int(other.best[at])].mean())
            more["permuted"] = {"value": float(other.values[at]), "success": rate}
        return rows.measured(
            VINFO,
            value,
            layer=self.layer,
            interval=(min(low, value), max(high, value)),
            n=self.tally.successes[at, best].size,
            details={
                "chosen": members[best] if values[best] > 0 else "guessing",
                "members": dict(zip(members, values.tolist(), strict=True)),
                **more,
            },
        )

    def _success(self, at: int, rows: Rows) -> Measurement:
        best = int(self.original.best[at])
        hits = int(self.tally.successes[at, best].sum())
        count = self.tally.successes[at, best].size * self.tally.restarts
        low, high = self.spread.rates[at].tolist()
        return rows.measured(
            SUCCESS,
            hits / count,
            layer=self.layer,
            interval=(low, high),
            n=count,
            details={
                "chosen": self.rebuilt.members[best],
                "interval_of_these_records": list(clopper_pearson(hits, count)),
            },
        )

    def _counts(self, at: int) -> dict[str, JsonValue]:
        """Collect the threshold, failed restarts, refused members, and the best guesses."""
        kind = int(self.original.kinds[at])
        guessed: dict[str, JsonValue] = {
            "kind": KINDS[kind],
            "success": float(self.tally.guessed[at, kind].mean()),
        }
        return {
            "threshold": self.thresholds[at],
            "failed_restarts": dict(zip(self.rebuilt.members, self.rebuilt.failed, strict=True)),
            "refused": dict(self.rebuilt.refused),
            "guessed": guessed,
        }


@dataclass(frozen=True)
class LayerSet:
    """Consecutive layers whose updates an attacker uses together."""

    layers: tuple[Layer, ...]

    @property
    def layer(self) -> str | None:
        """The layer of the set's rows: its single layer, or None."""
        return self.layers[0].name if len(self.layers) == 1 else None

    @property
    def variant(self) -> Variant:
        """The variant of the set's rows, which names the layers where there are several."""
        return {} if len(self.layers) == 1 else {"layers": "+".join(x.name for x in self.layers)}


def layer_sets(layers: Sequence[Layer], sizes: Sequence[int]) -> list[LayerSet]:
    """Make sets of a number of consecutive layers, without gaps in the model."""
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


def original_rows(
    subject: Subject, options: VinfoOptions, progress: Progress
) -> Iterator[Measurement]:
    """Yield rows of ``original_vinfo`` and ``original_success`` (Mo et al. 2022, eq. 4-6).

    Raises:
        NotApplicable: the records are no pictures in [0, 1], or updates are only seen in part.
        UsageError: a method is unknown, or has no restarts.
        AuditError: the model cannot be run on the records.
    """
    expect_pictures(subject.records)
    methods = _family(options)
    sharing = options.sharing(subject.defenses, subject.hidden)
    choice = Choice(options.inverted, options.updates)
    sets = layer_sets(subject.layers, options.together)
    for target, turn in by_round(subject):
        rows = Rows(Vinfo, turn)
        observer = ThreatModel(target, sharing, subject.layers, options.known_labels)
        campaign = Campaign.prepare(subject, choice, observer, progress)
        attacks = _Attacks(subject, options, methods, observer, campaign)
        guessed = guesses(campaign.observed, options.guesses, subject.seed)
        for chosen in sets:
            yield from attacks.on(chosen, rows.of(chosen.variant), guessed)
        yield from _without({len(chosen.layers) for chosen in sets}, subject, options, rows)


def original_passes(subject: Subject, options: VinfoOptions) -> float:
    """Bound the record gradients that all attacks on all sets of layers take."""
    try:
        expect_pictures(subject.records)
    except NotApplicable:
        return 0.0
    steps = sum(method.steps() for method in _family(options).values())
    size = options.inverted
    updates = max(subject.samples // size, 1) if subject.samples else options.updates
    sets = len(layer_sets(subject.layers, options.together))
    return steps * options.passes(size) * updates * sets * len(subject.targets)


def _family(options: VinfoOptions) -> dict[str, Method]:
    """List the attacks, with the audit's steps where a method names none of its own."""
    for text, method in load_methods(options.method, {}, options.restarts).items():
        if not method.restarts:
            raise UsageError(
                f"--method {text}: is run once and has no rate of success; --original takes "
                "attacks that start at random, as dlg, idlg and inverting-gradients"
            )
    steps = {
        text: options.iterations or ITERATIONS.get(text.partition(":")[0])
        for text in options.method
    }
    return {
        text: load_method(text, {} if count is None else {"iterations": count}, options.restarts)
        for text, count in steps.items()
    }


@dataclass(frozen=True)
class _Attacks:
    """The family's attacks on one checkpoint's updates."""

    subject: Subject
    options: VinfoOptions
    methods: Mapping[str, Method]
    observer: ThreatModel
    campaign: Campaign

    def on(self, chosen: LayerSet, rows: Rows, guessed: FloatArray) -> Iterator[Measurement]:
        """Make rows of a set of layers; ``guessed`` is as ``threshold_rows`` takes it."""
        observer = replace(self.observer, layers=chosen.layers)
        observed = [
            seen(update, observer.visible(update.view.update)) for update in self.campaign.observed
        ]
        unit = self.campaign.units.of("original", str(chosen))
        try:
            rebuilt = unit.once(
                partial(similarities, self.methods, observed, self.campaign.execution)
            )
        except NotApplicable as error:
            yield from rows.skipped(str(error), ORIGINAL, [chosen.layer])
            return
        rows = rows.of({}, self._facts(chosen))
        yield from threshold_rows(rows, chosen.layer, rebuilt, guessed, self.options.threshold)

    def _facts(self, chosen: LayerSet) -> dict[str, JsonValue]:
        """Collect the facts in every row of a set of layers."""
        knowledge = dict(self.campaign.observed[0].view.knowledge)
        informed = [text for text, method in self.methods.items() if not method.searches_labels]
        labels = (
            f"known to {', '.join(informed)}"
            if self.options.known_labels and informed
            else "unknown"
        )
        return {
            "knowledge": {
                **knowledge,
                "layers": [layer.name for layer in chosen.layers],
                "labels": labels,
            },
            "chosen_by": "the truth: the best member of the family, by definition",
            "family": {
                text: method.options.model_dump(mode="json")
                for text, method in self.methods.items()
            },
            "restarts": self.options.restarts,
            "guesses": self.options.guesses,
            "batch_size": self.campaign.batch,
            "updates": len(self.campaign.observed),
            "ceiling": ceiling(self.options.restarts),
        }


def _without(
    attacked: set[int], subject: Subject, options: VinfoOptions, rows: Rows
) -> Iterator[Measurement]:
    """Make rows of layers and sizes for which there are no sets."""
    if 1 not in attacked:
        asked = " ".join(f"--together {size}" for size in options.together)
        layers = [layer.name for layer in subject.layers]
        yield from rows.skipped(f"single layers are not attacked: {asked}", ORIGINAL, layers)
    for size in options.together:
        if size not in attacked:
            why = f"no {size} consecutive layers of the model are shown"
            yield from rows.of({"layers": f"{size} layers"}).skipped(why, ORIGINAL)
