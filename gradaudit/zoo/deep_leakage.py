"""The network of Deep Leakage from Gradients: convolutions of 12 channels of 5×5, one output layer.

Source: L. Zhu et al., "Deep leakage from gradients" (2019), the released code: strides 2, 2, 1,
padding 2, sigmoid, 768 inputs to the output layer at 32×32, weights and biases drawn from
uniform(−0.5, 0.5) (``init=uniform:0.5``). F. Mo et al. 2021, section 9.2, attacks it with seven
convolutions on CIFAR-100: the further ones have stride 1, which keeps the 768.
"""

from typing import Literal

from torch import nn

from gradaudit.zoo._chain import Activation, Chain, Shape
from gradaudit.zoo._init import initialise


def build(
    shape: Shape = (3, 32, 32),
    classes: int = 100,
    activation: Activation = "sigmoid",
    convolutions: Literal[3, 7] = 3,
    init: str = "default",
) -> nn.Sequential:
    """The attacked network for records of ``shape``.

    Args:
        shape: channels, height and width.
        classes: number of classes.
        activation: follows every convolution.
        convolutions: 3 as in the code, 7 as in Mo et al. 2021.
        init: ``default`` (PyTorch's) or ``uniform:B`` for uniform(−B, B) weights and biases.

    Raises:
        UsageError: the shape is too small, a size is not positive, or ``init`` is unknown.
    """
    net = Chain(shape, activation)
    for stride in (2, 2, *[1] * (convolutions - 2)):
        net.conv(12, 5, stride=stride, padding=2)
    return initialise(net.output(classes), init)
