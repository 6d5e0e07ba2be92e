"""Rows of the inference attacks from a played game."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue

from gradaudit.report import Measurement, Variant

if TYPE_CHECKING:
    from gradaudit.attacks.inference.deal import FloatArray
    from gradaudit.attacks.inference.noise import Leak
    from gradaudit.attacks.inference.play import Guesses
    from gradaudit.attacks.inference.scoring import Scorer
    from gradaudit.inference.scores import Score

AUDIT = "attack"
Scope = str | None


@dataclass(frozen=True)
class Rows:
    """Makes the rows of one deal.

    Attributes:
        scorer: of its trials.
        base: variant of its main rows; empty for the headline.
    """

    scorer: "Scorer"
    base: Variant

    def guesses(
        self,
        found: Mapping[Scope, "Guesses"],
        variant: Variant,
        details: Mapping[str, JsonValue],
        *,
        rounds: bool = False,
    ) -> Iterator[Measurement]:
        """Rows of one adversary: all rounds together, and each alone.

        Args:
            found: by layer, None being the whole update.
            variant: of the adversary, beside the base.
            details: what the adversary was given, for rows of the main variant.
            rounds: whether each round has rows of its own.
        """
        for scope, guess in found.items():
            at = {**self.base, **variant}
            facts = {**details, "family": guess.family}
            yield from self.scores(scope, guess.posterior, at, facts)
            yield from self._log_loss(scope, guess, at)
            for number, posterior in enumerate(guess.rounds if rounds else ()):
                yield from self.scores(scope, posterior, {**at, "round": number}, {})

    def scores(
        self,
        scope: Scope,
        posterior: "FloatArray",
        variant: Variant,
        details: Mapping[str, JsonValue],
    ) -> Iterator[Measurement]:
        """A row for every score of a posterior."""
        for metric, score in self.scorer.scores(posterior).items():
            yield self._row(metric, scope, score, variant, details)

    def fano(
        self, found: Mapping[Scope, Sequence["Leak"]], details: Mapping[str, JsonValue]
    ) -> Iterator[Measurement]:
        """What the noise allows any adversary, after all rounds and after each."""
        from gradaudit.attacks.inference.noise import together

        for scope, rounds in found.items():
            yield self._bound(scope, together(rounds), self.base, details)
            for number, leak in enumerate(rounds if len(rounds) > 1 else ()):
                yield self._bound(scope, leak, {**self.base, "round": number}, {})

    def estimate(self, found: Mapping[Scope, "Guesses"]) -> Iterator[Measurement]:
        """The same from the usable information of the calibrated posterior, which is no bound."""
        from gradaudit.attacks.inference.fano import advantage_bound, entropy
        from gradaudit.inference.scores import Score

        prior = self.scorer.deal.prior
        for scope, guess in found.items():
            if guess.temperature is None:
                continue
            loss = self.scorer.log_loss(guess.posterior, guess.temperature)
            told = [max(entropy(prior) - x, 0.0) for x in (loss.value, *loss.interval[::-1])]
            value, low, high = (advantage_bound(nats, prior) for nats in told)
            yield self._row(
                "fano_bound",
                scope,
                Score(value, (low, high)),
                {**self.base, "information": "estimate"},
                {"is_a_bound": False, "usable_information": told[0]},
            )

    def _bound(
        self, scope: Scope, leak: "Leak", variant: Variant, details: Mapping[str, JsonValue]
    ) -> Measurement:
        from gradaudit.attacks.inference.fano import advantage_bound, entropy
        from gradaudit.inference.scores import Score

        prior = self.scorer.deal.prior
        whole = entropy(prior)
        if leak.information is None:
            facts: dict[str, JsonValue] = {"vacuous": True, "because": leak.reason}
            return self._row("fano_bound", scope, Score(1, (1, 1)), variant, {**details, **facts})
        capped = [min(nats, whole) for nats in (leak.information, *leak.interval)]
        value, low, high = (advantage_bound(nats, prior) for nats in capped)
        facts = {
            "vacuous": value >= 1,
            "information": capped[0],
            "of_entropy": whole,
            "is_a_bound": True,
        }
        return self._row(
            "fano_bound", scope, Score(value, (low, high)), variant, {**details, **facts}
        )

    def _log_loss(self, scope: Scope, guess: "Guesses", variant: Variant) -> Iterator[Measurement]:
        if guess.temperature is None:
            yield Measurement(
                audit=AUDIT,
                metric="log_loss",
                layer=scope,
                variant=variant,
                status="skipped",
                reason="no shadow records were held out to calibrate the posterior on; raise "
                "--held-out or --shadow",
            )
            return
        score = self.scorer.log_loss(guess.posterior, guess.temperature)
        yield self._row(
            "log_loss", scope, score, variant, {"temperature": guess.temperature.value}, unit="nats"
        )

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
            n=len(self.scorer.deal.observed.labels),
            details=dict(details),
        )


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
