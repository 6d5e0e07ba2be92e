"""Adversarial perturbation: updates moved so that a classifier of gradients errs."""

from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from gradaudit.defenses.base import Defense, DefenseOptions, Scope
from gradaudit.errors import NotApplicable
from gradaudit.models.losses import CrossEntropy

_DIRECTIONS = 50
_HIDDEN = 64
_STEPS = 300
_RATE = 0.01
_DECAY = 1e-3
_RANK = 1e-5
"""Directions with less than this share of the largest spread are numerical noise."""


@dataclass(frozen=True)
class GradientClassifier:
    """f_φ: one hidden layer of tanh units on the directions in which shadow updates spread most.

    Attributes:
        mean: (elements,).
        directions: (elements, k) orthonormal.
        spread: (k,) deviations along them, in float64.
        weights: of the two layers, in float64: (k, hidden), (hidden,), (hidden, classes),
            (classes,).
    """

    mean: Tensor
    directions: Tensor
    spread: Tensor
    weights: tuple[Tensor, ...]

    @classmethod
    def fit(cls, features: Tensor, labels: Tensor, classes: int, seed: int) -> Self:
        """Fit to (batches, elements) by a bounded number of Adam's steps on the cross-entropy."""
        mean = features.mean(dim=0)
        unfitted = cls(mean, *_principal(features - mean), ())
        rows = unfitted.coordinates(features)
        weights = _initial(rows.shape[1], classes, seed, rows.device)
        optimizer = torch.optim.Adam(weights, _RATE, weight_decay=_DECAY)
        loss, targets = CrossEntropy(), labels.to(rows.device)
        for _ in range(_STEPS):
            optimizer.zero_grad()
            torch.autograd.backward(loss.per_record(_network(weights, rows), targets).mean())
            optimizer.step()
        return replace(unfitted, weights=tuple(weight.detach() for weight in weights))

    def coordinates(self, features: Tensor) -> Tensor:
        """Compute coordinates of (batches, elements) along the directions, over their spread."""
        return ((features - self.mean) @ self.directions).double() / self.spread

    def logits(self, features: Tensor) -> Tensor:
        """Compute logits: (batches, elements) to (batches, classes)."""
        return _network(self.weights, self.coordinates(features))

    def signs(self, features: Tensor, labels: Tensor) -> Tensor:
        """Signs of the loss's gradient in the elements of each update, (batches, elements).

        They are those of log S, with S = Σ_{j≠a} exp(z_j − z_a) and the loss log(1 + S), of which
        the gradient does not vanish where the classifier is certain of a.
        """
        with torch.enable_grad():
            rows = self.coordinates(features).detach().requires_grad_()
            logits = _network(self.weights, rows)
            aims = labels.unsqueeze(1)
            others = logits.scatter(1, aims, -torch.inf).logsumexp(dim=1)
            odds = others - logits.gather(1, aims).squeeze(1)
            (slopes,) = torch.autograd.grad(odds.sum(), rows)
        scaled = torch.nn.functional.normalize(slopes / self.spread, dim=1)
        return (scaled.to(features.dtype) @ self.directions.T).sign()


