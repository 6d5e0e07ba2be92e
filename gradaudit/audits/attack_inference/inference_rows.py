"""Rows of the inference attacks from an experiment."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from pydantic import JsonValue

from gradaudit.audits.attack_inference.adversary import Scope
from gradaudit.audits.attack_inference.experiment import Findings
from gradaudit.audits.attack_inference.fano import Leak, fano_bound, sum_of_rounds
from gradaudit.audits.attack_inference.readers import Guesses, Temperature
from gradaudit.audits.attack_inference.split import FloatArray, GameSplit
from gradaudit.audits.rows import Details, Rows
from gradaudit.core.statistics.laws import entropy
from gradaudit.core.statistics.u_statistic import Draws
from gradaudit.games.scores import Score, Scores, Trials, advantage, gain
from gradaudit.report import Measurement

METRICS = ("asr", "auroc", "advantage", "tpr_at_1pct_fpr")
GAINS = ("auroc_gain", "advantage_gain")
_SCORED = {"auroc_gain": ("auroc", "AUROC"), "advantage_gain": ("asr", "success")}
"""Score that a gain is the difference of, and its name."""
_UNCALIBRATED = (
    "log loss alone takes a calibrated posterior, and there were no shadow records left to "
    "calibrate on; raise --held-out or --shadow, or take smaller batches"
)


@dataclass(frozen=True)
class Scorer:
    """Scores posteriors of the trials of a game's repetitions."""

    splits: Sequence[GameSplit]

    def scores(self, posteriors: Sequence[FloatArray]) -> dict[str, Score]:
        """Compute ``METRICS`` from each repetition's log-posteriors (trials, values)."""
        rates = self._scores.rates(posteriors)
        success = rates["asr"]
        low, value, high = (
            advantage(at, self.blind)
            for at in (success.interval[0], success.value, success.interval[1])
        )
        return {**rates, "advantage": Score(value, (low, high))}

    def gains(self, scores: dict[str, Score], floor: dict[str, Score]) -> dict[str, Score]:
        """Compute ``GAINS``: by how much scores exceed those with the secret shuffled.

        The gain in advantage is that in success over 1 − p*, which no truncation at zero bends.
        """
        return {
            "auroc_gain": gain(scores["auroc"], floor["auroc"]),
            "advantage_gain": gain(scores["asr"], floor["asr"], 1 - self.blind),
        }

    def log_loss(
        self, posteriors: Sequence[FloatArray], temperatures: Sequence[Temperature]
    ) -> Score:
        """Log loss in nats, after recalibration: posteriors of several rounds are too sure."""
        pairs = zip(posteriors, temperatures, strict=True)
        return self._scores.log_loss([heat.applied(posterior) for posterior, heat in pairs])

    @property
    def trials(self) -> int:
        """Number of trials of all repetitions."""
        return sum(len(split.observed.labels) for split in self.splits)

    @property
    def blind(self) -> float:
        """p*, the success of the best guess without the gradient."""
        return float(self.splits[0].prior.max())

    @cached_property
    def _scores(self) -> Scores:
        names = max(int(split.clusters.max()) for split in self.splits) + 1
        trials = []
        for split in self.splits:
            labels, members = split.observed.labels, split.observed.indices
            strata = np.unique(labels, return_inverse=True)[1].astype(np.int64)
            if split.candidates is not None:  # they are dealt anew to every trial: one stratum
                strata, members = np.zeros_like(labels), split.clusters
            trials.append(Trials(labels, Draws.of(members, strata, split.clusters, names)))
        return Scores(trials)


Guessed = Sequence[Mapping[Scope, Guesses]]
"""One adversary's guesses in each repetition by layer, None being the whole update."""


