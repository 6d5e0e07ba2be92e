"""AlexNet of Mo et al. 2021: three convolutions with a pool each, two fully connected layers.

Source: F. Mo et al., "Layer-wise characterization of latent information leakage in federated
learning" (2021), section 5.
The paper does not state the padding; the convolutions keep the size by default.
"""

from torch import nn

from gradaudit.zoo._chain import Activation, Chain, Padding, Shape


def build(
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    activation: Activation = "relu",
    padding: Padding = "same",
) -> nn.Sequential:
    """The variational AlexNet for records of ``shape``.

    Raises:
        UsageError: the shape is too small or a size is not positive.
    """
    net = Chain(shape, activation)
    for channels in (16, 32, 64):
        net.conv(channels, 3, padding=padding).pool()
    return net.dense(256).output(classes)
