"""The papers' architectures, each a function with its source.

``shape`` is the channels, height and width of a record, ``classes`` the number of outputs,
``activation`` what follows every layer but the last, and ``padding`` that of the convolutions.
``init`` is ``default`` (PyTorch's) or ``uniform:B`` for uniform(−B, B) weights and biases.

Each raises a UsageError where the shape is too small, a size is not positive, or an option has no
such value.

[1] F. Mo et al., "Layer-wise characterization of latent information leakage in federated learning"
(2021). [2] F. Mo et al., "Quantifying and localizing usable information leakage from neural network
gradients" (2022). [3] L. Fan et al., "Rethinking privacy preserving deep learning" (2020).
"""

from typing import Literal

from torch import Tensor, nn

from gradaudit.errors import UsageError
from gradaudit.zoo.layer_sizes import Activation, Padding, SequentialBuilder, Shape, initialise

_CNN3 = {
    1: ((3, 6, 1), (4, 3, 2)),
    2: ((4, 6, 2), (3, 3, 2)),
    3: ((3, 6, 1), (3, 9, 1)),
    4: ((3, 1, 1), (3, 6, 1)),
}


def alexnet_32(
    shape: Shape = (3, 32, 32), classes: int = 10, activation: Activation = "relu"
) -> nn.Sequential:
    """AlexNet of Fan et al. 2020: torchvision's convolutions fitted to 32×32 pictures.

    Source: [3], table 4. ReLU as in torchvision; the table shows no dropout, so there is none. At
    3×32×32 its first linear layer has 4096 inputs.
    """
    net = SequentialBuilder(shape, activation)
    net.conv(64, 5, padding=2).pool()
    net.conv(192, 5, padding=2).pool()
    for channels in (384, 256, 256):
        net.conv(channels, 3, padding=1)
    return net.pool().dense(256).output(classes)


def alexnet_mo21(
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    activation: Activation = "relu",
    padding: Padding = "same",
) -> nn.Sequential:
    """AlexNet of Mo et al. 2021: three convolutions with a pool each, two fully connected layers.

    Source: [1], section 5. The paper does not state the padding; the convolutions keep the size by
    default.
    """
    net = SequentialBuilder(shape, activation)
    for channels in (16, 32, 64):
        net.conv(channels, 3, padding=padding).pool()
    return net.dense(256).output(classes)


def alexnet_mo22(
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    activation: Activation = "relu",
    padding: Padding = "same",
) -> nn.Sequential:
    """AlexNet of Mo et al. 2022: five small convolutions, three fully connected layers.

    Source: [2], table III: ``C8(5)-C16(3)-P(2)-C32(3)×3-P(2)-F120-F84-O``. The paper does not state
    the padding; like Krizhevsky's inner layers these keep the size by default.
    """
    net = SequentialBuilder(shape, activation)
    net.conv(8, 5, padding=padding).conv(16, 3, padding=padding).pool()
    for _ in range(3):
        net.conv(32, 3, padding=padding)
    return net.pool().dense(120).dense(84).output(classes)


def cnn3(
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    activation: Activation = "tanh",
    variant: Literal[1, 2, 3, 4] = 1,
    output_activation: Activation = "none",
) -> nn.Sequential:
    """CNN3 of COPA: two convolutions without bias or padding, one fully connected layer with bias.

    Source: C. Chen and N. Campbell, "Understanding training-data leakage from gradients in neural
    networks for image classification" (2021), section 3 and table 1, whose row is ``variant``:
    kernel, channels and stride of the convolutions of its four variants, which give 588, 147, 7056
    and 4704 inputs to the fully connected layer at 32×32. The paper's figure 1 has tanh after every
    layer, its figure 2 leaky ReLU and after the last layer a sigmoid: ``output_activation``, by
    default none, so that the outputs are the logits of the softmax.
    """
    net = SequentialBuilder(shape, activation)
    for kernel, channels, stride in _CNN3[variant]:
        net.conv(channels, kernel, stride=stride, bias=False)
    return net.output(classes, output_activation)


