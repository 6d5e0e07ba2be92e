"""Nats and mean squared errors of a Gaussian record, each from the other, by filling with water.

No guess x̂ of x ~ N(0, diag λ) with the error D = Σ min(θ, λ_j) has fewer nats of x than ½ Σ
ln(λ_j/θ) over λ_j > θ (T. Cover and J. Thomas, "Elements of information theory", 2006, theorem
10.3.3). So who errs by D has shown as many nats, and who has so many nats errs by D or more.

How much an update y = g + n tells of its record is at most what it costs to describe it by any law
q that is not its own: I(x; y) ≤ E ln p(y | x)/q(y) (D. Barber and F. Agakov, "The IM algorithm",
2003). With unit noise n and q = N(μ, I + S) of other records' g, S the covariance of rank m, it is

    ½ ln det(I + S) − ½ tr S (I + S)⁻¹ + ½ E (g − μ)ᵀ (I + S)⁻¹ (g − μ),

on average over records, whatever jumps in g, so that kinks do no harm. It needs no more than the
inner products of gradients, which add up over layers. Where updates are about normal it is exact;
of a network that is sure of most records it is not near. The attacker knows the label: means are
those of its records, and the covariance is theirs or that of all records about their means.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.release import Release
from gradaudit.core.randomness import torch_rng
from gradaudit.gradients.differentiation import Batch, fastest
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.gradients.per_sample import names_of, per_sample_gradients
from gradaudit.models.target import Layer, Target
from gradaudit.sharing.companions import Companions, CompanionTrace

_BISECTIONS = 100
_NONE = 1e-12
_COPIES = 8
_FEWEST = 16
"""Records of a label that tell a covariance of their own, and of all that tell a law."""


def nats_shown(share: float, spectrum: Tensor) -> float:
    """Nats between record and guess, at least, where the error is this share of the variance.

    Args:
        share: mean squared error over Σ λ.
        spectrum: λ, the prior's variances, (d,).
    """
    if share >= 1:
        return 0.0
    if share <= 0:
        return math.inf
    level = _level(lambda level: float(spectrum.clamp(max=level).sum()), share, spectrum)
    return _nats(level, spectrum)


def least_share(nats: float, spectrum: Tensor) -> float:
    """The least mean squared error, over Σ λ, of any guess that has so many nats or fewer.

    Zero below what rounding tells from it.
    """
    share = float(spectrum.clamp(max=level_of(nats, spectrum)).sum() / spectrum.sum())
    return share if share > _NONE else 0.0


def level_of(nats: float, spectrum: Tensor) -> float:
    """The water's level θ of a guess with so many nats; the share falls by 2 θ/Σ λ with each."""
    return _level(lambda level: -_nats(level, spectrum), -nats / float(spectrum.sum()), spectrum)


def _nats(level: float, spectrum: Tensor) -> float:
    return float((spectrum / level).clamp(min=1).log().sum()) / 2


def _level(rising: Callable[[float], float], share: float, spectrum: Tensor) -> float:
    """The water's level at which what rises with it is this share of the variance.

    Of the two levels around it the lower one: its error is no more, and its nats no fewer.
    """
    wanted, greatest = share * float(spectrum.sum()), float(spectrum.max())
    low, high = math.log(greatest) - 700, math.log(greatest)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(math.exp(middle)) <= wanted else (low, middle)
    return math.exp(low)


