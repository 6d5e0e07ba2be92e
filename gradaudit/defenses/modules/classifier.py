"""The classifier of updates that adversarial perturbations are made against."""

from dataclasses import dataclass

import torch
from torch import Tensor

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
    def fit(cls, features: Tensor, labels: Tensor, classes: int, seed: int) -> "GradientClassifier":
        """Fit to (batches, elements) by a bounded number of Adam's steps on the cross-entropy."""
        mean = features.mean(dim=0)
        directions, spread = _principal(features - mean)
        known = cls(mean, directions, spread, ())
        rows = known.coordinates(features)
        weights = _initial(rows.shape[1], classes, seed, rows.device)
        optimizer = torch.optim.Adam(weights, _RATE, weight_decay=_DECAY)
        loss, targets = CrossEntropy(), labels.to(rows.device)
        for _ in range(_STEPS):
            optimizer.zero_grad()
            torch.autograd.backward(loss.per_record(_network(weights, rows), targets).mean())
            optimizer.step()
        return cls(mean, directions, spread, tuple(w.detach() for w in weights))

    def coordinates(self, features: Tensor) -> Tensor:
        """(batches, elements) along the directions, each in units of its spread, float64."""
        return ((features - self.mean) @ self.directions).double() / self.spread

    def logits(self, features: Tensor) -> Tensor:
        """(batches, elements) to (batches, classes)."""
        return _network(self.weights, self.coordinates(features))

    def losses(self, features: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of each update, (batches,)."""
        return CrossEntropy().per_record(self.logits(features), labels)

    def signs(self, features: Tensor, labels: Tensor) -> Tensor:
        """Signs of the loss's gradient in the elements of each update, (batches, elements).

        They are those of log S, with S = Σ_{j≠a} exp(z_j − z_a) and the loss log(1 + S), of which
        the gradient does not vanish where the classifier is certain of a.
        """
        with torch.enable_grad():
            rows = self.coordinates(features).detach().requires_grad_()
            logits = _network(self.weights, rows)
            own = labels.unsqueeze(1)
            others = logits.scatter(1, own, -torch.inf).logsumexp(dim=1)
            odds = others - logits.gather(1, own).squeeze(1)
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
    sizes = ((inputs, _HIDDEN), (_HIDDEN, classes))
    weights: list[Tensor] = []
    for before, after in sizes:
        drawn = torch.randn(before, after, generator=generator, dtype=torch.float64)
        weights += [drawn / before**0.5, torch.zeros(after, dtype=torch.float64)]
    return [weight.to(device).requires_grad_() for weight in weights]


def _network(weights: "tuple[Tensor, ...] | list[Tensor]", rows: Tensor) -> Tensor:
    first, offset, second, last = weights
    return (rows @ first + offset).tanh() @ second + last
