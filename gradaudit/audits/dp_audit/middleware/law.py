"""The law of middleware that clips the update as a whole and adds Gaussian noise."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradaudit.audits.dp_audit.law.theory import Relation, epsilon_gaussian, mu_of_mechanism
from gradaudit.audits.dp_audit.mechanisms import Promise, ReleaseLaw
from gradaudit.audits.dp_audit.middleware.payload import Layout
from gradaudit.gradients.noise import clipped


@dataclass(frozen=True)
class ClippedGaussian:
    """clip(u) + σn, in place: arrays without dimensions count in the norm and leave as they are.

    So it is in numpy wherever ``for array in arrays: array *= factor`` meets a number and not an
    array. Replacing a client moves clip(u) by up to 2Δ, its absence by Δ, whatever sensitivity σ
    was chosen by.

    Attributes:
        clip: L2 norm Δ that the update is clipped to.
        sigma: deviation of the noise in each element.
    """

    clip: float
    sigma: float

    def law(self, layout: Layout) -> ReleaseLaw:
        """The law of what leaves, in elements of an update."""
        bare = layout.where([key for key, array in layout.received.items() if not array.ndim])

        def noiseless(client: Tensor, companions: Tensor) -> Tensor:
            return torch.where(bare.to(client.device), client, clipped(client, self.clip))

        return ReleaseLaw("gaussian", self.sigma, noiseless, bare)

    def promise(self, relation: Relation, delta: float) -> Promise:
        """The exact epsilon of the worst pair of updates, by the analytic Gaussian mechanism."""
        mu = mu_of_mechanism(self.clip, self.sigma, relation=relation)
        return Promise(mu, epsilon_gaussian(mu, delta), delta)
