"""AlexNet of Fan et al. 2020: torchvision's convolutions fitted to 32×32 pictures.

Source: L. Fan et al., "Rethinking privacy preserving deep learning" (2020), table 4.
ReLU as in torchvision; the table shows no dropout, so there is none.
"""

from torch import nn

from gradaudit.zoo._chain import Activation, Chain, Shape


def build(
    shape: Shape = (3, 32, 32), classes: int = 10, activation: Activation = "relu"
) -> nn.Sequential:
    """AlexNet for records of ``shape``; 4096 inputs to its first linear layer at 3×32×32.

    Raises:
        UsageError: the shape is too small or a size is not positive.
    """
    net = Chain(shape, activation)
    net.conv(64, 5, padding=2).pool()
    net.conv(192, 5, padding=2).pool()
    for channels in (384, 256, 256):
        net.conv(channels, 3, padding=1)
    return net.pool().dense(256).output(classes)
