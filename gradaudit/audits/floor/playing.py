"""The gap above a floor: attacks on noisy updates of the prior's records, and what lies between.

An attacker who has all that a floor grants them looks for the most likely record: the least of
‖y − g(z)‖² + ‖z‖², with y the update and g what would be sent of the record z, both over the
noise's deviation, by Levenberg and Marquardt's steps in the prior's leading directions (K. Madsen,
H. Nielsen and O. Tingleff, "Methods for non-linear least squares problems", 2004, section 3.2),
from the prior's mean and from draws of the prior. The guess is the most likely record that was
found, or the mean of the Gaussian laws around all that were found, each as likely as Laplace's
method says: Σ_s w_s z_s with ln w_s = −½ f(z_s) − ½ ln det(I + J_sᵀJ_s). Whichever does better on
average counts, and the prior's own mean where both are known to do worse.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.release import Release
from gradaudit.core.randomness import torch_rng
from gradaudit.core.statistics.intervals import skewed
from gradaudit.errors import NotApplicable
from gradaudit.gradients.functional import FunctionalModel
from gradaudit.models.target import Layer
from gradaudit.sharing.companions import Companions

STARTS, STEPS = 3, 16
DIRECTIONS = 64
"""Leading directions of the prior that an attacker looks in; elsewhere the guess is its mean."""
_HELD = 16 << 20
"""Bytes of the Jacobians that are held at once."""
Update = Callable[[Tensor, Tensor, Tensor], Tensor]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Attacked:
    """The mean error of the best attack on the drawn records.

    Attributes:
        share: mean of the squared error over the prior's variance.
        interval: of it, for errors of a skewed law.
        by: which guess it was.
    """

    share: float
    interval: tuple[float, float]
    by: str


@dataclass(frozen=True)
class AttackedRecords:
    """Records of the prior whose noisy updates are attacked.

    Attributes:
        views: the models, each with how many updates are made with it.
        prior: of the records.
        records: (records, …), and the labels that the attacker knows, (records, …).
        releases: how the update leaves.
        seed: of the noise and of where searches start.
        companions: who else is in the updates, whom the attacker knows; None of a mean of records.
    """

    views: Sequence[tuple[FunctionalModel, int]]
    prior: GaussianPrior
    records: Tensor
    labels: Tensor
    releases: Sequence[Release]
    seed: int
    companions: Companions | None = None

    @property
    def directions(self) -> int:
        """How many directions are looked in."""
        return min(self.prior.leading, DIRECTIONS)

    def played(self, layers: Sequence[Layer]) -> Attacked:
        """The best guesses of who sees these layers' part of the update.

        Raises:
            NotApplicable: the model's gradients cannot be taken for several records at once.
        """
        how = self.releases, self.companions
        updates = [sent(view, layers, *how, count=count) for view, count in self.views]

        def update(record: Tensor, label: Tensor, beside: Tensor) -> Tensor:
            """The record's share of the updates of all checkpoints, (checkpoints · elements,)."""
            return torch.cat([each(record, label, beside) for each in updates])

        try:
            with torch.no_grad():
                guesses = self._guesses(update, layers)
        except RuntimeError as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise NotApplicable(f"its gradients cannot be attacked: {reason}") from error
        return self._best(guesses)

    def _guesses(self, update: Update, layers: Sequence[Layer]) -> dict[str, Tensor]:
        """Guesses z of every record, (records, directions), by name."""
        beside = torch.zeros(len(self.records), 0, dtype=torch.int64, device=self.records.device)
        if self.companions is not None:
            generator = torch_rng(self.seed, "floor", "attack", "companions")
            beside = self.companions.drawn(len(self.records), generator)
        truth = torch.func.vmap(update)(self.records, self.labels, beside)
        generator = torch_rng(self.seed, "floor", "attack", *(layer.name for layer in layers))
        seen = truth + self._noise(truth, layers, generator)
        shape = len(self.records), STARTS, self.directions
        starts = torch.randn(shape, generator=generator, dtype=torch.float64).to(truth)
        starts[:, 0] = 0
        search = _Search(partial(self._sent, update))
        several = partial(torch.repeat_interleave, repeats=STARTS, dim=0)
        known = (several(each) for each in (self.labels, beside, seen))
        found = search.most_likely(starts.flatten(0, 1), *known)
        z, objective, bend = (each.reshape(*shape[:2], *each.shape[1:]) for each in found)
        best = z[torch.arange(len(z)), objective.argmin(dim=1)]
        likely = torch.softmax(-objective / 2 - bend / 2, dim=1)
        mixed = (likely.unsqueeze(2) * z).sum(dim=1)
        return {"the most likely record": best, "the mean of likely records": mixed}

    def _sent(self, update: Update, z: Tensor, label: Tensor, beside: Tensor) -> Tensor:
        leaders = self.prior.leaders[: self.directions].to(z)
        record = self.prior.centres(label).to(z) + z @ leaders
        return update(record.reshape(self.records.shape[1:]), label, beside)

    def _noise(self, like: Tensor, layers: Sequence[Layer], generator: torch.Generator) -> Tensor:
        """Noise over its scale, of each element's law, averaged over updates of the same model."""
        heavy = torch.cat(
            [
                torch.full((self.views[-1][0].parameters[name].numel(),), law == "laplace")
                for release, name in _owned(layers, self.releases)
                for law in [release.noise]
            ]
        )
        parts = zip(like.chunk(len(self.views), dim=1), self.views, strict=True)
        noises = [_drawn_noise(part.shape, heavy, count, generator) for part, (_, count) in parts]
        return torch.cat(noises, dim=1).to(like)

    def _best(self, guesses: dict[str, Tensor]) -> Attacked:
        """The guess that errs least on average, beside what the prior's mean would have erred.

        How far records are from the mean is known on average: one variance. So the errors are told
        apart from it by regression (the method of control variates), which leaves less to chance.
        """
        distances = self._errors(torch.zeros_like(next(iter(guesses.values()))))
        kept = {by: _less_chance(self._errors(z), distances) for by, z in guesses.items()}
        by = min(kept, key=lambda name: kept[name].mean())
        low, high = skewed(kept[by])
        if low > 1:
            return Attacked(1.0, (1.0, 1.0), "the prior's mean")
        return Attacked(float(kept[by].mean()), (max(0.0, low), high), by)

    def _errors(self, z: Tensor) -> Floats:
        """Squared errors over the prior's variance, (records,)."""
        leaders = self.prior.leaders[: self.directions].to(self.records)
        apart = (
            self.records.flatten(1) - self.prior.centres(self.labels).to(self.records) - z @ leaders
        )
        found: Floats = (apart.square().sum(dim=1) / self.prior.variance).cpu().numpy()
        return found


