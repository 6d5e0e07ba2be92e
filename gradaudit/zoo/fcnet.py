"""FCNet of Mo et al. 2021: nine fully connected layers, all but the last of 32 units.

Source: F. Mo et al., "Layer-wise characterization of latent information leakage in federated
learning" (2021), section 5.
"""

from torch import nn

from gradaudit.zoo._chain import Activation, Chain


def build(
    shape: tuple[int, ...] = (3, 32, 32), classes: int = 10, activation: Activation = "relu"
) -> nn.Sequential:
    """FCNet for records of ``shape``, which it flattens.

    Raises:
        UsageError: a size is not positive.
    """
    net = Chain(shape, activation)
    for _ in range(8):
        net.dense(32)
    return net.output(classes)
