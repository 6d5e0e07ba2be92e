"""Makes rows of usable information about the input, from how often reconstructions succeed.

Source: F. Mo et al., "Quantifying and localizing usable information leakage from neural network
gradients" (2022), definitions 2 and 3, equations 4 and 6.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
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
from gradaudit.core.statistics.intervals import clopper_pearson, clustered
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.models.target import Layer
from gradaudit.progress import Progress
from gradaudit.report import Measurement, Variant
from gradaudit.subject import Subject

FloatArray = NDArray[np.float64]
THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 17))
"""On SSIM, from 0.05 to 0.8 (figure 2)."""
NOTHING = "no success to compare: neither reconstructions nor random guesses reach this SSIM"


def log_success(successes: FloatArray, restarts: int) -> FloatArray:
    """Compute the log success of reconstructions, with half a success more.

    ln f, f = (s + ½)/(R + 1) of s successes in R restarts: finite for s = 0 (Mo et al. 2022, eq.
    5–6, whose f = s/R has none).
    """
    return np.asarray(np.log((successes + 0.5) / (restarts + 1)))


def ceiling(restarts: int) -> float:
    """Compute ln((R + ½) / ½) nats: all restarts succeed on all records, and no guess does."""
    return math.log((restarts + 0.5) / 0.5)


@dataclass(frozen=True)
class Tally:
    """Reconstructions and random guesses that reach each threshold, and what follows from them.

    The information is inf E[−ln f[∅]] − inf E[−ln f[g]] for the event that SSIM reaches τ. Each
    infimum is over the mean of all records: one member for all of them (equation 4). The prior's
    success is the share of many random reconstructions, counted as R rounds of guessing.

    Attributes:
        successes: (thresholds, members, updates, records) of R restarts.
        guessed: (thresholds, kinds, updates, records) share of the random reconstructions.
        restarts: R.
    """

    successes: FloatArray
    guessed: FloatArray
    restarts: int

    @classmethod
    def of(
        cls,
        similarities: FloatArray,
        guesses: FloatArray,
        thresholds: tuple[float, ...] = THRESHOLDS,
    ) -> Tally:
        """Count similarities that reach thresholds; those that are NaN reach none.

        Args:
            similarities: (members, updates, records, restarts) of reconstructions; NaN where a
                restart diverged.
            guesses: (kinds, updates, records, guesses) of random reconstructions.
            thresholds: τ.
        """
        levels = np.asarray(thresholds).reshape(-1, 1, 1, 1, 1)
        successes = (similarities >= levels).sum(axis=-1).astype(np.float64)
        guessed = (guesses >= levels).mean(axis=-1)
        return cls(successes, guessed, similarities.shape[-1])

    @cached_property
    def gains(self) -> FloatArray:
        """Average ln f[g] over an update's records, (thresholds, members, updates)."""
        return np.asarray(log_success(self.successes, self.restarts).mean(axis=-1))

    @cached_property
    def priors(self) -> FloatArray:
        """Average ln f[∅], (thresholds, kinds, updates), with the guesses' rate over R rounds."""
        return np.asarray(log_success(self.restarts * self.guessed, self.restarts).mean(axis=-1))

    @property
    def comparable(self) -> NDArray[np.bool_]:
        """Whether any reconstruction or any guess succeeds, (thresholds,)."""
        most = self.successes.max(axis=(1, 2, 3)), self.guessed.max(axis=(1, 2, 3))
        return np.asarray(np.maximum(*most) > 0)

    @property
    def rates(self) -> FloatArray:
        """Compute the share of restarts that succeed, (thresholds, members, updates)."""
        return np.asarray(self.successes.mean(axis=-1) / self.restarts)

    @property
    def kinds(self) -> NDArray[np.int64]:
        """The best kind of guess, (thresholds,)."""
        return np.asarray(self.priors.mean(axis=-1).argmax(axis=1))

    @property
    def members(self) -> FloatArray:
        """Each attack's own information in nats, (thresholds, members); below 0 if guesses win."""
        prior = self.priors.mean(axis=-1).max(axis=1, keepdims=True)
        return np.asarray(self.gains.mean(axis=-1) - prior)

    @property
    def best(self) -> NDArray[np.int64]:
        """The attack with the most information, (thresholds,)."""
        return np.asarray(self.members.argmax(axis=1))

    @property
    def values(self) -> FloatArray:
        """The family's information (thresholds,): guessing is a member, so it is never negative."""
        return np.asarray(np.maximum(self.members.max(axis=1), 0.0))

    @cached_property
    def value_ends(self) -> FloatArray:
        """Intervals of the information, (thresholds, 2), by ``clustered`` over the updates.

        The information of an update, of one member against one kind of guess, lies within
        ``ceiling`` nats of 0, and so is a share of that range. The family's is the largest over
        members of the smallest over kinds of guess, and so are its ends.
        """
        most = ceiling(self.restarts)
        gains = self.gains[:, :, None] - self.priors[:, None]
        shares = np.clip((gains / most + 1) / 2, 0.0, 1.0)
        ends = np.apply_along_axis(self._interval, -1, shares)
        values = most * (2 * ends.min(axis=2).max(axis=1) - 1)
        return np.asarray(np.maximum(values, 0.0))

    @cached_property
    def rate_ends(self) -> FloatArray:
        """Intervals of the best member's success, (thresholds, 2), by ``clustered`` as well."""
        best = enumerate(self.best)
        return np.stack([self._interval(self.rates[at, member]) for at, member in best])

    def _interval(self, shares: FloatArray) -> FloatArray:
        sizes = np.full(len(shares), float(self.restarts * self.successes.shape[-1]))
        return np.asarray(clustered(shares, sizes)[1])


