"""Saves updates for attacks and audits, which read them with ``--update``."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from gradaudit.core.files import write_atomically
from gradaudit.core.text import listed, printable
from gradaudit.errors import AuditError, CheckpointError
from gradaudit.models.checkpoint import LoadedCheckpoint, load_checkpoint
from gradaudit.models.checkpoint.naming import in_order_of
from gradaudit.sharing.named import Kind, NamedUpdate, named_update


def captured(
    old: Path,
    new: Path,
    *,
    model: nn.Module | None = None,
    kind: Kind | None = None,
) -> NamedUpdate:
    """Returns the update between two files of weights, or of weights and a difference.

    Both are untrusted, and read as checkpoints are.

    Args:
        old: the weights that came.
        new: what left.
        model: model that names unnamed arrays and says which arrays are buffers.
        kind: kind of what left the client; without it, it is found by comparing the files.

    Raises:
        UsageError: a file is missing.
        CheckpointError: a file is refused; its arrays have no names and no model gives them; the
            two files do not match; or they hold the same weights.
    """
    before, after = (_named(load_checkpoint(path), model) for path in (old, new))
    parameters = None
    if model is not None:
        parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    try:
        update = named_update(before, after, kind=kind, parameters=parameters)
    except CheckpointError:
        raise
    except AuditError as why:
        raise CheckpointError(f"{printable(str(new))}: {why}") from why
    if not any(bool(update.change(name).any()) for name in update.after):
        raise CheckpointError(
            f"{printable(str(new))}: holds the same weights as {printable(str(old))}; "
            "their difference is no update"
        )
    return update


def _named(loaded: LoadedCheckpoint, model: nn.Module | None) -> dict[str, Tensor]:
    if not loaded.ordered:
        return loaded.state
    if model is None:
        raise CheckpointError(
            f"{loaded.record.file}: its arrays have no names but their order; name the --model "
            "whose state_dict() has that order"
        )
    return in_order_of(model.state_dict(), loaded)


def save_update(path: Path, update: NamedUpdate, scale: float = 1.0) -> None:
    """Write an update as gradients by parameter name: before − after, over a learning rate.

    Args:
        path: a safetensors file.
        update: what leaves.
        scale: the learning rate; 1 where it is not known.

    Raises:
        AuditError: values are not finite.
        UsageError: the file cannot be written.
    """
    tensors = {name: update.change(name) / scale for name in update.after}
    _expect_finite(tensors)
    plain = {name: array.detach().cpu().contiguous() for name, array in tensors.items()}
    metadata = {"kind": update.kind, "scale": repr(scale)}
    if update.records is not None:
        metadata["records"] = str(update.records)
    content = save(plain, metadata={"gradaudit": "update", **metadata})
    write_atomically(path, content, private=True)  # records can be rebuilt from it


def _expect_finite(tensors: Mapping[str, Tensor]) -> None:
    broken = [name for name, array in tensors.items() if not bool(torch.isfinite(array).all())]
    if broken:
        raise AuditError(
            f"the update is not finite in {listed(broken)}; training diverged, look at the rate"
        )
