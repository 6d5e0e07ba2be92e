"""The van Trees inequality for a noisy update: how far from a record any attacker stays.

An attacker sees g(x) + σn and knows all else: weights, label, companions, noise law, and the prior
N(m, C) of x. With Ã = C^½ E[JᵀJ] C^½ / σ², the expectation over x of the prior, in the prior's
own directions (``Prior``):

- E‖x̂ − x‖² ≥ tr C^½ (I + Ã)⁻¹ C^½ (H. van Trees 1968; R. Gill and B. Levit 1995, eq. 10);
- I(x; update) ≤ ½ ln det(I + Ã): of any law the entropy is at least −½ ln det of Fisher's
  information matrix + const (Stam 1959), the posterior's matrix is I + Ã on average, and ln det is
  concave (S. Efroimovich 1979).

Both hold given the label, and averaged over labels by convexity; information of layers with
independent noise adds up. A direction that a group stands for (``Prior``) only lowers the first and
raises the second: Σ_{j∈g} λ_j/(1 + a_j) ≥ |g| λ_min/(1 + mean a_j), and Σ ln(1 + a_j) ≤ |g| ln(1 +
mean a_j), with directions of several groups told to the attacker where that makes them apart.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradaudit.errors import NotApplicable
from gradaudit.floors.jacobians import Pull, pulls
from gradaudit.floors.prior import Prior
from gradaudit.floors.release import Release, clipped
from gradaudit.gradients.differentiation import Batch, fastest
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.per_sample import names_of
from gradaudit.gradients.trace import Trace
from gradaudit.models.target import Layer, Target
from gradaudit.progress import Advance
from gradaudit.randomness import torch_rng
from gradaudit.statistics.laws import student_quantile

Functional = Callable[[Tensor, Prior], tuple[float, Tensor]]
"""A number of Ã (probes, probes) and its slope by it."""

UNITS = 16
"""Groups of records whose information is kept apart, for the error of the mean."""
_FOLDS = 8
_WORKING_SET = 96 << 20
_ELEMENT, _COPIES = 8, 8


@dataclass(frozen=True)
class Estimate:
    """A number of the expected information, from a sample of records.

    Attributes:
        value: on average on the safe side of the true one: below a floor, above an information.
        interval: that holds the true one with 95 % confidence.
    """

    value: float
    interval: tuple[float, float]


def share(information: Tensor, prior: Prior) -> tuple[float, Tensor]:
    """The floor on the mean squared error over the prior's variance; convex."""
    inverse = torch.linalg.inv(_identity(information) + information)
    weights = prior.weights.to(information) / prior.variance
    value = float(weights @ inverse.diagonal())
    return value, _kept(-(inverse * weights) @ inverse, prior)


def nats(information: Tensor, prior: Prior) -> tuple[float, Tensor]:
    """The bound on what an update tells of a record, in nats; concave."""
    counts = prior.counts.to(information)
    whole = _identity(information) + information
    grouped = whole.diagonal()
    value = torch.linalg.slogdet(whole)[1] + (counts - 1) @ grouped.log()
    slope = torch.linalg.inv(whole) + torch.diag((counts - 1) / grouped)
    return float(value) / 2, _kept(slope / 2, prior)


def _identity(like: Tensor) -> Tensor:
    return torch.eye(len(like), dtype=like.dtype, device=like.device)


def _kept(products: Tensor, prior: Prior) -> Tensor:
    """Products (…, probes, probes) between leading directions, and of groups with themselves.

    Those with a group's direction are zero on average, as its signs are random.
    """
    leading = torch.arange(products.shape[-1], device=products.device) < prior.leading
    return products * (leading[:, None] & leading).fill_diagonal_(True)


def estimate(functional: Functional, parts: Tensor, prior: Prior) -> Estimate:
    """A functional of the expected information, from that of units of records.

    F(Â) itself errs on the wrong side on average: F is convex (Jensen), and Â misses directions.
    But a convex F lies above its tangents, F(A) ≥ F(B) + ⟨F′(B), A − B⟩ whatever B is, and the
    right side is linear in A. So B is the mean of other records than those that stand in for A, in
    turn, and the interval's safe end is Student's for the mean of these numbers; from the other end
    F(Â) is the safe one. Concave F the other way round.

    Args:
        functional: ``share`` or ``nats``.
        parts: (units, probes, probes) Ã of each unit, two or more.
        prior: whose directions they are in.
    """
    tangents = torch.cat(list(_tangents(functional, parts, prior)))
    value, plain = float(tangents.mean()), functional(parts.mean(dim=0), prior)[0]
    margin = student_quantile(len(parts) - 1) * float(tangents.std()) / len(parts) ** 0.5
    low, high = sorted((value, plain))
    return Estimate(max(0.0, value), (max(0.0, low - margin), max(0.0, high + margin)))


