"""How an update leaves its client: which parameters are clipped together, and their noise."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradaudit.audits.floor.jacobians import JacobianProducts, sum_of
from gradaudit.core.noise_laws import Noise, noise_scale
from gradaudit.defenses import Chain, Defense
from gradaudit.defenses.dp import DpNoise
from gradaudit.errors import NotApplicable
from gradaudit.models.target import Layer


@dataclass(frozen=True)
class Release:
    """Parameters whose gradients are clipped together, averaged over records, and get noise.

    Attributes:
        parameters: their names.
        records: k, how many the update is the mean of; all but one are known to the attacker. Of an
            update that is no mean over its records, how many such updates it is the mean of.
        scale: deviation of Gaussian, or scale of Laplace noise, in an element of the update.
        noise: its law.
        clip: L2 norm that each of these is clipped to; None for no clipping.
        of_each: whether each gets noise of its own.
    """

    parameters: tuple[str, ...]
    records: int
    scale: float
    noise: Noise = "gaussian"
    clip: float | None = None
    of_each: bool = False

    @property
    def members(self) -> frozenset[str]:
        """The parameters, to look them up."""
        return frozenset(self.parameters)

    def holds(self, layer: Layer) -> bool:
        """Tell whether the release covers all parameters of a layer."""
        return self.members.issuperset(layer.parameter_names)

    @property
    def fisher(self) -> float:
        """Factor from JᵀJ of a record's (clipped) gradient to the Fisher information.

        1/s² for noise of deviation s, and for Laplace noise of scale s. A mean of k Laplace numbers
        of scale s√k, of noise on each record, has at most that (Stam 1959: 1/information adds).
        """
        scale = self.records * self.scale
        return 1 / scale / scale

    @property
    def reach(self) -> float | None:
        """How far one record's part of the update is from a fixed point, at most (L2)."""
        return None if self.clip is None else self.clip / self.records

    @property
    def shift(self) -> float:
        """The reach over the noise's scale, at most; of a clipped part.

        Of Laplace noise on each record only the record's own is counted, of scale s√k/k in the
        mean: a sum of several is no Laplace noise.
        """
        alone = self.noise == "laplace" and self.of_each
        return (self.reach or 0.0) / (self.scale / self.records**0.5 if alone else self.scale)


def releases_of(
    chain: Chain, parameters: Sequence[str], records: int, sigma: float = 0.0, *, clients: int = 1
) -> tuple[Release, ...]:
    """How the shared parameters leave; those that get no noise are in none.

    Args:
        chain: what each client does to its update.
        parameters: that are shared.
        records: in a client's update; 1 where that is no mean over them.
        sigma: deviation of Gaussian noise on the mean update, instead of a defense's.
        clients: how many clients' updates are averaged.

    Raises:
        NotApplicable: noise is added where another defense acted before, or two add some, or what
            comes after knows more than the update.
    """
    if sigma > 0:
        if chain.acting:
            raise NotApplicable(
                f"--sigma {sigma:g} is the update's noise, and so is that of --defense {chain}; "
                "give one of them"
            )
        return (Release(tuple(parameters), records * clients, sigma),)
    noisy: dict[DpNoise, list[str]] = {}
    for name in parameters:
        defense = _noise_of(chain.of(name))
        if defense is not None:
            noisy.setdefault(defense, []).append(name)
    found = []
    for defense, names in noisy.items():
        o = defense.options
        scale = noise_scale(o.per, o.sigma, records) / clients**0.5
        kind = o.noise, o.clip, o.per == "record" or clients > 1
        found.append(Release(tuple(names), records * clients, scale, *kind))
    return tuple(found)


def _noise_of(defenses: Sequence[Defense[Any]]) -> DpNoise | None:
    noisy = [defense for defense in defenses if isinstance(defense, DpNoise)]
    if not noisy or noisy[0].options.sigma == 0:
        return None
    first, *others = defenses
    if first is not noisy[0] or len(noisy) > 1:
        culprit = first if first is not noisy[0] else noisy[1]
        raise NotApplicable(
            f"--defense {culprit}: a floor knows of one dp, before anything else is done to a "
            f"layer; put --defense {noisy[0]} first, and alone"
        )
    for later in others:
        if type(later).protecting is not Defense.protecting:
            raise NotApplicable(
                f"--defense {later}: looks at private values behind the noise of {first}, so the "
                "noise bounds nothing; leave it out"
            )
    return noisy[0]


def clipped(
    moved: Mapping[str, JacobianProducts], layers: Sequence[Layer], clips: Sequence[Release]
) -> dict[str, Tensor]:
    """Compute JᵀJ of every layer's gradient after it is clipped, (records, directions, directions).

    Beyond the norm Δ, c(g) = Δ g/‖g‖ moves by (Δ/‖g‖)(ġ − g ⟨g, ġ⟩/‖g‖²), exactly; at the norm
    itself it has a kink but no jump, which the inequality allows.
    """
    found: dict[str, Tensor] = {}
    for parts, bound in _together(moved, layers, clips):
        if bound is None:
            found |= {name: part.products for name, part in parts.items()}
            continue
        whole = sum_of(list(parts.values()))
        beyond = whole.energy > bound**2
        energy = torch.where(beyond, whole.energy, 1.0)[:, None, None]
        shrink = torch.where(beyond, bound**2 / whole.energy, 1.0)[:, None, None]
        radial = whole.along / energy[:, :, 0] * beyond[:, None]
        for name, part in parts.items():
            mixed = part.along.unsqueeze(2) * radial.unsqueeze(1)
            outer = part.energy[:, None, None] * radial.unsqueeze(2) * radial.unsqueeze(1)
            found[name] = shrink * (part.products - mixed - mixed.mT + outer)
    return found


def shrunk(
    moved: Mapping[str, JacobianProducts], layers: Sequence[Layer], clips: Sequence[Release]
) -> dict[str, Tensor]:
    """Compute JᵀJ of every layer's gradient times the square of what a clip leaves of its length.

    Where the clip begins this has no jump, as ``clipped`` has. Of the same shape.
    """
    found: dict[str, Tensor] = {}
    for parts, bound in _together(moved, layers, clips):
        energy = sum_of(list(parts.values())).energy
        left = torch.ones_like(energy) if bound is None else bound**2 / energy.clamp(min=bound**2)
        found |= {name: left[:, None, None] * part.products for name, part in parts.items()}
    return found


def _together(
    moved: Mapping[str, JacobianProducts], layers: Sequence[Layer], clips: Sequence[Release]
) -> Iterator[tuple[dict[str, JacobianProducts], float | None]]:
    """Yield each group of layers that is clipped together, with the norm it is clipped to."""
    if not clips:
        yield dict(moved), None
    for release in clips:
        if own := {layer.name: moved[layer.name] for layer in layers if release.holds(layer)}:
            yield own, release.clip
