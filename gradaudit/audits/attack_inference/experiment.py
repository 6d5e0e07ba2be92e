"""An experiment: one secret, every adversary, and the same with the secret shuffled, repeated.

A game holds for one split of the records: another shadow set makes another adversary. So it is
played several times, each time with all sets, batches and fits drawn anew.

Where only a model and data are given, rounds are trained by the audit itself: SGD with learning
rate 0.01 on the private set, one epoch a round, every step with the defended gradient; the first
round sees the model as it is given (Li et al. 2024, definition 3.1 and section 5.1.4).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue

from gradaudit.accuracy import task_accuracy
from gradaudit.audits.attack_inference.adversary import Adversary, Knowledge, Scope
from gradaudit.audits.attack_inference.fano import Leak, information_bounds
from gradaudit.audits.attack_inference.game import InferenceGame
from gradaudit.audits.attack_inference.observation import RoundObservation, prepared
from gradaudit.audits.attack_inference.readers import Guesses
from gradaudit.audits.attack_inference.split import Design, GameSplit
from gradaudit.core.randomness import number, sequence, torch_rng
from gradaudit.data.records import Records
from gradaudit.errors import AuditError, NotApplicable, UsageError
from gradaudit.executors.workers import shared_out
from gradaudit.models.target import Target
from gradaudit.progress import Advance, Progress
from gradaudit.report import LEARNERS
from gradaudit.sharing.protocol import SharingProtocol
from gradaudit.sharing.share import share
from gradaudit.subject import Subject

_BATCH = 32
OWN_ROUNDS = 3


def train_rounds(
    target: Target,
    records: Records,
    rows: NDArray[np.int64],
    rounds: int,
    *,
    defended: Callable[[Target], SharingProtocol],
    rate: float = 0.01,
    seed: int = 0,
    advance: Advance = lambda units: None,
) -> Iterator[Target]:
    """Train the target and keep its weights before each epoch, which are what each round observes.

    Args:
        target: the model to begin with; it is left as it was.
        records: all of them.
        rows: indices of the private training set.
        rounds: how many to yield.
        defended: what is done to the gradient of every step of an epoch, by the model that the
            epoch begins with. Layers that are never shared are trained without, on the client.
        rate: learning rate.
        seed: of the order of the records and of noise.
        advance: called for every epoch.

    Raises:
        AuditError: the training diverged.
    """
    generator = torch_rng(seed, "training")
    plain = SharingProtocol()
    for index in range(rounds):
        yield target
        if index + 1 == rounds:
            return
        sharing = defended(target)
        target = replace(target, model=copy.deepcopy(target.model))
        order = torch.from_numpy(rows)[torch.randperm(len(rows), generator=generator)]
        for step in torch.split(order, _BATCH):
            inputs, labels = records.inputs[step], records.labels[step]
            update = share(target, inputs, labels, sharing, generator)
            if sharing.hidden:
                update = {**share(target, inputs, labels, plain, generator), **update}
            _step(target, update, rate)
        advance(1)


def _step(target: Target, update: dict[str, torch.Tensor], rate: float) -> None:
    with torch.no_grad():
        for name, parameter in target.model.named_parameters():
            if name in update:
                parameter.sub_(update[name].to(parameter), alpha=rate)
                if not torch.isfinite(parameter).all():
                    raise AuditError(
                        f"training its own rounds diverged in {name}; give checkpoints with "
                        "--checkpoint, or a smaller --learning-rate"
                    )


@dataclass(frozen=True)
class Findings:
    """The adversaries' guesses in one repetition.

    Attributes:
        strongest: the adversary of the headline: adaptive, where there are defenses and it plays.
        static: the one that does not know the defenses, where another one is the headline.
        imputation: what the known columns alone say, where there are any.
        shuffled: the split with the secret shuffled among the records, and the strongest
            adversary's guesses in it; or why there is none.
        leaks: what noise lets through, by layer and round; in the first repetition alone.
        facts: for the report; in the first repetition alone.
    """

    split: GameSplit
    strongest: Mapping[Scope, Guesses]
    static: Mapping[Scope, Guesses] | None
    imputation: Guesses | None
    shuffled: tuple[GameSplit, Mapping[Scope, Guesses]] | str
    leaks: Mapping[Scope, Sequence[Leak]] = field(default_factory=dict)
    facts: Mapping[str, JsonValue] = field(default_factory=dict)


def run_experiment(
    subject: Subject, game: InferenceGame, design: Design, seed: int, progress: Progress
) -> list[Findings]:
    """Play all repetitions of a game on the subject.

    Raises:
        NotApplicable: the records have nothing to guess, or too little of it.
        UsageError: an option does not go with the records or the checkpoints.
        AuditError: the model cannot be run on the records.
    """
    records, repetitions = game.prepared(subject.records), []
    workers = subject.workers
    whole = design.repeats >= workers > 1  # each repetition is one unit of work
    player = replace(subject, jobs=1) if whole else subject
    for index in range(design.repeats):
        draws = sequence(seed, "inference", game.name, "repetition", index)
        share = replace(design, trials=len(range(index, design.trials, design.repeats)))
        split = game.split(subject.records, share, draws)
        repetitions.append(_Repetition(player, records, game, share, split, draws))
    tasks = [
        partial(_played, repetition, first=not index)
        for index, repetition in enumerate(repetitions)
    ]
    units = sum(repetition.units for repetition in repetitions)
    with progress.task(f"attack {game.name}", units) as advance:
        played = shared_out(tasks, workers, advance, patience=0) if whole else []
        for task in [] if whole else tasks:
            played.append(task(advance))
    return played


def _played(repetition: _Repetition, advance: Advance, *, first: bool) -> Findings:
    rounds = repetition.observations(advance)
    findings = repetition.findings(rounds, advance)
    if not first:
        return findings
    leaks = information_bounds(rounds, repetition.split, sequence(repetition.seed, "fano"))
    return replace(findings, leaks=leaks, facts=repetition.facts(rounds))


@dataclass(frozen=True)
class _Repetition:
    """One repetition, whose batches are drawn and not guessed yet.

    ``records`` are the subject's as the clients feed them to the model, ``design`` is that of this
    repetition alone.
    """

    subject: Subject
    records: Records
    game: InferenceGame
    design: Design
    split: GameSplit
    seed: np.random.SeedSequence

    @property
    def adaptive(self) -> bool:
        """Whether an adversary plays that knows the defenses; false where there are none."""
        return bool(self.design.sharing.chain.defenses) and self.design.adaptive

    @property
    def units(self) -> int:
        """Count the units of progress: rounds that are observed, and rounds that are trained."""
        count = _count_rounds(self.subject, self.design)
        others = count - 1 if trains_rounds(self.subject) else 0
        return count * (2 + self.adaptive) + others

    def observations(self, advance: Advance) -> list[RoundObservation]:
        targets = self._targets(_count_rounds(self.subject, self.design), advance)
        seeds = [number(self.seed, "round", index) for index in range(len(targets))]
        return [
            RoundObservation(
                target,
                self.records,
                self.subject.layers,
                self._prepared(self.design.sharing, target, seed),
                reduce=self.design.reduce,
                memory=self.subject.memory,
                seed=seed,
                latest=self.subject.latest,
            )
            for target, seed in zip(targets, seeds, strict=True)
        ]

    def findings(self, observations: Sequence[RoundObservation], advance: Advance) -> Findings:
        secret, fits = getattr(self.game, "attribute", ""), sequence(self.seed, "fits")
        knowledge = Knowledge.of(self.subject.records, self.design.knows, secret)
        families = self.game.families or self.design.families
        jobs = self.subject.jobs
        adversary = Adversary(self.game, self.split, observations, families, knowledge, fits, jobs)
        return Findings(
            split=self.split,
            strongest=adversary.guesses(adaptive=self.adaptive, advance=advance),
            static=adversary.guesses(adaptive=False, advance=advance) if self.adaptive else None,
            imputation=adversary.imputation() if knowledge else None,
            shuffled=self._shuffled(adversary, advance),
        )

    def facts(self, observations: Sequence[RoundObservation]) -> dict[str, JsonValue]:
        split, design = self.split, self.design
        trains = trains_rounds(self.subject)
        facts: dict[str, JsonValue] = {
            "game": self.game.name,
            "secret": split.secret,
            "values": list(split.values),
            "prior": [round(float(share), 6) for share in split.prior],
            "blind_guess": float(split.prior.max()),
            "batch_size": split.size,
            "repetitions": design.repeats,
            "rounds": len(observations),
            "rounds_from": "own training" if trains else "checkpoints",
            "defense": str(design.sharing.chain),
            "adversary": "adaptive" if self.adaptive else "static",
            "model": "weights, loss and mode of every round",
            "labels_of_the_batch": "known" if "label" in design.knows else "not known",
            "knows": list(design.knows),
            LEARNERS: self.game.learners(design.families),
            "shadow_records": len(split.parts.shadow) + len(split.parts.held),
            "shadow_batches": len(split.shadow.labels),
            "held_out_records": len(split.parts.held),
            "private_records": len(split.parts.private),
            "reduce": design.reduce or "by size",
            **split.notes,
        }
        if observations[-1].note:
            facts["updates"] = observations[-1].note
        if trains and len(split.parts.test):
            tested = task_accuracy(observations[-1].target, self.records.take(split.parts.test))
            facts["test_accuracy"] = tested.to_json()
        return facts

    def _targets(self, count: int, advance: Advance) -> Sequence[Target]:
        subject, seed = self.subject, number(self.seed, "training")
        if not trains_rounds(subject):
            return subject.targets[-count:]
        protocol = SharingProtocol(self.design.sharing.defenses, hidden=subject.hidden)
        return list(
            train_rounds(
                subject.target,
                self.records,
                self.split.parts.private,
                count,
                defended=lambda target: self._prepared(protocol, target, seed),
                rate=self.design.learning_rate,
                seed=seed,
                advance=advance,
            )
        )

    def _prepared(self, sharing: SharingProtocol, target: Target, seed: int) -> SharingProtocol:
        towards = None if self.split.candidates is None else 0
        memory, shadow = self.subject.memory, self.split.shadow
        return prepared(
            sharing, target, self.records, *shadow, seed=seed, towards=towards, memory=memory
        )

    def _shuffled(
        self, adversary: Adversary, advance: Advance
    ) -> tuple[GameSplit, Mapping[Scope, Guesses]] | str:
        """Play the strongest adversary with the secret shuffled: its success by chance."""
        records, seed = self.subject.records, sequence(self.seed, "shuffled")
        try:
            shuffled = self.game.permuted(records, seed)
            split = self.game.split(shuffled, self.design, seed)
        except NotApplicable as why:
            return f"no floor with the secret shuffled: {why}"
        other = replace(adversary, split=split, knowledge=Knowledge.of(records, ()))
        return split, other.guesses(adaptive=self.adaptive, advance=advance)


def trains_rounds(subject: Subject) -> bool:
    """Whether there are no checkpoints, so that the audit trains its own rounds."""
    return len(subject.targets) == 1 and subject.target.checkpoint is None


def _count_rounds(subject: Subject, design: Design) -> int:
    """How many rounds are observed; a UsageError where there are too few checkpoints."""
    if trains_rounds(subject):
        return design.rounds or OWN_ROUNDS
    held = len(subject.targets)
    if design.rounds is not None and design.rounds > held:
        raise UsageError(
            f"--rounds {design.rounds}: there are {held} checkpoints; give one --checkpoint a "
            "round, oldest first"
        )
    return design.rounds or held
