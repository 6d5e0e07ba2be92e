"""TextClf of Mo et al. 2022: embedded tokens, two convolutions, two fully connected layers.

Source: F. Mo et al., "Quantifying and localizing usable information leakage from neural network
gradients" (2022), table III: ``C16(3)-P(2)-C16(8)-P(2)-F50-O``.
The paper writes its filters as two-dimensional and gives neither embedding nor length. Here the
convolutions and pools run along the text (width 3 and 8, no padding), over an embedding whose
dimensions are the channels.
"""

from torch import Tensor, nn

from gradaudit.errors import UsageError
from gradaudit.zoo._chain import Activation, Chain


class ChannelsFirst(nn.Module):
    """(records, length, channels) to (records, channels, length)."""

    def forward(self, x: Tensor) -> Tensor:
        """Swap length and channels."""
        return x.transpose(1, 2)


def build(
    vocabulary: int = 5000,
    embedding: int = 50,
    length: int = 256,
    classes: int = 2,
    activation: Activation = "relu",
) -> nn.Sequential:
    """TextClf for (records, length) integer tokens in [0, vocabulary).

    Args:
        vocabulary: number of tokens.
        embedding: dimensions of a token's vector.
        length: tokens a record.
        classes: number of classes.
        activation: follows every layer but the embedding and the output.

    Raises:
        UsageError: the text is too short or a size is not positive.
    """
    if vocabulary < 1:
        raise UsageError(f"vocabulary={vocabulary}: must be positive")
    net = Chain((embedding, length), activation)
    net.model.add_module("embedding", nn.Embedding(vocabulary, embedding))
    net.model.add_module("channels_first", ChannelsFirst())
    return net.conv(16, 3).pool().conv(16, 8).pool().dense(50).output(classes)
