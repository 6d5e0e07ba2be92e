"""Rows of a game of a record's presence."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from pydantic import JsonValue

from gradaudit.audits.attack_record import AttackRecord
from gradaudit.audits.attack_record.likelihood_ratio import PresenceScores
from gradaudit.audits.attack_record.pair_scores import PairScores
from gradaudit.audits.attack_record.record_game import RecordGame
from gradaudit.audits.attack_record.record_sets import alike
from gradaudit.audits.attack_record.span_certificates import Certified, SpanCertificates
from gradaudit.audits.rows import NO_TRUTH, Details, Rows
from gradaudit.games.scores import Score
from gradaudit.report import Measurement
from gradaudit.statistics.intervals import clopper_pearson_upper, clustered

RATES = {"record_tpr_at_1pct_fpr": 0.01, "record_tpr_at_01pct_fpr": 0.001}
SCORED = ("record_auroc", *RATES)
CERTIFIED = ("record_certified", "record_false")
GIVEN = "record_p_value"
_NONE_ASKED = "no record is asked about; name some with --given"
_ALPHA = 0.025


@dataclass(frozen=True)
class PresenceRows:
    """Makes the rows of a game."""

    game: RecordGame

    @property
    def names(self) -> list[str]:
        """List the layers whose part of the update is seen."""
        return [layer.name for layer in self.game.layers]

    def scores(self, layer: str | None, found: PresenceScores) -> Iterator[Measurement]:
        """AUROC and true positive rates of a layer, or of the whole update."""
        pairs, columns = self.game.placed.attacked, self.game.placed.columns
        if not len(pairs.inside):
            yield from self._rows.skipped(NO_TRUTH, SCORED, [layer])
            return
        other = (pairs.updates - columns) % columns
        attacked = PairScores(found.scores[pairs.records, pairs.updates], pairs)
        floor = PairScores(found.scores[pairs.records, other], pairs)
        facts = {**found.words, "updates": len(self.game.attacked)}
        for metric in SCORED:
            share = RATES.get(metric, 0.0)
            score, below = (x.at(share) if share else x.auroc() for x in (attacked, floor))
            if score is None or below is None:
                outside = int((~pairs.inside).sum())
                why = f"{outside} pairs with a record outside cannot show {share:.1%} of them"
                yield from self._rows.skipped(why, [metric], [layer])
                continue
            yield self._rows.measured(
                metric,
                score.value,
                layer=layer,
                interval=score.interval,
                n=len(pairs.inside),
                imprecise=self._imprecise(attacked, share),
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
                above = int((of_update[others] >= of_update[row]).sum())
                details: dict[str, JsonValue] = {**scores.words, "score": float(of_update[row])}
                if layer in proof:
                    details["certified"] = proof[layer][0]
                value = (1 + above) / (1 + len(pool))
                yield rows.measured(GIVEN, value, layer=layer, n=len(pool), details=details)

    @cached_property
    def spans(self) -> SpanCertificates:
        """The certificates of the game's candidates."""
        return SpanCertificates(self.game)

    @cached_property
    def _rows(self) -> Rows:
        return Rows(AttackRecord, facts=self.game.facts)

    def _imprecise(self, attacked: PairScores, share: float) -> str:
        if not share or attacked.independent(share) * share >= 1:
            return ""
        return "there are too few independent records outside to say where so few false ones lie"

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


def _said(score: Score) -> JsonValue:
    return {"value": score.value, "interval": list(score.interval)}