def _drawn_noise(
    shape: torch.Size, heavy: Tensor, count: int, generator: torch.Generator
) -> Tensor:
    """The mean of so many draws over its deviation, Laplace's law where noise is heavy-tailed."""
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    laplace = torch.zeros(shape, dtype=torch.float64)
    for _ in range(count if bool(heavy.any()) else 1):
        uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
        laplace += (uniform - 0.5).sign() * -torch.log1p(-2 * (uniform - 0.5).abs())
    return torch.where(heavy, laplace / math.sqrt(count), normal)


def _less_chance(errors: Floats, distances: Floats) -> Floats:
    """Errors without what goes along with distances, whose mean is one, (records,).

    Their mean is the regression's value at a distance of one, their spread that of its error as
    each record's residual tells it (J. MacKinnon and H. White, "Some heteroskedasticity-consistent
    covariance matrix estimators", 1985, HC3).
    """
    spread = distances - distances.mean()
    square, count = max(float(spread @ spread), 1e-300), len(errors)
    slope = float(errors @ spread) / square
    left = errors - slope * (distances - 1)
    apart = left - left.mean()
    weights = 1 / count - (distances.mean() - 1) * spread / square
    leverage = spread**2 / square + 1 / count
    deviation = math.sqrt(float(((weights * apart / (1 - leverage).clip(1e-9)) ** 2).sum()))
    now = max(float(apart.std(ddof=1)), 1e-300)
    kept: Floats = left.mean() + apart / now * deviation * math.sqrt(count)
    return kept


