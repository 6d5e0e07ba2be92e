"""What the four inference attacks do alike: play, and make rows of it."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from gradaudit.audits._attack_metrics import HEADLINE, METRICS
from gradaudit.audits._attack_options import InferenceOptions
from gradaudit.audits._attack_rows import Rows, beside_floor, shuffled_rows
from gradaudit.audits.base import Audit
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress
from gradaudit.report import RISKIEST_BY, Measurement, Variant

if TYPE_CHECKING:
    from gradaudit.attacks.inference.game import InferenceGame
    from gradaudit.attacks.inference.match import Match
    from gradaudit.attacks.inference.repetition import Terms
    from gradaudit.models.target import Subject

_OWN_ROUNDS = 3
_FEWEST_TRIALS = 40
"""In one repetition."""

O = TypeVar("O", bound=InferenceOptions)  # noqa: E741 - O for options


class InferenceAttack(Audit[O]):
    """An inference attack as an audit: rows for the whole update (layer null) and every layer.

    The headline is the strongest adversary that was declared: all rounds together, and adaptive
    where there are defenses. Beside it stand each ``round`` alone, the ``static`` adversary, what
    known columns alone give (``knowledge: imputation``), and the same game with the secret
    shuffled among the records (``attribute_permuted``): what is found there is no leakage, and
    limits stand on what is above it (``auroc_gain``).

    The game is played on several splits of the records, and intervals are over all of them: for
    another shadow and private set of as many records of the same population. They are those of
    U-statistics, since batches share records or users.
    """

    metrics = METRICS
    headline = HEADLINE
    quick: ClassVar = {
        "trials": 400,
        "batches": 100,
        "repeats": 2,
        "rounds": 1,
        "family": ["logistic"],
    }
    plain: ClassVar = {"batches": 100, "repeats": 3}
    thorough: ClassVar = {"trials": 5000, "batches": 1000}

    @abstractmethod
    def games(self, subject: "Subject") -> Sequence["InferenceGame"]:
        """The games to play, one for each secret.

        Raises:
            NotApplicable: there is nothing to guess.
        """

    def run(self, subject: "Subject", progress: Progress) -> Iterator[Measurement]:
        """Play for every secret; of several, the headline is the one with the largest AUROC.

        Raises:
            NotApplicable: the records have nothing to guess, or too little of it.
            UsageError: an option does not go with the records or the checkpoints.
        """
        from gradaudit.attacks.inference.match import play_match

        games = self.games(subject)
        matches = [
            play_match(subject, game, self._terms(subject, game), subject.seed + index, progress)
            for index, game in enumerate(games)
        ]
        if len(matches) == 1:
            yield from self._rows(matches[0], {})
            return
        each = [
            list(self._rows(match, {"attribute": match.plays[0].deal.secret})) for match in matches
        ]
        best = max(range(len(matches)), key=lambda index: _auroc(each[index]))
        for row in self._rows(matches[best], {}):
            details = {**row.details, RISKIEST_BY: ["attribute"]}
            yield row.model_copy(update={"details": details})
        for rows in each:
            yield from rows

    def passes(self, subject: "Subject") -> float:
        """The gradients of all records that play, in every round, for every look at them."""
        try:
            games = self.games(subject)
        except NotApplicable:
            return 0.0
        records = min(len(subject.records), self.options.shadow + (subject.samples or 5000))
        return float(len(games) * self._repeats * self._looks(subject) * records)

    def seconds(self, subject: "Subject") -> float:
        """The fits on every layer and on the whole update, for every look at them."""
        from gradaudit.families import family

        options = self.options
        sizes = features_of(subject, options.reduce)
        each = sum(
            family(name).seconds(options.batches, size)
            for name in options.family
            for size in (*sizes, sum(sizes))
        )
        games = self.games(subject) if self.passes(subject) else ()
        return len(games) * self._repeats * self._looks(subject) * self._fits() * each

    @property
    def _repeats(self) -> int:
        """Repetitions, each of enough trials."""
        return max(min(self.options.repeats, self.options.trials // _FEWEST_TRIALS), 1)

    def _looks(self, subject: "Subject") -> int:
        """Rounds by adversaries, the shuffled game being one of them."""
        trained = len(subject.targets) == 1 and subject.target.checkpoint is None
        rounds = self.options.rounds or (_OWN_ROUNDS if trained else len(subject.targets))
        return rounds * (2 + (bool(subject.defenses) and self.options.adaptive))

    def _fits(self) -> int:
        """Classifiers that a guess takes."""
        return 1

    def _terms(self, subject: "Subject", game: "InferenceGame") -> "Terms":
        from gradaudit.attacks.inference.deal import PRIVATE, Setup
        from gradaudit.attacks.inference.repetition import Terms

        o = self.options
        setup = Setup(
            batch_size=o.batch_size or game.fitting_batch_size(subject.records, o.shadow),
            shadow=o.shadow,
            batches=o.batches,
            held_out=o.held_out,
            trials=o.trials,
            prior=o.prior,
            private=subject.samples or PRIVATE,
            **self._of_the_game(),
        )
        return Terms(
            setup=setup,
            sharing=o.sharing(subject.defenses, subject.hidden),
            reduce=o.reduce,
            rounds=o.rounds,
            learning_rate=o.learning_rate,
            adaptive=o.adaptive,
            knows=o.knows,
            families=o.family,
            repeats=self._repeats,
        )

    def _of_the_game(self) -> dict[str, int]:
        """Fields of the game's setup that only this attack has options for."""
        return {}

    def _rows(self, match: "Match", base: Variant) -> Iterator[Measurement]:
        from gradaudit.attacks.inference.scoring import Scorer

        rows = Rows(Scorer([play.deal for play in match.plays]), base)
        strongest = [play.strongest for play in match.plays]
        many = match.facts["rounds"] != 1
        headline = rows.guesses(strongest, {}, match.facts, rounds=many)
        floor = shuffled_rows(match, base)
        if isinstance(floor, str):
            yield from headline
            yield from rows.no_gains(strongest[0], floor)
        else:
            found = list(floor.rows())
            yield from beside_floor(headline, found, base)
            yield from rows.gains(strongest, floor, match.facts)
        yield from rows.fano(match.leaks, match.facts)
        yield from rows.estimate(strongest)
        if match.plays[0].static is not None:
            static = [play.static for play in match.plays if play.static is not None]
            yield from rows.guesses(static, {"adversary": "static"}, {}, rounds=many)
        if match.plays[0].imputation is not None:
            known = [play.imputation for play in match.plays if play.imputation is not None]
            variant: Variant = {**base, "knowledge": "imputation"}
            yield from rows.scores(None, [guess.posterior for guess in known], variant, {})
        if not isinstance(floor, str):
            yield from found


def expect_attributes(subject: "Subject") -> tuple[str, ...]:
    """The attributes asked about.

    Raises:
        NotApplicable: none is named.
    """
    if not subject.attributes:
        raise NotApplicable("no private attribute is named; name one with --attribute")
    return subject.attributes


def features_of(subject: "Subject", reduce: str | None) -> list[int]:
    """How many features each layer's update is reduced to."""
    from gradaudit.sharing.reduction import parse_reduction, reduction_for

    asked = parse_reduction(reduce)
    sizes = [layer.parameters for layer in subject.layers]
    return [reduction_for(size, asked).features(size) for size in sizes]


def _auroc(rows: Sequence[Measurement]) -> float:
    """The largest headline AUROC of the whole update among rows."""
    return max(row.value or 0.0 for row in rows if row.metric == "auroc" and row.layer is None)