@dataclass(frozen=True)
class UpdateLaw:
    """Inner products of what records of the prior send, over the noise's variance; they add up.

    Attributes:
        gram: (records, records).
        labels: a number for each record's label, (records,); the same for all without classes.
    """

    gram: Tensor
    labels: Tensor

    def __add__(self, other: Self) -> Self:
        """The law of two layers' parts together, under independent noise."""
        return replace(self, gram=self.gram + other.gram)

    def __mul__(self, factor: float) -> Self:
        """The law under noise of this much less variance."""
        return replace(self, gram=self.gram * factor)

    @property
    def finite(self) -> bool:
        """Whether all numbers are finite."""
        return bool(self.gram.isfinite().all())

    def nats(self, folds: Tensor) -> Tensor:
        """Compute two upper bounds on what an update tells of its record, in nats, (2, records).

        They hold on average over records. The first takes the covariance of all records of the
        other folds, the second that of those with the record's label.

        Args:
            folds: which fold each record is in, (records,).
        """
        found = torch.empty(2, len(folds), dtype=self.gram.dtype)
        for fold in range(int(folds.max()) + 1):
            held, others = (folds == fold).nonzero().flatten(), folds != fold
            centred = self._centred(others)
            found[:, held] = _told(centred, others, held)
            if bool((self.labels == self.labels[0]).all()):
                continue
            for label in self.labels[held].unique().tolist():  # type: ignore[no-untyped-call]
                alike = others & (self.labels == label)
                asked = held[self.labels[held] == label]
                if int(alike.sum()) >= _FEWEST:
                    found[1, asked] = _told(centred, alike, asked)
        return found

    def _centred(self, known: Tensor) -> Tensor:
        """Inner products about the mean of the known records of each record's label.

        About that of all known records where there are none of its label.
        """
        labels, index = self.labels.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        alike = (torch.arange(len(labels))[:, None] == index) & known
        alike = torch.where(alike.any(dim=1, keepdim=True), alike, known)
        weights = (alike / alike.sum(dim=1, keepdim=True)).to(self.gram)
        means = weights @ self.gram
        between = means @ weights.mT
        about = means[index]
        centred: Tensor = self.gram - about - about.mT + between[index][:, index]
        return centred


def _told(centred: Tensor, known: Tensor, asked: Tensor) -> Tensor:
    """The bound's value for each record asked about, by the covariance of the known ones."""
    at = known.nonzero().flatten()
    unit = torch.eye(len(at), dtype=centred.dtype)
    factor = torch.linalg.cholesky(unit + centred[at][:, at] / len(at))
    shrunk = len(at) - torch.cholesky_inverse(factor).trace()
    along = torch.linalg.solve_triangular(factor, centred[at][:, asked], upper=False)
    left = centred.diagonal()[asked] - along.square().sum(dim=0) / len(at)
    told: Tensor = factor.diagonal().log().sum() - shrunk / 2 + left / 2
    return told


def bounds_by_law(
    law: UpdateLaw, units: int, prior: GaussianPrior, *, of_share: bool, folds: int
) -> Iterator[Tensor]:
    """Numbers of units of records, on the safe side on average, (units,) each.

    Nats, or the least share of the variance: the rate distortion function lies above its tangents,
    here that at the other folds' nats.

    Args:
        law: of the updates.
        units: into how many units the records are parted, in order.
        prior: of the records.
        of_share: whether shares are asked for.
        folds: of units, which are held against one another.
    """
    records = len(law.gram)
    unit = torch.arange(records) * units // records
    fold = torch.arange(units) % folds
    for each in law.nats(fold[unit]):
        sums = torch.zeros(units, dtype=each.dtype).index_add_(0, unit, each)
        nats = sums / torch.bincount(unit, minlength=units)
        yield _shares(nats, fold, prior.spectrum) if of_share else nats


def _shares(nats: Tensor, folds: Tensor, spectrum: Tensor) -> Tensor:
    found = torch.empty_like(nats)
    for fold in range(int(folds.max()) + 1):
        at = max(0.0, float(nats[folds != fold].mean()))
        least, held = least_share(at, spectrum), folds == fold
        slope = -2 * level_of(at, spectrum) / float(spectrum.sum()) if least else 0.0
        found[held] = least + slope * (nats[held] - at)
    return found


