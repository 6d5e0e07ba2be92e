"""A multilayer perceptron; with one hidden layer of 100 units that of Li et al. 2024.

Source: Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning"
(2024), sections 5.1.1 and 7, for tables and speech features. The activation is not stated; ReLU.
"""

from torch import nn

from gradaudit.zoo._chain import Activation, Chain


def build(
    inputs: tuple[int, ...] = (64,),
    hidden: tuple[int, ...] = (100,),
    classes: int = 10,
    activation: Activation = "relu",
) -> nn.Sequential:
    """An MLP for records of ``inputs`` features, which it flattens.

    Args:
        inputs: number of features, or the shape of a record (``3x32x32``).
        hidden: units of each hidden layer.
        classes: number of outputs.
        activation: follows every hidden layer.

    Raises:
        UsageError: a size is not positive.
    """
    net = Chain(inputs, activation)
    for units in hidden:
        net.dense(units)
    return net.output(classes)
