"""Records drawn from a prior, in units that share the genie's side information.

Side information from a genie, so that averages are over records of similar information.

Given u of z = u + v, with u of the law N(0, I − T) and v of N(0, T), independent, the record's
prior is N(u, T), of precision T⁻¹. An attacker who is given u does no worse, so for each T with
0 < T ≤ I

- E‖x̂ − x‖² ≥ E_u tr C^½ (T⁻¹ + Ã_u)⁻¹ C^½ with Ã_u the information on average over v alone;
- I(x; update) = I(u; update) + I(x; update | u) ≤ E_u ½ ln det(T⁻¹ + Ã_u), as the first is at most
  I(u; x) = ½ ln det T⁻¹, and the second at most E_u ½ ln det(I + T^½ Ã_u T^½).

T = I is no genie. The genie gives away the directions in which gradients grow: with
s = ∇_z ln ‖G‖², of other records, T⁻¹ = I + 3 E[s sᵀ], so that ln ‖G‖² varies by no more than a
third of one (in variance) along any direction of v, as far as it is linear. The 3 is about the best
of 1, 3 and 10 on the networks of ``benchmarks/coverage/floors.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.core.randomness import torch_rng
from gradaudit.errors import NotApplicable
from gradaudit.gradients.functional import FunctionalModel

_TELLING = 3.0


@dataclass(frozen=True)
class Genie:
    """A genie: side information on records of a prior, in its leading directions.

    Attributes:
        precision: T⁻¹, (leading, leading).
        given: (I − T)^½, of the part u that the genie gives away.
        hidden: T^½, of the part v that it does not.
    """

    precision: Tensor
    given: Tensor
    hidden: Tensor

    @classmethod
    def of(cls, slopes: Tensor, prior: GaussianPrior) -> Self:
        """A genie from ∇_x ln ‖G‖² of some records, (records, d)."""
        along = slopes.double() @ prior.leaders.mT
        values, vectors = torch.linalg.eigh(_TELLING * along.mT @ along / max(1, len(along)))
        precision = 1 + values.clamp(min=0)

        def matrix(values: Tensor) -> Tensor:
            product: Tensor = (vectors * values) @ vectors.mT
            return product

        given, hidden = matrix((1 - 1 / precision).sqrt()), matrix(precision**-0.5)
        return cls(matrix(precision), given, hidden)


def slopes_of(
    view: FunctionalModel, names: Sequence[str], records: Tensor, labels: Tensor
) -> Tensor:
    """∇ ln ‖G‖² of records' gradients by named parameters, (records, d).

    It is zero where gradients are, and where a model can be differentiated only once backwards:
    the genie then gives no information.
    """
    with sdpa_kernel(SDPBackend.MATH):  # the others cannot be differentiated twice
        try:
            found = [_slope(view, names, *one) for one in zip(records, labels, strict=True)]
        except RuntimeError:
            return records.new_zeros(len(records), records[0].numel())
    return torch.stack(found).nan_to_num(0, 0, 0)


def _slope(view: FunctionalModel, names: Sequence[str], record: Tensor, label: Tensor) -> Tensor:
    moving = record.clone().requires_grad_()
    leaves = {name: view.parameters[name].clone().requires_grad_() for name in names}
    with torch.enable_grad():
        loss = view.record_loss(leaves, moving, label)
        gradients = torch.autograd.grad(
            loss, list(leaves.values()), create_graph=True, materialize_grads=True
        )
        energy = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
    if not energy.requires_grad:
        return torch.zeros_like(record).flatten()
    (slope,) = torch.autograd.grad(energy.log(), moving, materialize_grads=True)
    return slope.flatten()


_UNIT = 4
"""Records of a unit: many small units estimate the average better, large ones their own value."""
_LOOKED_AT = 64
"""Records that the genie looks at, at most."""


@dataclass(frozen=True)
class PriorSample:
    """Records of the prior; each alone is a draw of it.

    Attributes:
        records: (records, …).
        labels: (records, …), the same in a unit.
        cells: which half of which unit each is in, 2 · unit + half, in order.
        genie: the side information that it gives about each unit.
    """

    records: Tensor
    labels: Tensor
    cells: Tensor
    genie: Genie

    @classmethod
    def of(
        cls,
        view: FunctionalModel,
        names: Sequence[str],
        prior: GaussianPrior,
        labels: Tensor,
        *,
        shape: Sequence[int],
        seed: int,
        most: int,
    ) -> Self:
        """Draw as many records as there are labels, after a look at other records' gradients.

        A unit takes its first record's label; the genie looks at records with the others.

        Args:
            view: the model.
            names: parameters whose gradients are shared.
            prior: of the records.
            labels: (records, …), four or more.
            shape: of one record.
            seed: of all that is drawn.
            most: units, at most; there are two or more.

        Raises:
            AuditError: the model cannot be run on such records.
            NotApplicable: records have no gradients of their own.
        """
        units = max(2, min(len(labels) // _UNIT, most))
        cells = torch.arange(len(labels)) * 2 * units // len(labels)
        first = torch.cat([cells.new_ones(1), cells.diff()]).bool() & (cells % 2 == 0)
        others = labels[~first][:_LOOKED_AT]
        looked_at = prior.draw(len(others), torch_rng(seed, "floor", "genie"))
        before = view.cast(looked_at).reshape(-1, *shape)
        seen = before, view.cast(others)
        _expect_own_gradients(view, *seen)
        genie = Genie.of(slopes_of(view, names, *seen).cpu(), prior)
        drawn = _drawn(prior, genie, cells // 2, torch_rng(seed, "floor", "records"))
        own = labels[first][cells // 2]
        return cls(drawn.reshape(-1, *shape), own, cells, genie)


def _drawn(prior: GaussianPrior, genie: Genie, units: Tensor, generator: torch.Generator) -> Tensor:
    """Records, (records, d), of which those of a unit have the same u."""
    normal = torch.randn(len(units), prior.size, generator=generator, dtype=torch.float64)
    count = int(units[-1]) + 1
    shared = torch.randn(count, prior.leading, generator=generator, dtype=torch.float64)
    axes = prior.axes[: prior.leading]
    leading = normal @ axes.mT
    mixed = leading @ genie.hidden + shared[units] @ genie.given  # z = v + u
    return prior.at(normal + (mixed - leading) @ axes)


def _expect_own_gradients(view: FunctionalModel, inputs: Tensor, labels: Tensor) -> None:
    view.check(inputs, labels)
    reason = view.coupling(inputs, labels)
    if reason:
        raise NotApplicable(f"records have no gradients of their own: {reason}{view.remedy}")
    if view.stochastic(inputs[:2]):
        raise NotApplicable(
            "the model draws random numbers (dropout), so that a record has no one gradient; use "
            "--mode eval"
        )
