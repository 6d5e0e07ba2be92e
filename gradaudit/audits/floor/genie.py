"""Side information from a genie, so that averages are over records of similar information.

Given u of z = u + v, with u of the law N(0, I − T) and v of N(0, T), independent, the record's
prior is N(u, T), of precision T⁻¹. Who is told u does no worse, so for each T with 0 < T ≤ I

- E‖x̂ − x‖² ≥ E_u tr C^½ (T⁻¹ + Ã_u)⁻¹ C^½ with Ã_u the information on average over v alone;
- I(x; update) = I(u; update) + I(x; update | u) ≤ E_u ½ ln det(T⁻¹ + Ã_u), as the first is at most
  I(u; x) = ½ ln det T⁻¹, and the second at most E_u ½ ln det(I + T^½ Ã_u T^½).

T = I is no genie. What is to be told is where gradients grow: with s = ∇_z ln ‖G‖², of other
records, T⁻¹ = I + 3 E[s sᵀ], so that ln ‖G‖² varies by no more than a third of one (in variance)
along any direction of v, as far as it is linear. The 3 is about the best of 1, 3 and 10 on the
networks of ``benchmarks/floors.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradaudit.audits.floor.prior import GaussianPrior
from gradaudit.audits.floor.weights import levels_of
from gradaudit.gradients.functional import FunctionalModel

_TELLING = 3.0


@dataclass(frozen=True)
class Genie:
    """A genie: side information on records of a prior, in its leading directions.

    Attributes:
        precision: T⁻¹, (leading, leading).
        told: (I − T)^½.
        untold: T^½.
        levels: of the weights of records, see ``weights``.
    """

    precision: Tensor
    told: Tensor
    untold: Tensor
    levels: Tensor

    @classmethod
    def of(cls, slopes: Tensor, energies: Tensor, prior: GaussianPrior) -> Self:
        """From ∇_x ln ‖G‖² of some records, (records, d), and their ‖G‖², (records,)."""
        along = slopes.double() @ prior.leaders.mT
        values, vectors = torch.linalg.eigh(_TELLING * along.mT @ along / max(1, len(along)))
        precision = 1 + values.clamp(min=0)

        def matrix(values: Tensor) -> Tensor:
            product: Tensor = (vectors * values) @ vectors.mT
            return product

        told, untold = matrix((1 - 1 / precision).sqrt()), matrix(precision**-0.5)
        return cls(matrix(precision), told, untold, levels_of(energies))

    def mixed(self, own: Tensor, shared: Tensor) -> Tensor:
        """Z = u + v of standard normal numbers (records, leading) for v and for u."""
        mixed: Tensor = own @ self.untold + shared @ self.told
        return mixed


def slopes_of(
    view: FunctionalModel, names: Sequence[str], records: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """∇ ln ‖G‖², (records, d), and ‖G‖², (records,), of records' gradients by named parameters.

    Both are zero where gradients are, and where a model can be differentiated only once backwards:
    the genie then tells nothing, and records weigh alike.
    """
    with sdpa_kernel(SDPBackend.MATH):  # the others cannot be differentiated twice
        try:
            found = [_slope(view, names, *one) for one in zip(records, labels, strict=True)]
        except RuntimeError:
            return records.new_zeros(len(records), records[0].numel()), records.new_zeros(1)
    slopes, energies = zip(*found, strict=True)
    return torch.stack(slopes).nan_to_num(0, 0, 0), torch.stack(energies)


def _slope(
    view: FunctionalModel, names: Sequence[str], record: Tensor, label: Tensor
) -> tuple[Tensor, Tensor]:
    moving = record.clone().requires_grad_()
    leaves = {name: view.parameters[name].clone().requires_grad_() for name in names}
    with torch.enable_grad():
        loss = view.record_loss(leaves, moving, label)
        gradients = torch.autograd.grad(
            loss, list(leaves.values()), create_graph=True, materialize_grads=True
        )
        energy = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
    if not energy.requires_grad:
        return torch.zeros_like(record).flatten(), energy
    (slope,) = torch.autograd.grad(energy.log(), moving, materialize_grads=True)
    return slope.flatten(), energy.detach()
