"""AlexNet of Mo et al. 2022: five small convolutions, three fully connected layers.

Source: F. Mo et al., "Quantifying and localizing usable information leakage from neural network
gradients" (2022), table III: ``C8(5)-C16(3)-P(2)-C32(3)×3-P(2)-F120-F84-O``.
The paper does not state the padding; like Krizhevsky's inner layers these keep the size by default.
"""

from torch import nn

from gradaudit.zoo._chain import Activation, Chain, Padding, Shape


def build(
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    activation: Activation = "relu",
    padding: Padding = "same",
) -> nn.Sequential:
    """AlexNet for records of ``shape``.

    Raises:
        UsageError: the shape is too small or a size is not positive.
    """
    net = Chain(shape, activation)
    net.conv(8, 5, padding=padding).conv(16, 3, padding=padding).pool()
    for _ in range(3):
        net.conv(32, 3, padding=padding)
    return net.pool().dense(120).dense(84).output(classes)