def sent(
    view: FunctionalModel,
    layers: Sequence[Layer],
    releases: Sequence[Release],
    companions: Companions | None = None,
    *,
    count: int = 1,
) -> Update:
    """Make the function from a record to its share of these layers' update, over the noise.

    The update is the mean of so many with fresh noise, and the unit is that mean's deviation. With
    companions it is the update of them all, and the function's third argument are the numbers that
    ``Companions.drawn`` gives.
    """
    owned = _owned(layers, releases)
    clipping = [release for release, _ in owned if release.clip is not None]
    needed = {name for release in clipping for name in release.parameters}
    needed |= {name for _, name in owned}

    def update(record: Tensor, label: Tensor, beside: Tensor) -> Tensor:
        """The record's clipped gradient in units of the noise, (elements,)."""
        if companions is not None:
            gradients = companions.update(view, record, label, beside)
        else:
            loss = partial(view.record_loss, record=record, target=label)
            gradients = torch.func.grad(loss)({name: view.parameters[name] for name in needed})
        parts = [
            gradients[name].flatten() * _factor(release, gradients, count)
            for release, name in owned
        ]
        return torch.cat(parts)

    return update


def _owned(layers: Sequence[Layer], releases: Sequence[Release]) -> list[tuple[Release, str]]:
    names = [name for layer in layers for name in layer.parameter_names]
    return [(release, name) for name in names for release in releases if name in release.members]


def _factor(release: Release, gradients: dict[str, Tensor], count: int) -> Tensor:
    units = next(iter(gradients.values())).new_full((), math.sqrt(release.fisher * count))
    if release.clip is None:
        return units
    parts = [gradients[name].square().sum() for name in release.parameters]
    squares: Tensor = torch.stack(parts).sum()
    norm: Tensor = squares.clamp(min=torch.finfo(squares.dtype).tiny).sqrt()
    shrunk: Tensor = (release.clip / norm).clamp(max=1) * units
    return shrunk


@dataclass(frozen=True)
class _Search:
    sent: Update

    def most_likely(
        self, start: Tensor, labels: Tensor, beside: Tensor, seen: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Records z, (searches, directions), their f(z), and ln det(I + JᵀJ) there."""
        room = max(1, _HELD // (8 * seen.shape[1] * start.shape[1]))
        each = start, seen, labels, beside
        chunks = zip(*(torch.split(one, room) for one in each), strict=True)
        parts = [self._descended(*chunk) for chunk in chunks]
        z, objective, bend = (torch.cat(of) for of in zip(*parts, strict=True))
        return z, objective, bend

    def _descended(self, z: Tensor, seen: Tensor, *known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        damping = z.new_full((len(z),), 1e-3)
        apart, curvature, slope = self._around(z, seen, *known)
        now = _objective(apart, z)
        for _ in range(STEPS):
            damped = curvature + torch.diag_embed(
                damping[:, None] * curvature.diagonal(dim1=1, dim2=2)
            )
            tried = z - torch.linalg.solve(damped, slope)
            then = _objective(seen - torch.func.vmap(self.sent)(tried, *known), tried)
            better = then < now
            z = torch.where(better[:, None], tried, z)
            now = torch.where(better, then, now)
            damping = torch.where(better, damping / 5, damping * 8)
            apart, curvature, slope = self._around(z, seen, *known)
        return z, now, torch.linalg.slogdet(curvature)[1]

    def _around(self, z: Tensor, seen: Tensor, *known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Residuals, I + JᵀJ, and half the slope of f."""
        jacobians = torch.func.vmap(torch.func.jacfwd(self.sent))(z, *known)
        apart = seen - torch.func.vmap(self.sent)(z, *known)
        unit = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
        slope = z - (jacobians.mT @ apart.unsqueeze(2)).squeeze(2)
        return apart, jacobians.mT @ jacobians + unit, slope


def _objective(apart: Tensor, z: Tensor) -> Tensor:
    return apart.square().sum(dim=1) + z.square().sum(dim=1)
