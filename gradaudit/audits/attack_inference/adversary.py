"""The adversary of an inference game: its side knowledge, its observations and its guesses.

It guesses from every layer and from the whole update, after all rounds. Beside the updates it may
know columns of the records, φ(x).

Source: Li et al. 2024, section 4.1; that columns alone may give an attribute away is the imputation
of B. Jayaraman and D. Evans, "Are attribute inference attacks just imputation?" (2022).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gradaudit.audits.attack_inference.game import Answers, InferenceGame
from gradaudit.audits.attack_inference.observation import RoundObservation
from gradaudit.audits.attack_inference.readers import Guesses, calibrated, combine, pooled
from gradaudit.audits.attack_inference.split import FloatArray, GameSplit
from gradaudit.core.randomness import Seed, number
from gradaudit.core.specs import suggest
from gradaudit.core.text import listed
from gradaudit.data.records import Records
from gradaudit.errors import NotApplicable, UsageError
from gradaudit.executors.workers import Task, one_thread, shared_out
from gradaudit.families.base import Features
from gradaudit.progress import Advance

LABEL = "label"
"""The name by which the task label counts as a column, where no column is called so."""
ALL_LAYERS = "all layers"


@dataclass(frozen=True)
class Knowledge:
    """Known columns of every record.

    Attributes:
        names: of the columns, in the order asked for.
        columns: (records, positions) as encoded, float64; no positions where nothing is known.
    """

    names: tuple[str, ...]
    columns: NDArray[np.float64]

    @classmethod
    def of(cls, records: Records, names: Sequence[str], secret: str = "") -> Knowledge:
        """Select the known columns by their names; ``label`` is the task label.

        Raises:
            UsageError: a column does not exist, or is the secret itself.
            NotApplicable: the records have no columns.
        """
        wanted = tuple(dict.fromkeys(names))
        parts = [_column(records, name, secret) for name in wanted]
        empty = np.zeros((len(records), 0))
        return cls(wanted, np.concatenate([empty, *parts], axis=1))

    def __bool__(self) -> bool:
        return bool(self.names)

    def of_batches(self, batches: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compute φ, each known column's mean over a batch: (batches, k) to (batches, positions).

        Records of a batch have no order, and a batch's gradient is a mean too.
        """
        total = np.zeros((len(batches), self.columns.shape[1]))
        for place in range(batches.shape[1]):
            total += self.columns[batches[:, place]]
        return np.asarray(total / batches.shape[1])


def _column(records: Records, name: str, secret: str) -> NDArray[np.float64]:
    if name == secret:
        raise UsageError(f"--knows {name}: this is what is to be guessed; leave it out")
    known = {feature.name: feature for feature in records.features}
    if name in known:
        inputs = records.inputs.flatten(1)[:, list(known[name].positions)].cpu().numpy()
        if known[name].coded:
            return np.eye(len(known[name].values))[inputs[:, 0].astype(np.int64)]
        return np.asarray(inputs, dtype=np.float64)
    if name == LABEL:
        labels = records.labels.cpu().numpy()
        if labels.dtype.kind != "f":
            labels = np.eye(int(labels.max()) + 1)[labels]
        return np.array(labels, dtype=np.float64).reshape(len(labels), -1)
    if not known:
        raise NotApplicable(f"--knows {name}: these records have no columns, only {LABEL} is known")
    raise UsageError(
        f"--knows {name}: no column {name!r}{suggest(name, known)}; there are: "
        f"{listed(list(known), 20)} and {LABEL}"
    )


Scope = str | None
"""A layer's name, or None for the whole update."""


@dataclass(frozen=True)
class Adversary:
    """An adversary that guesses by one or several predictive families.

    Attributes:
        observations: one of each round, oldest first.
        families: predictive families, each weighed by how well it predicted the batches held out.
        jobs: workers that fits are shared out among; no number depends on them.
    """

    game: InferenceGame
    split: GameSplit
    observations: Sequence[RoundObservation]
    families: tuple[str, ...]
    knowledge: Knowledge
    seed: Seed = 0
    jobs: int = 1

    def imputation(self) -> Guesses:
        """Guesses from the known columns alone, without any update."""
        seed = number(self.seed, "imputation")
        answers = _answers(self.game, self.split, self.families, seed, *self._known())
        return self._pooled({name: [answer] for name, answer in answers.items()}, ALL_LAYERS)

    def guesses(self, *, adaptive: bool, advance: Advance) -> dict[Scope, Guesses]:
        """The adversary's guesses from every layer, and from the whole update (None).

        An adversary who sees the whole update pools the posteriors of all layers together and of
        each layer alone, by how well each predicted the batches that were held out.

        Args:
            adaptive: whether it knows the defenses and applies them to its own updates.
            advance: called for every round.
        """
        scopes: list[Scope] = []

        def tasks() -> Iterator[Task[dict[str, Answers]]]:
            for index, observation in enumerate(self.observations):
                seed = number(self.seed, "round", index)
                fit = partial(_answers, self.game, self.split, self.families, seed)
                for scope, own, released in observation.features(self.split, adaptive=adaptive):
                    scopes.append(scope)
                    yield partial(fit, *self._knowing(own, released))
                advance(1)

        results = shared_out(tasks(), self.jobs, lambda units: None)
        answers: dict[Scope, dict[str, list[Answers]]] = {}
        for scope, of_families in zip(scopes, results, strict=True):
            of_scope = answers.setdefault(scope, {name: [] for name in of_families})
            for name, answer in of_families.items():
                of_scope[name].append(answer)
        guesses = {
            scope: self._pooled(of_scope, scope or ALL_LAYERS)
            for scope, of_scope in answers.items()
        }
        return {**guesses, None: pooled(list(guesses.values()), self.split)}

    def _knowing(self, own: Features, released: Features) -> tuple[Features, Features]:
        """Join the features of updates with the columns that the adversary knows."""
        if not self.knowledge:
            return own, released
        known, known_of_released = self._known()
        return np.hstack([own, known]), np.hstack([released, known_of_released])

    def _known(self) -> tuple[FloatArray, FloatArray]:
        """Compute φ of the adversary's own batches and of the observed batches."""
        of_batches = self.knowledge.of_batches
        return of_batches(self.split.own), of_batches(self.split.observed.indices)

    def _pooled(self, answers: Mapping[str, Sequence[Answers]], source: str) -> Guesses:
        """Pool the families' posteriors from one scope after all rounds."""
        prior = self.split.prior
        posterior = partial(combine, shared=bool(self.knowledge))
        readers = [
            calibrated(
                posterior([answers.observed for answers in rounds], prior),
                tuple(posterior([answers.observed], prior) for answers in rounds),
                posterior([answers.held for answers in rounds], np.ones(len(prior))),
                self.split,
                (name,),
                {source: 1.0},
            )
            for name, rounds in answers.items()
        ]
        return pooled(readers, self.split)


def _answers(
    game: InferenceGame,
    split: GameSplit,
    families: Sequence[str],
    seed: int,
    own: Features,
    released: Features,
    advance: Advance = lambda units: None,
) -> dict[str, Answers]:
    """Ask each family for its posteriors, on one thread."""
    found: dict[str, Answers] = {}
    with one_thread():
        for name in families:
            found[name] = game.answers(split, name, own, released, seed)
    return found