def _principal(centred: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal directions (elements, k) of largest spread, and the spread (k,) in float64."""
    _, values, directions = torch.linalg.svd(centred, full_matrices=False)
    count = int((values > _RANK * values[:1]).sum())
    kept = max(1, min(_DIRECTIONS, count))
    spread = values[:kept].double() / max(1, len(centred)) ** 0.5
    return directions[:kept].T.contiguous(), spread.clamp(min=torch.finfo(torch.float32).tiny)


def _initial(inputs: int, classes: int, seed: int, device: torch.device) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights: list[Tensor] = []
    for before, after in ((inputs, _HIDDEN), (_HIDDEN, classes)):
        drawn = torch.randn(before, after, generator=generator, dtype=torch.float64)
        weights += [drawn / before**0.5, torch.zeros(after, dtype=torch.float64)]
    return [weight.to(device).requires_grad_() for weight in weights]


def _network(weights: tuple[Tensor, ...] | list[Tensor], rows: Tensor) -> Tensor:
    first, offset, second, last = weights
    return (rows @ first + offset).tanh() @ second + last


class PerturbOptions(DefenseOptions):
    """Options of the perturbation."""

    steps: int = Field(
        5, ge=1, le=10_000, description="Number of steps of projected gradient ascent."
    )
    bound: float = Field(0.005, gt=0, description="Largest change γ of an element.")
    step: float = Field(0.002, gt=0, description="Change α of an element in a step.")


class Perturb(Defense[PerturbOptions]):
    """g̃ ← Π_{B_∞(g, γ)} (g̃ + α sign ∇_g̃ L(f_φ(g̃), a)), repeated ``steps`` times from g̃ = g.

    f_φ classifies the private value a from the whole update g that it defends. It is fitted by
    ``prepare`` on updates of shadow batches, and so belongs to a round and a private attribute. The
    perturbation is untargeted: away from the batch's true value, which clients know, or from what
    f_φ says of the update where none is named, as of other clients' updates. With ``towards`` it is
    targeted at that class (the paper's choice in user inference): g̃ − α sign ∇ L(f_φ(g̃), a_t).

    Source: Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning"
    (2024), section 6.1, defense 3, with 5 steps, γ = 0.005, α = 0.002.
    """

    name = "perturb"
    summary = "Move updates so that a classifier of the private value errs (PGD)."
    example = "perturb:steps=5,bound=0.005,step=0.002"
    Options = PerturbOptions
    scope: ClassVar[Scope] = "update"

    def __init__(self, given: PerturbOptions | None = None, /, **values: Any) -> None:
        super().__init__(given, **values)
        self.classifier: GradientClassifier | None = None
        self.values: Tensor | None = None
        self.towards: int | None = None

    def prepare(
        self,
        features: Tensor,
        labels: Tensor,
        classes: int,
        seed: int,
        *,
        towards: int | None = None,
    ) -> Self:
        """A copy with f_φ fitted to shadow updates.

        Args:
            features: (batches, elements) all that it defends of a shadow update, side by side.
            labels: (batches,) private value of each, from 0.
            classes: how many values there are.
            seed: of the classifier's initial weights.
            towards: the class that updates are to be taken for, none of them without it.
        """
        prepared = copy(self)
        prepared.classifier = GradientClassifier.fit(features, labels, classes, seed)
        prepared.towards = towards
        return prepared

    def protecting(self, values: Tensor) -> Self:
        """A copy for batches of these private values."""
        aimed = copy(self)
        aimed.values = values
        return aimed

    def apply(self, gradients: Tensor, *, records: int, generator: torch.Generator) -> Tensor:
        """Move each element of (batches, elements) by at most the bound.

        Raises:
            NotApplicable: no classifier was fitted.
        """
        if self.classifier is None:
            raise NotApplicable(
                f"--defense {self}: needs a classifier of gradients, fitted to shadow batches of "
                "each private value, which the inference attacks (attack property, …) fit; leave "
                "it out elsewhere"
            )
        o = self.options
        aims = self._aims(self.classifier, gradients)
        step = o.step if self.towards is None else -o.step
        moved = gradients
        for _ in range(o.steps):
            uphill = self.classifier.signs(moved, aims)
            moved = gradients + (moved + step * uphill - gradients).clamp(-o.bound, o.bound)
        return moved

    def _aims(self, classifier: GradientClassifier, gradients: Tensor) -> Tensor:
        """Returns for each update the class whose loss is raised or lowered."""
        if self.towards is not None:
            return torch.full((len(gradients),), self.towards, device=gradients.device)
        guesses = classifier.logits(gradients).argmax(dim=1)
        if self.values is None:
            return guesses
        known = self.values.to(gradients.device)
        return torch.where(known < 0, guesses, known)
