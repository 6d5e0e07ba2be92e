"""Adversarial perturbation: updates moved so that a classifier of gradients errs."""

from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field

from gradaudit.defenses.base import Defense, DefenseOptions, Scope
from gradaudit.errors import NotApplicable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from gradaudit.defenses.modules.classifier import GradientClassifier


class PerturbOptions(DefenseOptions):
    """Options of the perturbation."""

    steps: int = Field(5, ge=1, le=10_000, description="Steps of projected gradient ascent.")
    bound: float = Field(0.005, gt=0, description="Largest change γ of an element.")
    step: float = Field(0.002, gt=0, description="Change α of an element in a step.")


class Perturb(Defense[PerturbOptions]):
    """g̃ ← Π_{B_∞(g, γ)} (g̃ + α sign ∇_g̃ L(f_φ(g̃), a)), so many times, from g̃ = g.

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

    def __init__(self, options: PerturbOptions) -> None:
        super().__init__(options)
        self.classifier: GradientClassifier | None = None
        self.values: Tensor | None = None
        self.towards: int | None = None

    def prepare(
        self,
        features: "Tensor",
        labels: "Tensor",
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
        from gradaudit.defenses.modules.classifier import GradientClassifier

        prepared = type(self)(self.options)
        prepared.classifier = GradientClassifier.fit(features, labels, classes, seed)
        prepared.towards = towards
        return prepared

    def protecting(self, values: "Tensor") -> Self:
        """A copy for batches of these private values."""
        aimed = type(self)(self.options)
        aimed.classifier, aimed.towards = self.classifier, self.towards
        aimed.values = values
        return aimed

    def apply(self, gradients: "Tensor", *, records: int, generator: "torch.Generator") -> "Tensor":
        """(batches, elements), each element moved by at most the bound.

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

    def _aims(self, classifier: "GradientClassifier", gradients: "Tensor") -> "Tensor":
        """The class whose loss is raised, or lowered, for each update."""
        import torch

        if self.towards is not None:
            return torch.full((len(gradients),), self.towards, device=gradients.device)
        guesses = classifier.logits(gradients).argmax(dim=1)
        if self.values is None:
            return guesses
        known = self.values.to(gradients.device)
        return torch.where(known < 0, guesses, known)