def experiment_rows(
    rows: Rows, repetitions: Sequence[Findings], reductions: Mapping[str, str]
) -> Iterator[Measurement]:
    """Make all rows of an experiment: the strongest adversary first, the shuffled secret last."""
    facts = repetitions[0].facts
    many = facts["rounds"] != 1
    strongest = [findings.strongest for findings in repetitions]
    scored = ScoredRows(rows, Scorer([findings.split for findings in repetitions]), reductions)
    headline = scored.guesses(strongest, facts, rounds=many)
    floor = _floor(rows.of({"attribute_permuted": True}), repetitions, reductions)
    permuted: list[Measurement] = []
    if isinstance(floor, str):
        yield from headline
        yield from rows.skipped(floor, GAINS, strongest[0])
    else:
        below, shuffled = floor
        permuted = list(below.guesses(shuffled, {}, rounds=False))
        yield from _beside(headline, permuted, rows)
        yield from scored.gains(strongest, below.scorer, shuffled, facts)
    yield from scored.fano(repetitions[0].leaks, facts)
    yield from scored.estimate(strongest)
    static = [findings.static for findings in repetitions if findings.static is not None]
    if static:
        of_static = replace(scored, rows=rows.of({"adversary": "static"}))
        yield from of_static.guesses(static, {}, rounds=many)
    known = [findings.imputation for findings in repetitions if findings.imputation is not None]
    if known:
        imputed = ScoredRows(rows.of({"knowledge": "imputation"}), scored.scorer)
        yield from imputed.scores(None, [guesses.posterior for guesses in known], {})
    yield from permuted


@dataclass(frozen=True)
class ScoredRows:
    """Makes rows of guesses in the repetitions of a game.

    Reductions are those of each layer's update; none where no update is looked at.
    """

    rows: Rows
    scorer: Scorer
    reductions: Mapping[str, str] = field(default_factory=dict)

    def guesses(
        self, adversary: Guessed, details: Details, *, rounds: bool
    ) -> Iterator[Measurement]:
        """Rows of one adversary: all rounds together with the details, and if asked each alone."""
        for scope in adversary[0]:
            guessed = [guesses[scope] for guesses in adversary]
            families = dict.fromkeys(name for guess in guessed for name in guess.families)
            facts = {**details, "family": ", ".join(families)}
            if scope is None:
                facts["reads"] = _shares(guessed)
            yield from self.scores(scope, [guess.posterior for guess in guessed], facts)
            score = self._loss(guessed)
            if score is None:
                yield from self.rows.skipped(_UNCALIBRATED, ["log_loss"], [scope])
            else:
                heats = [x.temperature.value for x in guessed if x.temperature is not None]
                heat: Details = {"temperature": sum(heats) / len(heats)}
                yield self._row("log_loss", scope, score, heat)
            for number in range(len(guessed[0].rounds) if rounds else 0):
                alone = [guess.rounds[number] for guess in guessed]
                of_round = replace(self, rows=self.rows.of({"round": number}))
                yield from of_round.scores(scope, alone, {})

    def scores(
        self, scope: Scope, posteriors: Sequence[FloatArray], details: Details
    ) -> Iterator[Measurement]:
        """A row for every score of the repetitions' posteriors."""
        for metric, score in self.scorer.scores(posteriors).items():
            yield self._row(metric, scope, score, details)

    def gains(
        self, adversary: Guessed, below: Scorer, shuffled: Guessed, details: Details
    ) -> Iterator[Measurement]:
        """Make rows of the amount by which scores exceed those with the secret shuffled."""
        for scope in adversary[0]:
            ours, theirs = (
                scorer.scores([guesses[scope].posterior for guesses in repetitions])
                for scorer, repetitions in ((self.scorer, adversary), (below, shuffled))
            )
            for metric, score in self.scorer.gains(ours, theirs).items():
                name, noun = _SCORED[metric]
                both: dict[str, JsonValue] = {noun: ours[name].value}
                both["shuffled"] = theirs[name].value
                yield self._row(metric, scope, score, {**details, "difference_of": both})

    def fano(
        self, leaks: Mapping[Scope, Sequence[Leak]], details: Details
    ) -> Iterator[Measurement]:
        """Fano's bound on any adversary's advantage, after all rounds and after each.

        The information is estimated from samples; the bound is that of its upper end.
        """
        for scope, rounds in leaks.items():
            yield self._bound(scope, sum_of_rounds(rounds), details)
            for number, leak in enumerate(rounds if len(rounds) > 1 else ()):
                of_round = replace(self, rows=self.rows.of({"round": number}))
                yield of_round._bound(scope, leak, {})

    def estimate(self, adversary: Guessed) -> Iterator[Measurement]:
        """Make the row of an estimate, not a bound, from the calibrated posterior."""
        prior = self.scorer.splits[0].prior
        estimated = replace(self, rows=self.rows.of({"information": "estimate"}))
        for scope in adversary[0]:
            loss = self._loss([guesses[scope] for guesses in adversary])
            if loss is None:
                continue
            usable = [max(entropy(prior) - x, 0.0) for x in (loss.value, *loss.interval[::-1])]
            value, low, high = (fano_bound(nats, prior) for nats in usable)
            details = {"is_a_bound": False, "usable_information": usable[0]}
            yield estimated._row("fano_bound", scope, Score(value, (low, high)), details)

    def _loss(self, each: Sequence[Guesses]) -> Score | None:
        """Compute the log loss; None where no batches were held out for calibration."""
        heats = [guess.temperature for guess in each if guess.temperature is not None]
        if len(heats) < len(each):
            return None
        return self.scorer.log_loss([guess.posterior for guess in each], heats)

    def _bound(self, scope: Scope, leak: Leak, details: Details) -> Measurement:
        prior = self.scorer.splits[0].prior
        whole = entropy(prior)
        if leak.information is None:
            vacuous = {**details, "vacuous": True, "because": leak.reason}
            return self._row("fano_bound", scope, Score(1, (1, 1)), vacuous)
        capped = [min(nats, whole) for nats in leak.interval]
        low, high = (fano_bound(nats, prior) for nats in capped)
        facts: Details = {
            **details,
            "vacuous": high >= 1,
            "information": capped[1],
            "of_entropy": whole,
            "is_a_bound": True,
        }
        return self._row("fano_bound", scope, Score(high, (low, high)), facts)

    def _row(self, metric: str, scope: Scope, score: Score, details: Details) -> Measurement:
        reduction: Details = {}
        if metric != "fano_bound" and self.reductions:  # of all layers each kind once
            kinds = self.reductions.values() if scope is None else [self.reductions[scope]]
            reduction = {"reduction": ", ".join(dict.fromkeys(kinds))}
        return self.rows.measured(
            metric,
            score.value,
            layer=scope,
            interval=score.interval,
            n=self.scorer.trials,
            details={**details, **reduction},
        )


