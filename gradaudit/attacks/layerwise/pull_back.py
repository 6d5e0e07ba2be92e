"""The pull-back constraint: what the layer before a convolution allows its input to be.

Chen & Campbell 2021, appendix B. Where W⁽ⁱ⁻¹⁾ has full column rank and fewer columns than rows,
Z⁽ⁱ⁻¹⁾ − B⁽ⁱ⁻¹⁾ lies in the range of W⁽ⁱ⁻¹⁾, so that with the projection P = I − W W⁺ beside it

    g(X⁽ⁱ⁾) = P ((A⁽ⁱ⁻¹⁾)⁻¹(X⁽ⁱ⁾) − B⁽ⁱ⁻¹⁾) = 0.

It is not evaluated but solved: Z⁽ⁱ⁻¹⁾ = W⁽ⁱ⁻¹⁾ y + B⁽ⁱ⁻¹⁾ (``image``) for exactly one y, which is
W⁺ (Z⁽ⁱ⁻¹⁾ − B⁽ⁱ⁻¹⁾) (``preimage``), and y is what is searched. Eq. 19 prints A⁽ⁱ⁾ for A⁽ⁱ⁻¹⁾ and
leaves the bias out, and algorithm 1 prints the branch reversed.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.linalg import splu

from gradaudit.attacks.layerwise.chain import Stage
from gradaudit.attacks.layerwise.systems import weights_matrix
from gradaudit.ranks.convolution import convolution_rank
from gradaudit.ranks.geometry import geometry_of


@dataclass(frozen=True)
class PullBack:
    """The constraint that one convolution puts on its own output.

    Attributes:
        matrix: its W, (outputs, inputs), of full column rank.
        offset: its bias at every output, (outputs,).
    """

    matrix: csr_array
    offset: NDArray[np.float64]

    @cached_property
    def _factors(self) -> Any:
        return splu(
            (self.matrix.T @ self.matrix).tocsc(),
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )

    def preimage(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """W⁺ (z − B), the input (inputs,) whose output comes closest to z (outputs,)."""
        y: NDArray[np.float64] = self._factors.solve(self.matrix.T @ (z - self.offset))
        return y

    def image(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        """W y + B, (outputs,): every z that fulfils the constraint is one."""
        z: NDArray[np.float64] = self.matrix @ y + self.offset
        return z


def pull_back_of(stage: Stage | None, seed: int = 0) -> PullBack | None:
    """The constraint that a stage puts on its output, None where it puts none.

    Args:
        stage: the stage before the one that is solved, None where that is the first.
        seed: of the probes by which the rank is found.
    """
    if stage is None or stage.convolution is None or stage.inputs >= stage.outputs:
        return None
    if column_rank(stage, seed) < stage.inputs:
        return None
    return PullBack(weights_matrix(stage), stage.offset.cpu().double().numpy())


def column_rank(stage: Stage, seed: int = 0) -> int:
    """The rank of a convolution's W, at least.

    Args:
        stage: a convolution.
        seed: of the probes by which it is found.
    """
    assert stage.convolution is not None
    weight = stage.weight.detach().cpu().double()
    nothing = torch.zeros(len(weight), stage.outputs // len(weight), dtype=torch.float64)
    geometry = geometry_of(stage.convolution, stage.input_shape[1:])
    rank = convolution_rank(weight, nothing, geometry, stage.convolution.groups, seed=seed)
    return rank.low
