"""A whole match: one secret, all rounds, every adversary, and the same with the secret shuffled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from pydantic import JsonValue

from gradaudit.attacks.inference.deal import Deal, Setup
from gradaudit.attacks.inference.game import InferenceGame
from gradaudit.attacks.inference.knowledge import Knowledge
from gradaudit.attacks.inference.noise import Leak, leaks
from gradaudit.attacks.inference.own_rounds import train_rounds
from gradaudit.attacks.inference.play import Guesses, Scope, Table
from gradaudit.attacks.inference.sight import Sight, prepared_for
from gradaudit.errors import UsageError
from gradaudit.loading.accuracy import task_accuracy
from gradaudit.loading.records import Records
from gradaudit.progress import Advance, Progress
from gradaudit.target import Subject, Target
from gradaudit.updates.sharing import Sharing

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
    """

    setup: Setup
    sharing: Sharing = field(default_factory=Sharing)
    reduce: str | None = None
    rounds: int | None = None
    learning_rate: float = 0.01
    adaptive: bool = True
    knows: tuple[str, ...] = ()
    families: tuple[str, ...] = ("forest",)
    floor: bool = True


@dataclass(frozen=True)
class Match:
    """What came of it.

    Attributes:
        deal: the batches.
        strongest: the adversary of the headline: adaptive, where there are defenses and it plays.
        static: the one that does not know the defenses, where another one is the headline.
        imputation: what the known columns alone say, where there are any.
        shuffled: the deal with the secret shuffled among the records, and the strongest adversary's
            guesses in it; None where it was not played.
        leaks: what noise lets through, by layer and round.
        facts: what the adversary was given, for the report.
    """

    deal: Deal
    strongest: Mapping[Scope, Guesses]
    static: Mapping[Scope, Guesses] | None
    imputation: Guesses | None
    shuffled: tuple[Deal, Mapping[Scope, Guesses]] | None
    leaks: Mapping[Scope, Sequence[Leak]]
    facts: Mapping[str, JsonValue]


def play_match(
    subject: Subject, game: InferenceGame, terms: Terms, seed: int, progress: Progress
) -> Match:
    """Play a game on the subject.

    Raises:
        NotApplicable: the records have nothing to guess, or too little of it.
        UsageError: an option does not go with the records or the checkpoints.
        AuditError: the model cannot be run on the records.
    """
    root = np.random.SeedSequence(seed, spawn_key=(71,))
    children = root.spawn(6)
    deal = game.deal(subject.records, terms.setup, children[_DEAL])
    secret = getattr(game, "attribute", "")
    knowledge = Knowledge.of(subject.records, terms.knows, secret)
    records = game.prepared(subject.records)
    defended = bool(terms.sharing.chain.defenses)
    adaptive = defended and terms.adaptive
    count = _count(subject, terms)
    own = _trains(subject)
    total = count * (1 + adaptive + terms.floor) + (count - 1 if own else 0)
    with progress.task(f"attack {game.name}", total) as advance:
        targets = _targets(subject, records, deal, terms, count, _number(children[_TRAIN]), advance)
        sights = _sights(targets, subject, records, deal, terms, children[_NOISE])
        table = Table(game, deal, sights, terms.families, knowledge, _number(children[_FIT]))
        strongest = table.play(adaptive=adaptive, advance=advance)
        static = table.play(adaptive=False, advance=advance) if adaptive else None
        shuffled = None
        if terms.floor:
            shuffled = _shuffled(
                table, subject.records, terms, children[_SHUFFLE], adaptive, advance
            )
    return Match(
        deal=deal,
        strongest=strongest,
        static=static,
        imputation=table.imputation() if knowledge else None,
        shuffled=shuffled,
        leaks=leaks(sights, deal, children[_FANO]),
        facts=_facts(subject, game, deal, terms, sights, adaptive=adaptive),
    )


def _trains(subject: Subject) -> bool:
    """Whether there are no checkpoints, so that the audit trains its own rounds."""
    return (
        all(target.checkpoint is None for target in subject.targets) and len(subject.targets) == 1
    )


def _count(subject: Subject, terms: Terms) -> int:
    if _trains(subject):
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
    if not _trains(subject):
        return list(subject.targets[-count:])
    return list(
        train_rounds(
            subject.target,
            records,
            deal.parts.private,
            count,
            defended=lambda target: prepared_for(
                Sharing(terms.sharing.defenses, hidden=subject.hidden),
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


def _shuffled(
    table: Table,
    records: Records,
    terms: Terms,
    seed: np.random.SeedSequence,
    adaptive: bool,
    advance: Advance,
) -> tuple[Deal, Mapping[Scope, Guesses]]:
    """The strongest adversary where the secret was dealt out anew: what it seems to find there."""
    order, dealing = seed.spawn(2)
    deal = table.game.deal(table.game.permuted(records, order), terms.setup, dealing)
    nothing = Knowledge.of(records, ())
    other = replace(table, deal=deal, knowledge=nothing)
    return deal, other.play(adaptive=adaptive, advance=advance)


def _facts(
    subject: Subject,
    game: InferenceGame,
    deal: Deal,
    terms: Terms,
    sights: Sequence[Sight],
    *,
    adaptive: bool,
) -> dict[str, JsonValue]:
    """What the report says of the adversary and of the game."""
    facts: dict[str, JsonValue] = {
        "game": game.name,
        "secret": deal.secret,
        "values": list(deal.values),
        "prior": [round(float(share), 6) for share in deal.prior],
        "blind_guess": float(deal.prior.max()),
        "batch_size": int(deal.observed.indices.shape[1]),
        "rounds": len(sights),
        "rounds_from": "own training" if _trains(subject) else "checkpoints",
        "defense": str(terms.sharing.chain),
        "adversary": "adaptive" if adaptive else "static",
        "model": "weights, loss and mode of every round",
        "labels_of_the_batch": "known" if "label" in terms.knows else "not known",
        "knows": list(terms.knows),
        "shadow_records": len(deal.parts.shadow) + len(deal.parts.held),
        "shadow_batches": len(deal.shadow.labels),
        "held_out_records": len(deal.parts.held),
        "private_records": len(deal.parts.private),
        "reduce": terms.reduce or "by size",
        **deal.notes,
    }
    if sights[-1].note:
        facts["updates"] = sights[-1].note
    if _trains(subject) and len(deal.parts.test):
        tested = task_accuracy(
            sights[-1].target, game.prepared(subject.records).take(deal.parts.test)
        )
        facts["test_accuracy"] = tested.to_json()
    return facts


def _number(seed: np.random.SeedSequence) -> int:
    return int(seed.generate_state(1, np.uint32)[0])
