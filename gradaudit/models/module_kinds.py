"""Kinds of modules that engines treat alike, and where a module keeps its parameters."""

from collections.abc import Iterator

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def outputs_second(module: nn.Module) -> bool:
    """Whether a weight's second dimension counts the outputs, unlike in most layers.

    So it is in transposed convolutions, and in the linear layer that transformers calls Conv1D.
    """
    return isinstance(module, TRANSPOSED) or hasattr(module, "nf")


def own_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Returns a module's parameters, and those from which parametrisations compute them."""
    yield from module.named_parameters(recurse=False)
    parametrizations = getattr(module, "parametrizations", None)
    if isinstance(parametrizations, nn.ModuleDict) and is_parametrized(module):
        yield from parametrizations.named_parameters("parametrizations")
