"""How an update leaves its client: which parameters are clipped together, and their noise."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradaudit.audits.floor.jacobians import JacobianProducts, sum_of
from gradaudit.core.noise_laws import noise_scale
from gradaudit.defenses import Chain, Defense
from gradaudit.defenses.dp import DpNoise
from gradaudit.errors import NotApplicable
from gradaudit.models.target import Layer


@dataclass(frozen=True)
class Release:
    """Parameters whose gradients are clipped together, averaged over records, and get noise.

    Attributes:
        parameters: their names.
        records: k, how many the update is the mean of; all but one are known to the attacker.
        scale: deviation of Gaussian noise in an element of the update.
        clip: L2 norm that each of these is clipped to; None for no clipping.
    """

    parameters: tuple[str, ...]
    records: int
    scale: float
    clip: float | None = None

    @property
    def members(self) -> frozenset[str]:
        """The parameters, to look them up."""
        return frozenset(self.parameters)

    def holds(self, layer: Layer) -> bool:
        """Tell whether the release covers all parameters of a layer."""
        return self.members.issuperset(layer.parameter_names)

    @property
    def fisher(self) -> float:
        """Factor from JᵀJ of a record's (clipped) gradient to the Fisher information."""
        scale = self.records * self.scale
        return 1 / scale / scale

    @property
    def reach(self) -> float | None:
        """How far one record's part of the update is from a fixed point, at most (L2)."""
        return None if self.clip is None else self.clip / self.records

    @property
    def shift(self) -> float:
        """The reach over the noise's deviation, of a clipped part."""
        return (self.reach or 0.0) / self.scale


def releases_of(
    chain: Chain, parameters: Sequence[str], records: int, sigma: float = 0.0, *, clients: int = 1
) -> tuple[Release, ...]:
    """How the shared parameters leave; those that get no noise are in none.

    Args:
        chain: what each client does to its update.
        parameters: that are shared.
        records: in a client's update.
        sigma: deviation of Gaussian noise on the mean update, instead of a defense's.
        clients: how many clients' updates are averaged.

    Raises:
        NotApplicable: the noise is not Gaussian, another defense acted before it, two add some, or
            what comes after knows more than the update.
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
        found.append(Release(tuple(names), records * clients, scale, o.clip))
    return tuple(found)


def _noise_of(defenses: Sequence[Defense[Any]]) -> DpNoise | None:
    noisy = [defense for defense in defenses if isinstance(defense, DpNoise)]
    if not noisy or noisy[0].options.sigma == 0:
        return None
    if noisy[0].options.noise != "gaussian":
        raise NotApplicable(f"--defense {noisy[0]}: a floor is known under Gaussian noise alone")
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


def _together(
    moved: Mapping[str, JacobianProducts], layers: Sequence[Layer], clips: Sequence[Release]
) -> Iterator[tuple[dict[str, JacobianProducts], float | None]]:
    """Yield each group of layers that is clipped together, with the norm it is clipped to."""
    if not clips:
        yield dict(moved), None
    for release in clips:
        if own := {layer.name: moved[layer.name] for layer in layers if release.holds(layer)}:
            yield own, release.clip
