"""Draws all records and batches for the audited attributes before the first gradient.

Every use and attribute has draws of its own, whatever other attributes are asked about.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradaudit.audits.vinfo import VinfoOptions
from gradaudit.audits.vinfo.repetitions import Question, Repetition, occurring_values, repetitions
from gradaudit.core.randomness import sequence
from gradaudit.core.statistics.correlation import FEWEST_POINTS
from gradaudit.data.records import Attribute, Records
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.games.splits import IntArray, split
from gradaudit.subject import Subject

RECORDS = 2000
ENOUGH_TO_KEEP = 3000
"""Records from which on a third is kept for the correlation, unless it is asked for or refused."""
MEMBER = "member"
_KEPT = (2.0, 1.0)


@dataclass(frozen=True)
class AttributeCase:
    """An attribute with its drawn splits and batches.

    ``permuted`` is empty where ``why`` says why not, ``independent`` without a correlation. Of the
    fits and the defenses' noise ``seed`` is the root, ``attack`` for the independent attack.
    """

    attribute: str
    values: int
    real: Sequence[Repetition]
    permuted: Sequence[Repetition]
    independent: Sequence[Repetition]
    why: str
    seed: np.random.SeedSequence
    attack: np.random.SeedSequence


def why_no_correlation(subject: Subject, options: VinfoOptions) -> str:
    """Say why no records are kept for the independent attack; empty where some are.

    From so few as 2,000 records a third is missed: .066 nats were found where .172 are.
    """
    if options.correlation is False:
        return "not asked for: --no-correlation"
    points = len(subject.layers) * len(subject.targets) * max(1, len(subject.attributes))
    if points < FEWEST_POINTS:
        return f"{points} points of layers, checkpoints and attributes; {FEWEST_POINTS} are needed"
    count = min(subject.samples or len(subject.records), len(subject.records))
    if options.correlation is None and count < ENOUGH_TO_KEEP:
        return (
            f"{count} records; the independent attack takes a third of them, and from less than "
            f"{ENOUGH_TO_KEEP} too much would be missed (--correlation takes it all the same)"
        )
    return ""


def records_asked_about(subject: Subject, *, keep: bool) -> Records:
    """Select the records and attributes to audit: the task label where none is named.

    More are drawn where a third is kept for an independent attack.

    Raises:
        NotApplicable: none is named, and membership is unknown.
    """
    records = subject.records
    if subject.attributes:
        chosen = {name: records.attributes[name] for name in subject.attributes}
    elif records.members is not None:
        chosen = {MEMBER: Attribute(records.members.astype("int64"), ("no", "yes"))}
    else:
        names = ", ".join(records.attributes)
        remedy = f"name one with --attribute: {names}" if names else "the data set has none"
        raise NotApplicable(f"no private attribute is named; {remedy}")
    count = ENOUGH_TO_KEEP if keep else RECORDS
    return replace(subject, records=replace(records, attributes=chosen)).sample(count)


def drawn_cases(
    records: Records, options: VinfoOptions, seed: int, *, keep: bool
) -> tuple[list[AttributeCase], dict[str, str]]:
    """Draw splits and batches of every attribute; ``keep`` leaves a third for another attack.

    Returns:
        The cases, and why there is none of some attributes.

    Raises:
        UsageError: the adversary's records leave none to score.
    """
    measured = np.arange(len(records), dtype=np.int64)
    kept = measured[:0]
    if keep:
        draws = sequence(seed, "vinfo", "split")
        measured, kept = split(len(records), records.users, _KEPT, draws)
    if options.shadow is not None and options.shadow >= len(measured):
        raise UsageError(
            f"--shadow {options.shadow}: only {len(measured)} records are looked at, and some must "
            "be left to score"
        )
    cases: list[AttributeCase] = []
    refused: dict[str, str] = {}
    for name in records.attributes:
        try:
            cases.append(_case(records, name, options, seed, measured, kept))
        except NotApplicable as why:
            refused[name] = str(why)
    return cases, refused


def _case(
    records: Records,
    name: str,
    options: VinfoOptions,
    seed: int,
    measured: IntArray,
    kept: IntArray,
) -> AttributeCase:
    attribute = records.attributes[name]
    question = Question(
        attribute=name,
        values=attribute.values,
        codes=attribute.codes,
        users=records.users,
        pool=measured,
        size=options.batch_size,
        batches=options.batches,
        shadow=options.shadow,
        repeats=options.repeats,
        seed=sequence(seed, "vinfo", "real", name),
    )
    real = list(repetitions(question))
    permuted: list[Repetition] = []
    why = ""
    try:
        floor = replace(question, repeats=options.permuted_repeats)
        permuted = list(repetitions(floor, permuted=True))
    except NotApplicable as refusal:
        why = f"with the attribute permuted: {refusal}"
    independent: list[Repetition] = []
    if len(kept):
        draws = sequence(seed, "vinfo", "independent", name)
        independent = list(repetitions(replace(question, pool=kept, shadow=None, seed=draws)))
    return AttributeCase(
        attribute=name,
        values=len(occurring_values(attribute.codes[measured], attribute.values)[1]),
        real=real,
        permuted=permuted,
        independent=independent,
        why=why,
        seed=sequence(seed, "vinfo", "fits", name),
        attack=sequence(seed, "vinfo", "attack", name),
    )
