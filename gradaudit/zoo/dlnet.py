"""DLNet of Fan et al. 2020: four convolutions of 12 channels of 5×5, one fully connected layer.

Source: L. Fan et al., "Rethinking privacy preserving deep learning" (2020), table 6.
The paper draws weights from uniform(−0.3, 0.3) (``init=uniform:0.3``; table 2) and replaces the
sigmoid by tanh for SVHN. Its source is the code of Deep Leakage from Gradients, which has three
convolutions: see ``deep-leakage``.
"""

from torch import nn

from gradaudit.zoo._chain import Activation, Chain, Shape
from gradaudit.zoo._init import initialise


def build(
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    activation: Activation = "sigmoid",
    init: str = "default",
) -> nn.Sequential:
    """DLNet for records of ``shape``.

    Args:
        shape: channels, height and width.
        classes: number of classes.
        activation: follows every convolution.
        init: ``default`` (PyTorch's) or ``uniform:B`` for uniform(−B, B) weights and biases.

    Raises:
        UsageError: the shape is too small, a size is not positive, or ``init`` is unknown.
    """
    net = Chain(shape, activation)
    for stride in (2, 2, 1, 1):
        net.conv(12, 5, stride=stride, padding=2)
    return initialise(net.output(classes), init)
