"""LeNet of Mo et al. 2022: two convolutions of 5×5, three fully connected layers.

Source: F. Mo et al., "Quantifying and localizing usable information leakage from neural network
gradients" (2022), table III: ``C6(5)-P(2)-C16(5)-P(2)-F120-F84-O``.
The paper does not state the padding; like LeCun's LeNet-5 there is none by default.
"""

from torch import nn

from gradaudit.zoo._chain import Activation, Chain, Padding, Shape


def build(
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    activation: Activation = "relu",
    padding: Padding = "valid",
) -> nn.Sequential:
    """LeNet for records of ``shape``.

    Raises:
        UsageError: the shape is too small or a size is not positive.
    """
    net = Chain(shape, activation)
    net.conv(6, 5, padding=padding).pool()
    net.conv(16, 5, padding=padding).pool()
    return net.dense(120).dense(84).output(classes)
