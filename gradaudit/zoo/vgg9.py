"""VGG9 of Mo et al. 2022: six convolutions of 3×3, three fully connected layers.

Source: F. Mo et al., "Quantifying and localizing usable information leakage from neural network
gradients" (2022), table III: ``C8(3)-C16(3)×2-P(2)-C32(3)×3-P(2)-F256-F128-O``.
The paper does not state the padding; like Simonyan and Zisserman's VGG these keep the size by
default.
"""

from torch import nn

from gradaudit.zoo._chain import Activation, Chain, Padding, Shape


def build(
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    activation: Activation = "relu",
    padding: Padding = "same",
) -> nn.Sequential:
    """VGG9 for records of ``shape``.

    Raises:
        UsageError: the shape is too small or a size is not positive.
    """
    net = Chain(shape, activation)
    for channels in (8, 16, 16):
        net.conv(channels, 3, padding=padding)
    net.pool()
    for channels in (32, 32, 32):
        net.conv(channels, 3, padding=padding)
    return net.pool().dense(256).dense(128).output(classes)
