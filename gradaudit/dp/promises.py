"""What a known mechanism promises, whatever the records are."""

import math

from gradaudit.dp.mechanisms import AdditiveMechanism
from gradaudit.dp.theory import Relation, epsilon_gaussian, epsilon_laplace, mu_of_mechanism


def worst_mu(mechanism: AdditiveMechanism, relation: Relation, records: int) -> float:
    """L2 sensitivity over the noise's scale, for a batch of so many records."""
    return mu_of_mechanism(
        mechanism.clip, mechanism.sigma, noise=mechanism.per, records=records, relation=relation
    )


def promised_epsilon(
    mechanism: AdditiveMechanism, relation: Relation, records: int, elements: int, delta: float
) -> float:
    """Exact epsilon of the worst pair of gradients.

    At δ for Gaussian noise. At 0 for Laplace noise, where an L2 sensitivity of S allows an L1
    sensitivity of S√elements.
    """
    mu = worst_mu(mechanism, relation, records)
    if mechanism.noise == "laplace":
        return epsilon_laplace(mu * math.sqrt(elements), 1.0)
    return epsilon_gaussian(mu, delta)