def _shares(guessed: Sequence[Guesses]) -> dict[str, JsonValue]:
    """Compute each layer's weight in the pooled guesses, and that of all layers together."""
    sources = dict.fromkeys(source for guess in guessed for source in guess.reads)
    return {
        source: sum(guess.reads.get(source, 0.0) for guess in guessed) / len(guessed)
        for source in sources
    }


def _floor(
    rows: Rows, repetitions: Sequence[Findings], reductions: Mapping[str, str]
) -> tuple[ScoredRows, Guessed] | str:
    """Return what makes rows with the secret shuffled and its guesses, or why there are none."""
    pairs = []
    for findings in repetitions:
        if isinstance(findings.shuffled, str):
            return findings.shuffled
        pairs.append(findings.shuffled)
    scorer = Scorer([split for split, _ in pairs])
    return ScoredRows(rows, scorer, reductions), [guesses for _, guesses in pairs]


def _beside(
    headline: Iterator[Measurement], permuted: Sequence[Measurement], rows: Rows
) -> Iterator[Measurement]:
    """Add to the main variant's rows the same number with the secret shuffled."""
    floors: dict[tuple[str, Scope], JsonValue] = {
        (row.metric, row.layer): {"value": row.value, "interval": list(row.interval)}
        for row in permuted
        if row.interval is not None
    }
    for row in headline:
        floor = floors.get((row.metric, row.layer))
        if row.variant == rows.variant and row.status == "measured" and floor is not None:
            row = row.with_details({"permuted": floor})
        yield row
