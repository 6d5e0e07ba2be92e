"""Rows of the inference attacks from a played game."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue

from gradaudit.report import Measurement, Variant, skipped

if TYPE_CHECKING:
    from gradaudit.attacks.inference.deal import FloatArray
    from gradaudit.attacks.inference.match import Match
    from gradaudit.attacks.inference.noise import Leak
    from gradaudit.attacks.inference.play import Guesses
    from gradaudit.attacks.inference.scoring import Scorer
    from gradaudit.inference.scores import Score

AUDIT = "attack"
Scope = str | None
_UNCALIBRATED = (
    "log loss alone takes a calibrated posterior, and there were no shadow records left to "
    "calibrate on; raise --held-out or --shadow, or take smaller batches"
)


Adversary = Sequence[Mapping[Scope, "Guesses"]]


@dataclass(frozen=True)
class Rows:
    """Makes the rows of the repetitions of a game.

    Attributes:
        scorer: of their trials.
        base: variant of its main rows; empty for the headline.
    """

    scorer: "Scorer"
    base: Variant

    def guesses(
        self,
        found: "Adversary",
        variant: Variant,
        details: Mapping[str, JsonValue],
        *,
        rounds: bool = False,
    ) -> Iterator[Measurement]:
        """Rows of one adversary: all rounds together, and each alone.

        Args:
            found: of each repetition by layer, None being the whole update.
            variant: of the adversary, beside the base.
            details: what the adversary was given, for rows of the main variant.
            rounds: whether each round has rows of its own.
        """
        for scope in found[0]:
            each = [guesses[scope] for guesses in found]
            at = {**self.base, **variant}
            facts = {**details, **_choices(scope, each)}
            yield from self.scores(scope, [guess.posterior for guess in each], at, facts)
            yield from self._log_loss(scope, each, at)
            for number in range(len(each[0].rounds) if rounds else 0):
                alone = [guess.rounds[number] for guess in each]
                yield from self.scores(scope, alone, {**at, "round": number}, {})

    def scores(
        self,
        scope: Scope,
        posteriors: Sequence["FloatArray"],
        variant: Variant,
        details: Mapping[str, JsonValue],
    ) -> Iterator[Measurement]:
        """A row for every score of the repetitions' posteriors."""
        for metric, score in self.scorer.scores(posteriors).items():
            yield self._row(metric, scope, score, variant, details)

    def gains(
        self, found: "Adversary", floor: "Floor", details: Mapping[str, JsonValue]
    ) -> Iterator[Measurement]:
        """How far an adversary's scores are above those for the secret shuffled."""
        for scope in found[0]:
            ours, theirs = (
                scorer.scores([guesses[scope].posterior for guesses in each])
                for scorer, each in ((self.scorer, found), (floor.scorer, floor.found))
            )
            for metric, score in self.scorer.gains(ours, theirs).items():
                yield self._row(metric, scope, score, self.base, details)

    def no_gains(self, found: Mapping[Scope, "Guesses"], why: str) -> Iterator[Measurement]:
        """Rows that say why there is nothing to compare with."""
        from gradaudit.attacks.inference.scoring import GAINS

        for row in skipped(AUDIT, GAINS, list(found), why):
            yield row.model_copy(update={"variant": self.base})

    def fano(
        self, found: Mapping[Scope, Sequence["Leak"]], details: Mapping[str, JsonValue]
    ) -> Iterator[Measurement]:
        """What the noise allows any adversary, after all rounds and after each.

        The information is estimated from samples; the bound is that of its upper end.
        """
        from gradaudit.attacks.inference.noise import together

        for scope, rounds in found.items():
            yield self._bound(scope, together(rounds), self.base, details)
            for number, leak in enumerate(rounds if len(rounds) > 1 else ()):
                yield self._bound(scope, leak, {**self.base, "round": number}, {})

    def estimate(self, found: "Adversary") -> Iterator[Measurement]:
        """The same from the usable information of the calibrated posterior, which is no bound."""
        from gradaudit.attacks.inference.fano import advantage_bound, entropy
        from gradaudit.inference.scores import Score

        prior = self.scorer.deals[0].prior
        for scope in found[0]:
            loss = self._loss([guesses[scope] for guesses in found])
            if loss is None:
                continue
            told = [max(entropy(prior) - x, 0.0) for x in (loss.value, *loss.interval[::-1])]
            value, low, high = (advantage_bound(nats, prior) for nats in told)
            yield self._row(
                "fano_bound",
                scope,
                Score(value, (low, high)),
                {**self.base, "information": "estimate"},
                {"is_a_bound": False, "usable_information": told[0]},
            )

    def _loss(self, each: Sequence["Guesses"]) -> "Score | None":
        """Log loss, or None where no batches were held out to calibrate on."""
        heats = [guess.temperature for guess in each if guess.temperature is not None]
        if len(heats) < len(each):
            return None
        return self.scorer.log_loss([guess.posterior for guess in each], heats)

    def _bound(
        self, scope: Scope, leak: "Leak", variant: Variant, details: Mapping[str, JsonValue]
    ) -> Measurement:
        from gradaudit.attacks.inference.fano import advantage_bound, entropy
        from gradaudit.inference.scores import Score

        prior = self.scorer.deals[0].prior
        whole = entropy(prior)
        if leak.information is None:
            facts: dict[str, JsonValue] = {"vacuous": True, "because": leak.reason}
            return self._row("fano_bound", scope, Score(1, (1, 1)), variant, {**details, **facts})
        capped = [min(nats, whole) for nats in leak.interval]
        low, high = (advantage_bound(nats, prior) for nats in capped)
        facts = {
            "vacuous": high >= 1,
            "information": capped[1],
            "of_entropy": whole,
            "is_a_bound": True,
        }
        return self._row(
            "fano_bound", scope, Score(high, (low, high)), variant, {**details, **facts}
        )

    def _log_loss(
        self, scope: Scope, each: Sequence["Guesses"], variant: Variant
    ) -> Iterator[Measurement]:
        score = self._loss(each)
        if score is None:
            (row,) = skipped(AUDIT, ["log_loss"], [scope], _UNCALIBRATED)
            yield row.model_copy(update={"variant": variant})
            return
        heats = [guess.temperature.value for guess in each if guess.temperature is not None]
        details: dict[str, JsonValue] = {"temperature": sum(heats) / len(heats)}
        yield self._row("log_loss", scope, score, variant, details, unit="nats")

    def _row(
        self,
        metric: str,
        scope: Scope,
        score: "Score",
        variant: Variant,
        details: Mapping[str, JsonValue],
        unit: str = "",
    ) -> Measurement:
        return Measurement(
            audit=AUDIT,
            metric=metric,
            layer=scope,
            variant=variant,
            value=score.value,
            interval=score.interval,
            confidence=self.scorer.confidence,
            unit=unit,
            n=self.scorer.trials,
            details={**details, **self._doubts(metric)},
        )

    def _doubts(self, metric: str) -> dict[str, JsonValue]:
        """What is said of an interval that is not to be trusted."""
        why = "" if metric == "fano_bound" else self.scorer.doubts(metric)
        return {"imprecise": True, "imprecise_because": why} if why else {}


