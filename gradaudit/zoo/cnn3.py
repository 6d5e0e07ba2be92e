"""CNN3 of COPA: two convolutions without bias or padding, one fully connected layer with bias.

Source: C. Chen and N. Campbell, "Understanding training-data leakage from gradients in neural
networks for image classification" (2021), section 3 and table 1: kernel, channels and stride of
the convolutions of its four variants, which give 588, 147, 7056 and 4704 inputs to the fully
connected layer at 32×32. The paper's figure 1 has tanh after every layer, its figure 2 leaky ReLU
and after the last layer a sigmoid: ``output_activation``, by default none, so that the outputs are
the logits of the softmax.
"""

from typing import Literal

from torch import nn

from gradaudit.zoo._chain import Activation, Chain, Shape

_LAYERS = {
    1: ((3, 6, 1), (4, 3, 2)),
    2: ((4, 6, 2), (3, 3, 2)),
    3: ((3, 6, 1), (3, 9, 1)),
    4: ((3, 1, 1), (3, 6, 1)),
}


def build(
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    activation: Activation = "tanh",
    variant: Literal[1, 2, 3, 4] = 1,
    output_activation: Activation = "none",
) -> nn.Sequential:
    """A variant of CNN3 for records of ``shape``.

    Args:
        shape: channels, height and width.
        classes: number of classes.
        activation: follows both convolutions.
        variant: the row of table 1.
        output_activation: follows the fully connected layer.

    Raises:
        UsageError: the shape is too small or a size is not positive.
    """
    net = Chain(shape, activation)
    for kernel, channels, stride in _LAYERS[variant]:
        net.conv(channels, kernel, stride=stride, bias=False)
    return net.output(classes, output_activation)