def reconstruction_information(
    similarities: ArrayLike, guesses: ArrayLike, threshold: float
) -> float:
    """Estimate the V-information about the input from reconstructions that succeed.

    max(0, max_f E ln f[g] − max E ln f[∅]) nats, with f = (s + ½)/(R + 1) for s of R restarts whose
    SSIM reaches τ, and the same of random reconstructions (Mo et al. 2022, eq. 4–6).

    >>> found = np.array([[[[0.9, 0.8, 0.2, 0.7]]]])  # one attack, update and record: R = 4
    >>> round(reconstruction_information(found, np.full((1, 1, 1, 50), 0.1), 0.5), 4)  # ln 7
    1.9459

    Args:
        similarities: (attacks, updates, records, restarts) SSIM; NaN where a restart diverged.
        guesses: (kinds, updates, records, guesses) SSIM of random reconstructions.
        threshold: τ.
    """
    tally = Tally.of(np.asarray(similarities), np.asarray(guesses), (threshold,))
    return float(tally.values[0])


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
    tally, beside = Tally.of(rebuilt.own, guessed, thresholds), None
    if rebuilt.others is not None:
        beside = Tally.of(rebuilt.others, np.roll(guessed, -1, axis=1), thresholds)
    levels = _Levels(rows, layer, rebuilt, thresholds, tally, beside)
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
        tally, beside, members = self.tally, self.beside, self.rebuilt.members
        values, best, value = tally.members[at], int(tally.best[at]), float(tally.values[at])
        low, high = tally.value_ends[at].tolist()
        more: dict[str, JsonValue] = {}
        if beside is not None:  # each reconstruction compared with other records
            rate = float(beside.rates[at, int(beside.best[at])].mean())
            more["permuted"] = {"value": float(beside.values[at]), "success": rate}
        return rows.measured(
            VINFO,
            value,
            layer=self.layer,
            interval=(min(low, value), max(high, value)),
            n=tally.successes[at, best].size,
            details={
                "chosen": members[best] if values[best] > 0 else "guessing",
                "members": dict(zip(members, values.tolist(), strict=True)),
                **more,
            },
        )

    def _success(self, at: int, rows: Rows) -> Measurement:
        best = int(self.tally.best[at])
        successes = self.tally.successes[at, best]
        hits, count = int(successes.sum()), successes.size * self.tally.restarts
        low, high = self.tally.rate_ends[at].tolist()
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
        kind = int(self.tally.kinds[at])
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


def layer_sets(layers: Sequence[Layer], sizes: Sequence[int]) -> list[tuple[Layer, ...]]:
    """Make sets of a number of consecutive layers, without gaps in the model."""
    windows = [
        tuple(layers[start : start + size])
        for size in sizes
        for start in range(len(layers) - size + 1)
    ]
    return [own for own in windows if own[-1].position - own[0].position == len(own) - 1]


def variant_of(layers: Sequence[Layer]) -> Variant:
    """Make the variant of a set's rows, which names the layers where there are several."""
    return {} if len(layers) == 1 else {"layers": "+".join(layer.name for layer in layers)}


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
            yield from attacks.on(chosen, rows.of(variant_of(chosen)), guessed)
        yield from _without(set(map(len, sets)), subject, options, rows)


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

    def on(
        self, chosen: tuple[Layer, ...], rows: Rows, guessed: FloatArray
    ) -> Iterator[Measurement]:
        """Make rows of a set of layers; ``guessed`` is as ``threshold_rows`` takes it."""
        layer = chosen[0].name if len(chosen) == 1 else None
        observer = replace(self.observer, layers=chosen)
        observed = [
            seen(update, observer.visible(update.view.update)) for update in self.campaign.observed
        ]
        try:
            rebuilt = similarities(self.methods, observed, self.campaign.execution)
        except NotApplicable as error:
            yield from rows.skipped(str(error), ORIGINAL, [layer])
            return
        rows = rows.of({}, self._facts(chosen))
        yield from threshold_rows(rows, layer, rebuilt, guessed, self.options.threshold)

    def _facts(self, chosen: tuple[Layer, ...]) -> dict[str, JsonValue]:
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
                "layers": [layer.name for layer in chosen],
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
