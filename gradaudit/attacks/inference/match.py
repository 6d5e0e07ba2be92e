"""A whole match: one secret, every adversary, and the same with the secret shuffled, repeated.

A game holds for one split of the records: another shadow set makes another adversary. So it is
played several times, each time with all sets, batches and fits drawn anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from gradaudit.accuracy import task_accuracy
from gradaudit.attacks.inference.deal import Deal
from gradaudit.attacks.inference.game import InferenceGame
from gradaudit.attacks.inference.noise import Leak
from gradaudit.attacks.inference.play import Scope
from gradaudit.attacks.inference.repetition import Play, Repetition, Terms, trains_rounds
from gradaudit.attacks.inference.sight import Sight
from gradaudit.models.target import Subject
from gradaudit.progress import Progress


@dataclass(frozen=True)
class Match:
    """What came of all repetitions.

    Attributes:
        plays: one for each.
        leaks: what noise lets through, by layer and round, in the first.
        facts: what the adversary was given, for the report.
    """

    plays: tuple[Play, ...]
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
    stages = [Repetition.of(subject, game, terms, seed, number) for number in range(terms.repeats)]
    records = game.prepared(subject.records)
    plays: list[Play] = []
    with progress.task(f"attack {game.name}", sum(stage.units for stage in stages)) as advance:
        for stage in stages:
            sights = stage.sights(records, advance)
            plays.append(stage.play(sights, advance))
            if len(plays) == 1:
                first = plays[0].deal
                found = stage.leaks(sights)
                facts = _facts(subject, game, first, terms, sights, adaptive=stage.adaptive)
    return Match(tuple(plays), found, facts)


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
        "batch_size": deal.size,
        "repetitions": terms.repeats,
        "rounds": len(sights),
        "rounds_from": "own training" if trains_rounds(subject) else "checkpoints",
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
    if trains_rounds(subject) and len(deal.parts.test):
        tested = task_accuracy(
            sights[-1].target, game.prepared(subject.records).take(deal.parts.test)
        )
        facts["test_accuracy"] = tested.to_json()
    return facts
