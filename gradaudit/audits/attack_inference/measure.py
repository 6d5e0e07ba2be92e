"""The four inference attacks: play a game for each secret, and make rows of it."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from gradaudit.audits.attack_inference import (
    AttackAttribute,
    AttackDistribution,
    AttackUser,
    InferenceAttack,
    InferenceOptions,
)
from gradaudit.audits.attack_inference.distribution import DistributionGame
from gradaudit.audits.attack_inference.experiment import (
    OWN_ROUNDS,
    Findings,
    run_experiment,
    trains_rounds,
)
from gradaudit.audits.attack_inference.game import AttributeGame, InferenceGame, PropertyGame
from gradaudit.audits.attack_inference.inference_rows import experiment_rows
from gradaudit.audits.attack_inference.split import PRIVATE, Design
from gradaudit.audits.attack_inference.user import UserGame
from gradaudit.audits.rows import Rows
from gradaudit.audits.sharing_options import reductions
from gradaudit.errors import NotApplicable
from gradaudit.progress import Progress
from gradaudit.report import RISKIEST_BY, Measurement
from gradaudit.subject import SINGLE, Subject

_BATCH = 16
"""Records of a client, about, where the game says how many."""
_FEWEST_TRIALS = 40
"""Trials in one repetition, at least."""


def run(audit: InferenceAttack[Any], subject: Subject, progress: Progress) -> Iterator[Measurement]:
    """Play for every secret; of several, the headline is the one with the largest AUROC.

    Raises:
        NotApplicable: the records have nothing to guess, or too little of it.
        UsageError: an option does not go with the records or the checkpoints.
    """
    experiments: list[Sequence[Findings]] = []
    for index, game in enumerate(_games(audit, subject)):
        design = _design(audit, subject, game)
        experiments.append(run_experiment(subject, game, design, subject.seed + index, progress))
    rows, options = Rows(type(audit)), audit.options
    sharing = options.sharing(subject.defenses, subject.hidden)
    reduced = reductions(subject.layers, sharing, options.reduce, subject.memory)
    if len(experiments) == 1:
        yield from experiment_rows(rows, experiments[0], reduced)
        return
    each = [
        list(experiment_rows(rows.of({"attribute": str(one[0].facts["secret"])}), one, reduced))
        for one in experiments
    ]
    aurocs = [
        max(row.value or 0.0 for row in some if row.metric == "auroc" and row.layer is None)
        for some in each
    ]
    best = aurocs.index(max(aurocs))
    for row in experiment_rows(rows, experiments[best], reduced):
        yield row.with_details({RISKIEST_BY: ["attribute"]})
    for of_secret in each:
        yield from of_secret


def gradients(audit: InferenceAttack[Any], subject: Subject) -> float:
    """Count the gradients, in single precision, of all records for every look at every round.

    Each adversary looks, and one with the secret shuffled.
    """
    try:
        games = _games(audit, subject)
    except NotApplicable:
        return 0.0
    columns = {feature.name for feature in subject.records.features}
    if isinstance(audit, AttackAttribute) and not columns & set(subject.attributes):
        return 0.0
    options = audit.options
    rounds = OWN_ROUNDS if trains_rounds(subject) else len(subject.targets)
    looks = (options.rounds or rounds) * (2 + (bool(subject.defenses) and options.adaptive))
    looks *= len(games) * _repeats(audit)
    records = min(len(subject.records), options.shadow + (subject.samples or PRIVATE))
    updates = looks * (options.batches + options.trials / _repeats(audit))
    passes = options.local_passes(updates, options.batch_size or _BATCH)
    return float(SINGLE * (looks * records + passes))


def _games(audit: InferenceAttack[Any], subject: Subject) -> Sequence[InferenceGame]:
    """The games to play, one for each secret.

    Raises:
        NotApplicable: there is nothing to guess.
    """
    if isinstance(audit, AttackUser):
        if subject.records.users is None:
            raise NotApplicable("the records name no users; name their column with user=COL")
        return [UserGame()]
    if not subject.attributes:
        raise NotApplicable("no private attribute is named; name one with --attribute")
    names, fewest = subject.attributes, audit.options.merge_rare
    if isinstance(audit, AttackDistribution):
        return [DistributionGame(name, audit.options.value, fewest=fewest) for name in names]
    kind = AttributeGame if isinstance(audit, AttackAttribute) else PropertyGame
    return [kind(name, fewest=fewest) for name in names]


def _design(audit: InferenceAttack[Any], subject: Subject, game: InferenceGame) -> Design:
    options = audit.options
    named = options.model_dump(include={field.name for field in fields(Design)})
    given = {
        "batch_size": options.batch_size
        or game.fitting_batch_size(subject.records, options.shadow),
        "private": subject.samples or PRIVATE,
        "sharing": options.sharing(subject.defenses, subject.hidden),
        "families": options.family,
        "repeats": _repeats(audit),
    }
    return Design(**{**named, **given})


def _repeats(audit: InferenceAttack[Any]) -> int:
    """Choose the number of repetitions, so that each has enough trials."""
    options: InferenceOptions = audit.options
    return max(min(options.repeats, options.trials // _FEWEST_TRIALS), 1)