def deep_leakage(
    shape: Shape = (3, 32, 32),
    classes: int = 100,
    activation: Activation = "sigmoid",
    convolutions: Literal[3, 7] = 3,
    init: str = "default",
) -> nn.Sequential:
    """The network of Deep Leakage from Gradients: convolutions of 12 channels of 5×5, one output layer.

    Source: L. Zhu et al., "Deep leakage from gradients" (2019), the released code: strides 2, 2, 1,
    padding 2, sigmoid, 768 inputs to the output layer at 32×32, weights and biases drawn from
    uniform(−0.5, 0.5) (``init=uniform:0.5``). [1], section 9.2, attacks it with seven
    ``convolutions`` on CIFAR-100: the further ones have stride 1, which keeps the 768.
    """  # noqa: E501 - the summary is listed as it is
    net = SequentialBuilder(shape, activation)
    for stride in (2, 2, *[1] * (convolutions - 2)):
        net.conv(12, 5, stride=stride, padding=2)
    return initialise(net.output(classes), init)


def dlnet(
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    activation: Activation = "sigmoid",
    init: str = "default",
) -> nn.Sequential:
    """DLNet of Fan et al. 2020: four convolutions of 12 channels of 5×5, one fully connected layer.

    Source: [3], table 6. The paper draws weights from uniform(−0.3, 0.3) (``init=uniform:0.3``;
    table 2) and replaces the sigmoid by tanh for SVHN. Its source is the code of Deep Leakage from
    Gradients, which has three convolutions: see ``deep-leakage``.
    """
    net = SequentialBuilder(shape, activation)
    for stride in (2, 2, 1, 1):
        net.conv(12, 5, stride=stride, padding=2)
    return initialise(net.output(classes), init)


def fcnet(
    shape: tuple[int, ...] = (3, 32, 32), classes: int = 10, activation: Activation = "relu"
) -> nn.Sequential:
    """FCNet of Mo et al. 2021: nine fully connected layers, all but the last of 32 units.

    Source: [1], section 5. Records are flattened.
    """
    net = SequentialBuilder(shape, activation)
    for _ in range(8):
        net.dense(32)
    return net.output(classes)


def lenet(
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    activation: Activation = "relu",
    padding: Padding = "valid",
) -> nn.Sequential:
    """LeNet of Mo et al. 2022: two convolutions of 5×5, three fully connected layers.

    Source: [2], table III: ``C6(5)-P(2)-C16(5)-P(2)-F120-F84-O``. The paper does not state the
    padding; like LeCun's LeNet-5 there is none by default.
    """
    net = SequentialBuilder(shape, activation)
    net.conv(6, 5, padding=padding).pool()
    net.conv(16, 5, padding=padding).pool()
    return net.dense(120).dense(84).output(classes)


def mlp(
    inputs: tuple[int, ...] = (64,),
    hidden: tuple[int, ...] = (100,),
    classes: int = 10,
    activation: Activation = "relu",
) -> nn.Sequential:
    """A multilayer perceptron; with one hidden layer of 100 units that of Li et al. 2024.

    ``inputs`` is the number of features, or the shape of a record (``3x32x32``), which is
    flattened; ``hidden`` the units of each hidden layer.

    Source: Z. Li et al., "Analyzing inference privacy risks through gradients in machine learning"
    (2024), sections 5.1.1 and 7, for tables and speech features. The activation is not stated: ReLU
    by default.
    """
    net = SequentialBuilder(inputs, activation)
    for units in hidden:
        net.dense(units)
    return net.output(classes)


class ChannelsFirst(nn.Module):
    """Transposes (records, length, channels) to (records, channels, length)."""

    def forward(self, x: Tensor) -> Tensor:
        """Swap length and channels."""
        return x.transpose(1, 2)


