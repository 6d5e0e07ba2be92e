"""Scores records' presence in updates, layer by layer and in the whole update."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from pydantic import JsonValue

from gradaudit.audits.attack_record import AttackRecord
from gradaudit.audits.attack_record.likelihood_ratio import (
    PresenceScores,
    auroc_of_pairs,
)
from gradaudit.audits.attack_record.pair_scores import PairScores, Rate
from gradaudit.audits.attack_record.record_game import RecordGame, alike, records_used
from gradaudit.audits.attack_record.span_certificates import Certified, SpanCertificates
from gradaudit.audits.rows import NO_TRUTH, Details, Rows
from gradaudit.core.statistics.intervals import clopper_pearson_upper, clustered
from gradaudit.core.statistics.laws import permutation_p_value
from gradaudit.errors import NotApplicable
from gradaudit.games.scores import Score
from gradaudit.progress import Progress
from gradaudit.report import Measurement
from gradaudit.subject import SINGLE, Subject

RATES = {"record_tpr_at_1pct_fpr": 0.01, "record_tpr_at_01pct_fpr": 0.001}
SCORED = ("record_auroc", *RATES)
CERTIFIED = ("record_certified", "record_false")
GIVEN = "record_p_value"
_NONE_ASKED = "no record is asked about; name some with --given"
_ALPHA = 0.025


def gradients(audit: AttackRecord, subject: Subject) -> float:
    """Count the gradients, in single precision, of all records that are dealt out.

    Raises:
        NotApplicable: there are too few records.
        UsageError: a record is asked about that the data does not have.
    """
    options = audit.options
    fitted, candidates, _ = records_used(options, subject)
    updates = options.local_passes(3 * options.updates, options.batch_size)
    return SINGLE * options.repeats * (fitted + candidates + updates)


def run(audit: AttackRecord, subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Play the game.

    Raises:
        NotApplicable: there are too few records, or they have no gradients of their own.
        UsageError: an option is wrong for the records.
        CheckpointError: a captured update is refused.
    """
    game = RecordGame.of(audit.options, subject)
    if not game.layers:
        raise NotApplicable("the captured update holds none of the layers that are looked at")
    games = game.repeated(audit.options.repeats)
    rows, first = PresenceRows(game), dict[str | None, PresenceScores]()
    rates: dict[str | None, list[GameRates]] = defaultdict(list)
    with progress.task("attack record", len(games) * len(game.layers)) as advance:
        for each in games:
            spans = rows.spans if each is game else SpanCertificates(each)
            for layer, scores in presence(each, spans):
                first.setdefault(layer, scores)
                rates[layer].append(GameRates.of(each, scores))
                advance(layer is not None)
    for layer, of_layer in rates.items():
        yield from rows.scores(layer, first[layer].words, of_layer)
    yield from rows.not_seen()
    yield from rows.certificates()
    yield from rows.given(first)


def presence(
    game: RecordGame, spans: SpanCertificates
) -> Iterator[tuple[str | None, PresenceScores]]:
    """Score all candidates at all updates by every layer, then by the whole update."""
    whole = None
    normal: list[PresenceScores] = []
    every: list[PresenceScores] = []
    for layer, products, updates in game.products():
        whole = products if whole is None else whole + products
        normal.append(PresenceScores.chosen(products, game.placed))
        near = spans.scores(layer, updates)
        every.append(PresenceScores.best([normal[-1], *([near] if near else [])]))
        yield layer.name, every[-1]
    assert whole is not None
    total = np.sum([layer.scores for layer in normal], axis=0)
    words: dict[str, JsonValue] = {"statistic": "sum of layers'"}
    summed = PresenceScores(total, words, auroc_of_pairs(total, game.placed.shadow))
    yield None, PresenceScores.best([PresenceScores.chosen(whole, game.placed), summed, *every])


@dataclass(frozen=True)
class GameRates:
    """Rates of one layer in one game, by metric; the AUROC is one at any threshold.

    Attributes:
        attacked: of the attacked updates.
        permuted: the same scores at another update.
        independent: (metrics) effective number of pairs outside.
    """

    attacked: Mapping[str, tuple[Rate, Rate, Rate] | None]
    permuted: Mapping[str, tuple[Rate, Rate, Rate] | None]
    independent: Mapping[str, float]

    @classmethod
    def of(cls, game: RecordGame, found: PresenceScores) -> Self:
        """Rate the scores of a game; without a pair there is nothing to rate."""
        pairs, columns = game.placed.attacked, game.placed.columns
        if not len(pairs.inside):
            return cls({}, {}, {})
        other = (pairs.updates - columns) % columns
        attacked = PairScores(found.scores[pairs.records, pairs.updates], pairs)
        permuted = PairScores(found.scores[pairs.records, other], pairs)
        independent = {name: attacked.independent(share) for name, share in RATES.items()}
        return cls(_rates(attacked), _rates(permuted), independent)


def _rates(scores: PairScores) -> dict[str, tuple[Rate, Rate, Rate] | None]:
    area = scores.auroc()
    return {SCORED[0]: (area, area, area)} | {x: scores.at(share) for x, share in RATES.items()}


