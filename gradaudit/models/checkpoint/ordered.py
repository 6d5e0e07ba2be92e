"""Assigns arrays without names to parameters by the order of a state dict, as in Flower."""

from collections.abc import Mapping

from torch import Tensor

from gradaudit.errors import CheckpointError
from gradaudit.models.checkpoint.state_dict import LoadedCheckpoint
from gradaudit.text import printable

MAY_BE_MISSING = "num_batches_tracked"
"""Suffix of the names that a checkpoint may lack."""


def in_order_of(expected: Mapping[str, Tensor], loaded: LoadedCheckpoint) -> dict[str, Tensor]:
    """Returns the arrays under the names of ``expected`` by place; BatchNorm's counters may lack.

    Raises:
        CheckpointError: there are more or fewer, or the shape of one is another; the message names
            the first.
    """
    needed = [name for name in expected if not name.endswith(MAY_BE_MISSING)]
    named = needed if len(loaded.state) == len(needed) else list(expected)
    for name, (key, array) in zip(named, loaded.state.items(), strict=False):
        if array.shape != expected[name].shape:
            raise CheckpointError(
                f"{loaded.record.file}: does not fit the model: array {key} is of shape "
                f"{tuple(array.shape)} where the model has {printable(name)} "
                f"{tuple(expected[name].shape)}; arrays without names stand in the order of "
                "model.state_dict()"
            )
    if len(loaded.state) != len(named):
        raise CheckpointError(
            f"{loaded.record.file}: does not fit the model: it holds {len(loaded.state)} arrays "
            f"without names where the model's state has {len(expected)}; save all of "
            "model.state_dict() in order, or with names"
        )
    return dict(zip(named, loaded.state.values(), strict=True))
