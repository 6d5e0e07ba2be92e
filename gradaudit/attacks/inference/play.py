"""A game played over all rounds, by every adversary, on every layer and on the whole update."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradaudit.attacks.inference.deal import Deal, FloatArray
from gradaudit.attacks.inference.game import Answers, InferenceGame
from gradaudit.attacks.inference.knowledge import Knowledge
from gradaudit.attacks.inference.rounds import Temperature, combine, log_loss, pool
from gradaudit.attacks.inference.sight import Sight
from gradaudit.errors import UsageError
from gradaudit.families import family as family_named
from gradaudit.families.base import Features
from gradaudit.progress import Advance

Scope = str | None
"""A layer's name, or None for the whole update."""
ALL_LAYERS = "all layers"


@dataclass(frozen=True)
class Guesses:
    """What one adversary says of the batches to guess.

    Attributes:
        posterior: (trials, values) normalised log P(a|G) of all rounds together.
        rounds: the same of each round alone.
        temperature: what calibrates ``posterior``; None where no batches were held out.
        family: the predictive family that it chose.
        held_out_loss: in nats, of batches held out, which is what it chooses by.
        source: the layer it reads, or ``ALL_LAYERS``.
    """

    posterior: FloatArray
    rounds: tuple[FloatArray, ...]
    temperature: Temperature | None
    family: str
    held_out_loss: float
    source: str


@dataclass(frozen=True)
class Table:
    """Everything a game is played on.

    Attributes:
        game: which one.
        deal: the batches.
        sights: one round each, oldest first.
        families: predictive families to choose from, by the adversary's own held-out batches.
        knowledge: what it knows beside the updates.
        seed: of the fits.
    """

    game: InferenceGame
    deal: Deal
    sights: Sequence[Sight]
    families: tuple[str, ...]
    knowledge: Knowledge
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.families) > 1 and not len(self.deal.held.labels):
            raise UsageError(
                f"--family {','.join(self.families)}: to choose between families takes held-out "
                "shadow batches; raise --held-out or --shadow, or name one family"
            )

    def imputation(self) -> Guesses:
        """What the known columns alone say: no update is looked at."""
        own, released = self._known()
        said = {
            name: [self.game.answers(self.deal, family_named(name), own, released, self.seed)]
            for name in self.families
        }
        return self._chosen(said, ALL_LAYERS)

    def play(self, *, adaptive: bool, advance: Advance) -> dict[Scope, Guesses]:
        """The adversary's guesses from every layer, and from the whole update (None).

        Who sees the whole update reads all layers together, or the one layer that told more of
        the batches that were held out.
        """
        said: dict[Scope, dict[str, list[Answers]]] = {}
        for index, sight in enumerate(self.sights):
            for scope, own, released in sight.features(self.deal, adaptive=adaptive):
                of_scope = said.setdefault(scope, {name: [] for name in self.families})
                for name, answers in self._answers(own, released, self.seed + index):
                    of_scope[name].append(answers)
            advance(1)
        found = {
            scope: self._chosen(of_scope, scope or ALL_LAYERS) for scope, of_scope in said.items()
        }
        best = min((found[None], *found.values()), key=lambda guesses: guesses.held_out_loss)
        return {**found, None: best}

    def _answers(
        self, own: Features, released: Features, seed: int
    ) -> Iterator[tuple[str, Answers]]:
        if self.knowledge:
            phi_own, phi_released = self._known()
            own = np.concatenate([own, phi_own], axis=1)
            released = np.concatenate([released, phi_released], axis=1)
        for name in self.families:
            yield name, self.game.answers(self.deal, family_named(name), own, released, seed)

    def _known(self) -> tuple[FloatArray, FloatArray]:
        """φ of the adversary's own batches and of the observed ones."""
        if not self.knowledge:
            raise UsageError("--knows: name the columns that the adversary knows")
        of = self.knowledge.of_batches
        return of(self.deal.own), of(self.deal.observed.indices)

    def _chosen(self, said: Mapping[str, Sequence[Answers]], source: str) -> Guesses:
        """The guesses of the family with the least log loss on the held-out batches."""
        each = [self._combined(name, rounds, source) for name, rounds in said.items()]
        return min(each, key=lambda guesses: guesses.held_out_loss)

    def _combined(self, name: str, rounds: Sequence[Answers], source: str) -> Guesses:
        """The guesses of all rounds, and their held-out log loss after calibration."""
        prior, labels = self.deal.prior, self.deal.held.labels
        even = np.full(len(prior), 1.0)
        observed = [answers.observed for answers in rounds]
        posterior = self._posterior(observed, prior)
        single = tuple(self._posterior([answers], prior) for answers in observed)
        if not len(labels):
            return Guesses(posterior, single, None, name, np.inf, source)
        held = self._posterior([answers.held for answers in rounds], even)
        fitted = Temperature.fitted(held, labels, even)
        loss = log_loss(fitted.applied(held), labels)
        return Guesses(posterior, single, Temperature(fitted.value, prior), name, loss, source)

    def _posterior(self, rounds: Sequence[FloatArray], prior: FloatArray) -> FloatArray:
        """The posterior of some rounds; classifiers are trained on balanced batches."""
        together = pool if self.knowledge else combine
        return together(np.stack(rounds), np.full(len(prior), 1.0), prior)
