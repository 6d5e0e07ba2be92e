"""One repetition of a game: its own split of the records, its own batches, fits and shuffling."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gradaudit.attacks.inference.deal import Deal, Setup
from gradaudit.attacks.inference.game import InferenceGame
from gradaudit.attacks.inference.knowledge import Knowledge
from gradaudit.attacks.inference.noise import Leak, leaks
from gradaudit.attacks.inference.own_rounds import train_rounds
from gradaudit.attacks.inference.play import Guesses, Scope, Table
from gradaudit.attacks.inference.sight import Sight, prepared_for
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.models.target import Subject, Target
from gradaudit.progress import Advance
from gradaudit.sharing.protocol import SharingProtocol

OWN_ROUNDS = 3
_DEAL, _FIT, _NOISE, _TRAIN, _FANO, _SHUFFLE = range(6)


@dataclass(frozen=True)
class Terms:
    """What a match is about, beside the game.

    Attributes:
        setup: of the deal.
        sharing: how clients share.
        reduce: of each layer's update.
        rounds: how many to observe; None is all checkpoints, or three of its own.
        learning_rate: of rounds that are trained here.
        adaptive: whether an adversary plays who knows the defenses.
        knows: columns that adversaries know.
        families: predictive families.
        floor: whether the game is played with the secret shuffled too.
        repeats: how many splits of the records it is played on; the trials are dealt among them.
    """

    setup: Setup
    sharing: SharingProtocol = field(default_factory=SharingProtocol)
    reduce: str | None = None
    rounds: int | None = None
    learning_rate: float = 0.01
    adaptive: bool = True
    knows: tuple[str, ...] = ()
    families: tuple[str, ...] = ("forest",)
    floor: bool = True
    repeats: int = 1


@dataclass(frozen=True)
class Play:
    """What came of one repetition.

    Attributes:
        deal: the batches.
        strongest: the adversary of the headline: adaptive, where there are defenses and it plays.
        static: the one that does not know the defenses, where another one is the headline.
        imputation: what the known columns alone say, where there are any.
        shuffled: the deal with the secret shuffled among the records, and the strongest adversary's
            guesses in it; or why there is none.
    """

    deal: Deal
    strongest: Mapping[Scope, Guesses]
    static: Mapping[Scope, Guesses] | None
    imputation: Guesses | None
    shuffled: tuple[Deal, Mapping[Scope, Guesses]] | str


@dataclass(frozen=True)
class Repetition:
    """One repetition, dealt and not played yet.

    Attributes:
        subject: what is attacked.
        game: which one.
        terms: of this repetition alone.
        deal: its batches.
        seeds: of all that is drawn.
    """

    subject: Subject
    game: InferenceGame
    terms: Terms
    deal: Deal
    seeds: Sequence[np.random.SeedSequence]

    @classmethod
    def of(
        cls, subject: Subject, game: InferenceGame, terms: Terms, seed: int, number: int
    ) -> "Repetition":
        """Deal the records anew; raises as the game's ``deal``."""
        seeds = np.random.SeedSequence(seed, spawn_key=(71, number)).spawn(6)
        trials = len(np.arange(number, terms.setup.trials, terms.repeats))
        setup = replace(terms.setup, trials=trials)
        deal = game.deal(subject.records, setup, seeds[_DEAL])
        return cls(subject, game, replace(terms, setup=setup), deal, seeds)

    @property
    def adaptive(self) -> bool:
        """Whether an adversary plays who knows the defenses that there are."""
        return bool(self.terms.sharing.chain.defenses) and self.terms.adaptive

    @property
    def units(self) -> int:
        """Looks at a round, and rounds that are trained."""
        count = count_rounds(self.subject, self.terms)
        own = count - 1 if trains_rounds(self.subject) else 0
        return count * (1 + self.adaptive + self.terms.floor) + own

    def leaks(self, sights: Sequence[Sight]) -> dict[Scope, list[Leak]]:
        """What noise lets through."""
        return leaks(sights, self.deal, self.seeds[_FANO])

    def sights(self, records: Records, advance: Advance) -> list[Sight]:
        """The rounds as they are seen."""
        count = count_rounds(self.subject, self.terms)
        seed = _number(self.seeds[_TRAIN])
        targets = _targets(self.subject, records, self.deal, self.terms, count, seed, advance)
        return _sights(targets, self.subject, records, self.deal, self.terms, self.seeds[_NOISE])

    def play(self, sights: Sequence[Sight], advance: Advance) -> Play:
        """Every adversary's guesses."""
        secret = getattr(self.game, "attribute", "")
        knowledge = Knowledge.of(self.subject.records, self.terms.knows, secret)
        seed = _number(self.seeds[_FIT])
        table = Table(self.game, self.deal, sights, self.terms.families, knowledge, seed)
        return Play(
            deal=self.deal,
            strongest=table.play(adaptive=self.adaptive, advance=advance),
            static=table.play(adaptive=False, advance=advance) if self.adaptive else None,
            imputation=table.imputation() if knowledge else None,
            shuffled=self._shuffled(table, advance),
        )

    def _shuffled(
        self, table: Table, advance: Advance
    ) -> tuple[Deal, Mapping[Scope, Guesses]] | str:
        """The strongest adversary where the secret was dealt out anew: what it seems to find."""
        if not self.terms.floor:
            return "the game was not played with the secret shuffled"
        records, (order, dealing) = self.subject.records, self.seeds[_SHUFFLE].spawn(2)
        try:
            shuffled = self.game.permuted(records, order)
            deal = self.game.deal(shuffled, self.terms.setup, dealing)
        except NotApplicable as why:
            return f"no floor with the secret shuffled: {why}"
        other = replace(table, deal=deal, knowledge=Knowledge.of(records, ()))
        return deal, other.play(adaptive=self.adaptive, advance=advance)


