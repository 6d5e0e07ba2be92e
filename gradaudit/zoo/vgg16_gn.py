"""VGG16 of Fan et al. 2020: thirteen convolutions with group norm, two linear layers.

Source: L. Fan et al., "Rethinking privacy preserving deep learning" (2020), table 5.
The table contradicts itself: its third and fourth pools print the size they get (8×8), so that
512 channels of 4×4 reach the linear layer, 8192 inputs, where 4096 are printed; five halvings as
in torchvision would leave 512. By default the printed output sizes are followed: pools after
blocks 1, 2 and 5. The number of groups is not stated; 32 is the usual one. ReLU as in
torchvision; the table shows no dropout, so there is none.
"""

from torch import nn

from gradaudit.errors import UsageError
from gradaudit.zoo._chain import Activation, Chain, Shape

_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def build(
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    activation: Activation = "relu",
    pools: tuple[int, ...] = (1, 2, 5),
    groups: int = 32,
) -> nn.Sequential:
    """VGG16 with group norm for records of ``shape``; layers conv1_1, norm1_1, …, output.

    Args:
        shape: channels, height and width.
        classes: number of classes.
        activation: follows every group norm and the first linear layer.
        pools: the blocks, 1 to 5, that a 2×2 max-pool follows; ``1,2,3,4,5`` as in torchvision.
        groups: groups of each group norm; must divide 64.

    Raises:
        UsageError: the shape is too small, a size is not positive, there is no such block, or the
            groups do not divide the channels.
    """
    if not set(pools) <= set(range(1, 1 + len(_BLOCKS))):
        raise UsageError(f"pools={','.join(map(str, pools))}: the blocks are 1 to {len(_BLOCKS)}")
    net = Chain(shape, activation)
    for block, (channels, depth) in enumerate(_BLOCKS, 1):
        for layer in range(1, depth + 1):
            net.conv(channels, 3, padding=1, norm_groups=groups, name=f"{block}_{layer}")
        if block in pools:
            net.pool()
    return net.dense(256).output(classes)