@dataclass(frozen=True)
class PresenceRows:
    """Makes the rows of a game."""

    game: RecordGame

    @property
    def names(self) -> list[str]:
        """List the layers whose part of the update is seen."""
        return [layer.name for layer in self.game.layers]

    def scores(
        self, layer: str | None, words: Mapping[str, JsonValue], games: Sequence[GameRates]
    ) -> Iterator[Measurement]:
        """AUROC and true positive rates of a layer, or of the whole update."""
        pairs = self.game.pairs
        if not len(pairs.inside):
            yield from self._rows.skipped(NO_TRUTH, SCORED, [layer])
            return
        facts = {**words, "updates": len(self.game.attacked), "games": len(games)}
        for metric in SCORED:
            attacked = [rate for x in games if (rate := x.attacked[metric]) is not None]
            permuted = [rate for x in games if (rate := x.permuted[metric]) is not None]
            if len(attacked) < len(games) or len(permuted) < len(games):
                outside = int((~pairs.inside).sum())
                why = (
                    f"{outside} pairs with a record outside cannot show {RATES[metric]:.1%} of them"
                )
                yield from self._rows.skipped(why, [metric], [layer])
                continue
            score = self.game.dependence.within(attacked)
            below = self.game.dependence.within(permuted)
            yield self._rows.measured(
                metric,
                score.value,
                layer=layer,
                interval=score.interval,
                n=len(games) * len(pairs.inside),
                imprecise=_imprecise(metric, games),
                details={**facts, "permuted": _said(below)},
            )

    def not_seen(self) -> Iterator[Measurement]:
        """Make rows of layers that a captured update does not hold."""
        missing = [x.name for x in self.game.subject.layers if x.name not in self.names]
        yield from self._rows.skipped("the captured update does not hold it", SCORED, missing)

    def certificates(self) -> Iterator[Measurement]:
        """Rows of the records that each layer's span certifies, and that any layer's span does."""
        if not len(self.game.attacked):
            every = [None, *(layer.name for layer in self.game.subject.layers)]
            yield from self._rows.skipped(NO_TRUTH, CERTIFIED, every)
            return
        together: Certified | None = None
        for layer, found in self.spans.layers():
            if isinstance(found, str):
                yield from self._rows.skipped(found, CERTIFIED, [layer.name])
                continue
            together = found if together is None else together.joined(found)
            yield from self._certified(layer.name, found)
        if together is None:
            yield from self._rows.skipped("no layer's span certifies a record", CERTIFIED)
        else:
            yield from self._certified(None, together)

    def given(self, found: Mapping[str | None, PresenceScores]) -> Iterator[Measurement]:
        """Compute a p-value for each given record: how often records outside score as high."""
        game, same = self.game, alike(self.game.subject.records)
        if not game.options.given:
            yield from self._rows.skipped(_NONE_ASKED, [GIVEN])
            return
        known = np.concatenate([game.attacked[:1].ravel(), np.array(game.options.given)])
        pool = game.sets.score[~np.isin(same[game.sets.score], same[known])]
        others = np.searchsorted(game.candidates, pool)
        for number in game.options.given:
            rows, row = self._rows.of({"record": number}), np.searchsorted(game.candidates, number)
            proof = self.spans.of_candidates(np.array([number]), self.spans.updates[0])
            for layer, scores in found.items():
                of_update = scores.scores[:, game.placed.columns]
                details: dict[str, JsonValue] = {**scores.words, "score": float(of_update[row])}
                if layer in proof:
                    details["certified"] = proof[layer][0]
                value = permutation_p_value(of_update[row], of_update[others])
                yield rows.measured(GIVEN, value, layer=layer, n=len(pool), details=details)

    @cached_property
    def spans(self) -> SpanCertificates:
        """The certificates of the game's candidates."""
        return SpanCertificates(self.game)

    @cached_property
    def _rows(self) -> Rows:
        return Rows(AttackRecord, facts=self.game.facts)

    def _certified(self, layer: str | None, found: Certified) -> Iterator[Measurement]:
        shares = np.array([float(each.mean()) for each in found.inside])
        sizes = np.array([float(len(each)) for each in found.inside])
        outside = np.concatenate(found.outside)
        hits, tried = int(outside.sum()), len(outside)
        value, interval = clustered(shares, sizes)
        upper = float(clopper_pearson_upper(hits, tried, _ALPHA))
        facts: Details = {"false": hits, "decoys": tried, "false_rate_below": upper}
        names = "record_certified", "record_false"
        numbers = (value, interval, int(sizes.sum())), (hits / tried, (0.0, upper), tried)
        for metric, (share, ends, count) in zip(names, numbers, strict=True):
            yield self._rows.measured(
                metric, share, layer=layer, interval=ends, n=count, details=facts
            )


def _imprecise(metric: str, games: Sequence[GameRates]) -> str:
    share = RATES.get(metric)
    if share is None or all(game.independent[metric] * share >= 1 for game in games):
        return ""
    return "there are too few independent records outside to say where so few false ones lie"


def _said(score: Score) -> JsonValue:
    return {"value": score.value, "interval": list(score.interval)}