def trains_rounds(subject: Subject) -> bool:
    """Whether there are no checkpoints, so that the audit trains its own rounds."""
    return (
        all(target.checkpoint is None for target in subject.targets) and len(subject.targets) == 1
    )


def count_rounds(subject: Subject, terms: Terms) -> int:
    """How many rounds are observed; a UsageError where there are too few checkpoints."""
    if trains_rounds(subject):
        return terms.rounds or OWN_ROUNDS
    held = len(subject.targets)
    if terms.rounds is not None and terms.rounds > held:
        raise UsageError(
            f"--rounds {terms.rounds}: there are {held} checkpoints; give one --checkpoint a "
            "round, oldest first"
        )
    return terms.rounds or held


def _targets(
    subject: Subject,
    records: Records,
    deal: Deal,
    terms: Terms,
    count: int,
    seed: int,
    advance: Advance,
) -> list[Target]:
    """The rounds' models, oldest first."""
    if not trains_rounds(subject):
        return list(subject.targets[-count:])
    return list(
        train_rounds(
            subject.target,
            records,
            deal.parts.private,
            count,
            defended=lambda target: prepared_for(
                SharingProtocol(terms.sharing.defenses, hidden=subject.hidden),
                target,
                records,
                deal,
                seed,
                subject.memory,
            ),
            rate=terms.learning_rate,
            seed=seed,
            advance=advance,
        )
    )


def _sights(
    targets: Sequence[Target],
    subject: Subject,
    records: Records,
    deal: Deal,
    terms: Terms,
    seed: np.random.SeedSequence,
) -> list[Sight]:
    return [
        Sight(
            target,
            records,
            subject.layers,
            prepared_for(terms.sharing, target, records, deal, _number(child), subject.memory),
            reduce=terms.reduce,
            memory=subject.memory,
            seed=_number(child),
        )
        for target, child in zip(targets, seed.spawn(len(targets)), strict=True)
    ]


def _number(seed: np.random.SeedSequence) -> int:
    return int(seed.generate_state(1, np.uint32)[0])