def update_laws(
    target: Target,
    layers: Sequence[Layer],
    prior: GaussianPrior,
    labels: Tensor,
    releases: Sequence[Release],
    *,
    shape: Sequence[int],
    seed: int,
    memory: int,
    companions: Companions | None = None,
) -> dict[str, UpdateLaw]:
    """The law of every layer's part of the update under its noise, from drawn records.

    Without layers whose noise is not Gaussian. Empty where the gradients of enough records take
    more than half of the memory. With companions it is that of the update less what it would be
    with the label's mean record among them, which the attacker knows.

    Args:
        target: the model with its loss.
        layers: with biases where these are shared.
        prior: what records are drawn from.
        labels: of as many records to draw, (records, …).
        releases: how the update leaves.
        shape: of one record.
        seed: of the records.
        memory: bytes that gradients may take.
        companions: who else is in the update; None where it is a mean over records.

    Raises:
        NotApplicable: records have no gradients of their own.
        AuditError: the model cannot be run on such records.
    """
    rows = 16 * max(1, sum(layer.parameters for layer in layers)) * (1 if companions is None else 2)
    count = min(len(labels), memory // rows)
    if count < _FEWEST:
        return {}
    labels = labels[:count]
    about = prior.draw(count, torch_rng(seed, "floor", "law"))
    drawn = prior.of_labels(about, labels).reshape(-1, *shape)
    if companions is None:
        how = {"dtype": torch.float64, "memory": memory, "seed": seed}
        chunks = list(per_sample_gradients(target, drawn, labels, layers, **how))  # type: ignore[arg-type]
        parts = {layer.name: torch.cat([chunk[layer.name] for chunk in chunks]) for layer in layers}
    else:
        beside = companions.drawn(count, torch_rng(seed, "floor", "law", "companions"))
        means = prior.centres(labels).expand(count, -1).reshape(-1, *shape)
        pairs = [torch.cat(pair) for pair in ((drawn, means), (labels,) * 2, (beside,) * 2)]
        view = FunctionalModel.of(target, dtype=torch.float64, seed=seed)
        parts = _updates(view, layers, companions, *pairs, memory=memory)
    grams = {name: (part.double() @ part.double().mT).cpu() for name, part in parts.items()}
    classes = labels if labels.dim() == 1 and not labels.is_floating_point() else None
    numbers = torch.zeros(count) if classes is None else classes.cpu()
    found: dict[str, UpdateLaw] = {}
    for release in releases:
        if release.noise != "gaussian":
            continue
        own = [layer for layer in layers if release.holds(layer)]
        whole = [grams[layer.name].diagonal() for layer in own]
        left = torch.ones(len(grams[layers[0].name]), dtype=torch.float64)
        if release.clip is not None and whole:
            norms = torch.stack(whole).sum(dim=0).sqrt()
            left = (release.clip / norms).clamp(max=1)
        for layer in own:
            gram = grams[layer.name] * left[:, None] * left * release.fisher
            if companions is not None:  # of the differences of pairs
                mixed = gram[:count, count:]
                gram = gram[:count, :count] + gram[count:, count:] - mixed - mixed.mT
            found[layer.name] = UpdateLaw(gram, numbers)
    return found


def _updates(
    view: FunctionalModel,
    layers: Sequence[Layer],
    companions: Companions,
    records: Tensor,
    labels: Tensor,
    beside: Tensor,
    *,
    memory: int,
) -> dict[str, Tensor]:
    """Compute the update of each record's client, (records, elements) by layer."""
    trace = CompanionTrace.among(view, names_of(layers), companions)
    numbers = range(len(records))
    batch = Batch(trace, beside, view.cast(records), view.cast(labels), numbers)
    way, elements = fastest(batch, "point"), sum(p.numel() for p in view.parameters.values())
    step = max(1, memory // (_COPIES * 8 * elements * companions.records))
    chunks = [way.gradients(batch.part(slice(k, k + step))).whole for k in numbers[::step]]
    return {
        layer.name: torch.cat(
            [torch.cat([one[n].flatten(1) for n in layer.parameter_names], dim=1) for one in chunks]
        )
        for layer in layers
    }
