"""The architectures of the sample checkpoints, as a user would write them."""

from collections import OrderedDict

from torch import nn


def digits_cnn() -> nn.Module:
    """Two strided convolutions and a classifier for 1×8×8 digits."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 12, kernel_size=3, padding=1),
            act1=nn.Tanh(),
            conv2=nn.Conv2d(12, 16, kernel_size=3, stride=2, padding=1),
            act2=nn.Tanh(),
            flatten=nn.Flatten(),
            fc1=nn.Linear(16 * 4 * 4, 32),
            act3=nn.Tanh(),
            fc2=nn.Linear(32, 10),
        )
    )


def diabetes_mlp() -> nn.Module:
    """One hidden layer over the ten measurements of the diabetes table."""
    return nn.Sequential(OrderedDict(fc1=nn.Linear(10, 32), act1=nn.ReLU(), fc2=nn.Linear(32, 2)))