@dataclass(frozen=True)
class Floor:
    """The same game with the secret shuffled among the records.

    Attributes:
        scorer: of its trials.
        found: the strongest adversary's guesses of each repetition.
        base: variant of the rows that it is the floor of.
    """

    scorer: "Scorer"
    found: "Adversary"
    base: Variant

    def rows(self) -> Iterator[Measurement]:
        """Rows of what seems to be found there."""
        rows = Rows(self.scorer, self.base)
        yield from rows.guesses(self.found, {"attribute_permuted": True}, {})


def shuffled_rows(match: "Match", base: Variant) -> "Floor | str":
    """The floor of a match, or why there is none."""
    from gradaudit.attacks.inference.scoring import Scorer

    played = [play.shuffled for play in match.plays]
    for each in played:
        if isinstance(each, str):
            return each
    pairs = [each for each in played if not isinstance(each, str)]
    return Floor(Scorer([deal for deal, _ in pairs]), [found for _, found in pairs], base)


def _choices(scope: Scope, each: Sequence["Guesses"]) -> dict[str, JsonValue]:
    """Which family the adversary chose in each repetition, and what of the whole update it read."""
    facts: dict[str, JsonValue] = {"family": ", ".join(dict.fromkeys(g.family for g in each))}
    if scope is None:
        facts["reads"] = dict(Counter(g.source for g in each))
    return facts


def beside_floor(
    rows: Iterable[Measurement], floor: Iterable[Measurement], variant: Variant
) -> Iterator[Measurement]:
    """Rows whose details hold the same number for the secret shuffled among the records.

    Args:
        rows: of an adversary.
        floor: of the same one, where the secret was shuffled.
        variant: of the rows that get it.
    """
    found: dict[tuple[str, Scope], JsonValue] = {
        (row.metric, row.layer): {"value": row.value, "interval": list(row.interval)}
        for row in floor
        if row.interval is not None
    }
    for row in rows:
        key = (row.metric, row.layer)
        if row.variant != variant or row.status != "measured" or key not in found:
            yield row
            continue
        yield row.model_copy(update={"details": {**row.details, "permuted": found[key]}})