def _tangents(functional: Functional, parts: Tensor, prior: Prior) -> Iterator[Tensor]:
    """F(B) + ⟨F′(B), A − B⟩ of every unit's A, with B from the units of other folds."""
    units = torch.arange(len(parts))
    for fold in range(min(_FOLDS, len(parts))):
        held = units % min(_FOLDS, len(parts)) == fold
        others = parts[~held].mean(dim=0)
        value, slope = functional(others, prior)
        yield value + ((parts[held] - others) * slope).sum(dim=(1, 2))


def floor_of(informations: Iterable[Tensor], prior: Prior) -> Estimate:
    """The floor of what layers with independent noise give away together.

    Args:
        informations: (units, probes, probes) of each, as ``informations`` gives them, each over its
            noise's variance.
        prior: whose directions they are in.
    """
    return estimate(share, sum_of_layers(informations), prior)


def sum_of_layers(informations: Iterable[Tensor]) -> Tensor:
    """The information of layers together, (units, probes, probes)."""
    first, *others = informations
    return sum(others, start=first)


def informations(
    target: Target,
    layers: Sequence[Layer],
    prior: Prior,
    labels: Tensor,
    *,
    shape: Sequence[int],
    seed: int,
    clips: Sequence[Release] = (),
    units: int = UNITS,
    memory: int = 1 << 30,
    advance: Advance = lambda _: None,
) -> dict[str, Tensor]:
    """C^½ E[JᵀJ] C^½ of every layer's gradient, for noise of variance one, from drawn records.

    Args:
        target: the model with its loss; left as it is.
        layers: with biases where these are shared, as ``layers_of(model, with_bias=True)``.
        prior: what records are drawn from.
        labels: (records, …) of the records to draw, known to the attacker.
        shape: of one record.
        seed: of the records and of random directions.
        clips: what is clipped together before the noise; nothing without.
        units: groups of records that are kept apart.
        memory: bytes that a chunk of records may take.
        advance: told of records that are done.

    Returns:
        (units, probes, probes) by layer; their mean over units estimates the expectation.

    Raises:
        AuditError: the gradients cannot be differentiated by the records.
        NotApplicable: records have no gradients of their own.
    """
    drawn = prior.draw(len(labels), torch_rng(seed, "floor", "records"))
    batch = _batch(target, layers, drawn.reshape(len(labels), *shape), labels, seed)
    way = fastest(batch, "point")
    units = min(units, len(labels))
    sums: dict[str, Tensor] = {}
    for at in _chunks(batch, layers, prior, min(_WORKING_SET, memory // 4)):
        probes = prior.probes(torch_rng(seed, "floor", "probes", at.start)).to(batch.points)
        moved = pulls(batch.part(at), way, probes.reshape(-1, *shape), layers)
        for release in clips or (None,):
            chosen = _of_release(moved, layers, release)
            for name, products in clipped(chosen, release.moving if release else None).items():
                kept = sums.setdefault(name, products.new_zeros(units, *products.shape[1:]))
                of_unit = torch.arange(at.start, at.stop, device=kept.device) * units // len(labels)
                kept.index_add_(0, of_unit, _kept(products, prior))
        advance(at.stop - at.start)
    sizes = torch.bincount(torch.arange(len(labels)) * units // len(labels), minlength=units)
    return {name: (kept / sizes[:, None, None].to(kept)).cpu() for name, kept in sums.items()}


def _batch(
    target: Target, layers: Sequence[Layer], records: Tensor, labels: Tensor, seed: int
) -> Batch:
    view = FunctionalModel.of(target, seed=seed)
    inputs, labels = view.cast(records), view.cast(labels)
    view.check(inputs, labels)
    reason = view.coupling(inputs, labels)
    if reason:
        raise NotApplicable(f"records have no gradients of their own: {reason}; use --mode eval")
    if view.stochastic(inputs[:2]):
        raise NotApplicable(
            "the model draws random numbers (dropout), so that a record has no one gradient; use "
            "--mode eval"
        )
    trace = Trace.of(view, names_of(layers), inputs[:1], labels[:1])
    return Batch(trace, inputs, inputs, labels, range(len(inputs)))


def _of_release(
    moved: Mapping[str, Pull], layers: Sequence[Layer], release: Release | None
) -> dict[str, Pull]:
    """The layers that a release has, all without one."""
    if release is None:
        return dict(moved)
    names = [layer.name for layer in layers if set(layer.parameter_names) <= release.members]
    return {name: moved[name] for name in names}


def _chunks(batch: Batch, layers: Sequence[Layer], prior: Prior, memory: int) -> Iterator[slice]:
    """Records that are taken at once: as many as fit, or one where each has its own directions."""
    moving = sum(math.prod(site.shape) + math.prod(site.seen) for site in batch.trace.sites)
    largest = max(layer.parameters for layer in layers)
    bytes_each = _ELEMENT * len(prior.counts) * (_COPIES * moving + 4 * largest)
    size = 1 if prior.grouped else max(1, memory // bytes_each)
    for start in range(0, len(batch.records), size):
        yield slice(start, min(start + size, len(batch.records)))