def textclf(
    vocabulary: int = 5000,
    embedding: int = 50,
    length: int = 256,
    classes: int = 2,
    activation: Activation = "relu",
) -> nn.Sequential:
    """TextClf of Mo et al. 2022: embedded tokens, two convolutions, two fully connected layers.

    For (records, length) integer tokens in [0, vocabulary), each a vector of so many dimensions.

    Source: [2], table III: ``C16(3)-P(2)-C16(8)-P(2)-F50-O``. The paper writes its filters as
    two-dimensional and gives neither embedding nor length. Here the convolutions and pools run
    along the text (width 3 and 8, no padding), over an embedding whose dimensions are the channels.
    """
    if vocabulary < 1:
        raise UsageError(f"vocabulary={vocabulary}: must be positive")
    net = SequentialBuilder((embedding, length), activation)
    net.model.add_module("embedding", nn.Embedding(vocabulary, embedding))
    net.model.add_module("channels_first", ChannelsFirst())
    return net.conv(16, 3).pool().conv(16, 8).pool().dense(50).output(classes)


def vgg11net(
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    activation: Activation = "relu",
    padding: Padding = "same",
) -> nn.Sequential:
    """VGG11Net of Mo et al. 2021: eight convolutions of 3×3, three fully connected layers.

    Source: [1], section 5. The paper does not state the padding; like Simonyan and Zisserman's VGG
    the convolutions keep the size by default. Only the last three are followed by a pool.
    """
    net = SequentialBuilder(shape, activation)
    for channels in (16, 16, 16, 16, 32):
        net.conv(channels, 3, padding=padding)
    for channels in (32, 64, 64):
        net.conv(channels, 3, padding=padding).pool()
    return net.dense(256).dense(128).output(classes)


def vgg16_gn(
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    activation: Activation = "relu",
    pools: tuple[int, ...] = (1, 2, 5),
    groups: int = 32,
) -> nn.Sequential:
    """VGG16 of Fan et al. 2020: thirteen convolutions with group norm, two linear layers.

    Layers conv1_1, norm1_1, …, output; the activation follows every group norm and the first linear
    layer. ``pools`` are the blocks, 1 to 5, that a 2×2 max-pool follows (``1,2,3,4,5`` as in
    torchvision), ``groups`` those of each group norm; they must divide 64.

    Source: [3], table 5. The table contradicts itself: its third and fourth pools print the size
    they get (8×8), so that 512 channels of 4×4 reach the linear layer, 8192 inputs, where 4096 are
    printed; five halvings as in torchvision would leave 512. By default the printed output sizes
    are followed: pools after blocks 1, 2 and 5. The number of groups is not stated; 32 is the usual
    one. ReLU as in torchvision; the table shows no dropout, so there is none.
    """
    blocks = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
    if not set(pools) <= set(range(1, 1 + len(blocks))):
        raise UsageError(f"pools={','.join(map(str, pools))}: the blocks are 1 to {len(blocks)}")
    net = SequentialBuilder(shape, activation)
    for block, (channels, depth) in enumerate(blocks, 1):
        for layer in range(1, depth + 1):
            net.conv(channels, 3, padding=1, norm_groups=groups, name=f"{block}_{layer}")
        if block in pools:
            net.pool()
    return net.dense(256).output(classes)


def vgg9(
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    activation: Activation = "relu",
    padding: Padding = "same",
) -> nn.Sequential:
    """VGG9 of Mo et al. 2022: six convolutions of 3×3, three fully connected layers.

    Source: [2], table III: ``C8(3)-C16(3)×2-P(2)-C32(3)×3-P(2)-F256-F128-O``. The paper does not
    state the padding; like Simonyan and Zisserman's VGG these keep the size by default.
    """
    net = SequentialBuilder(shape, activation)
    for channels in (8, 16, 16):
        net.conv(channels, 3, padding=padding)
    net.pool()
    for channels in (32, 32, 32):
        net.conv(channels, 3, padding=padding)
    return net.pool().dense(256).dense(128).output(classes)
