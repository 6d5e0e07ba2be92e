"""Saving updates, for attacks and audits that read one with ``--update``."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from gradaudit.errors import AuditError
from gradaudit.report import write_atomically
from gradaudit.sharing.named import NamedUpdate
from gradaudit.text import listed


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
    told = {"kind": update.kind, "scale": repr(scale)}
    if update.records is not None:
        told["records"] = str(update.records)
    write_atomically(path, save(plain, metadata={"gradaudit": "update", **told}))


def _expect_finite(tensors: Mapping[str, Tensor]) -> None:
    broken = [name for name, array in tensors.items() if not bool(torch.isfinite(array).all())]
    if broken:
        raise AuditError(
            f"the update is not finite in {listed(broken)}; training diverged, look at the rate"
        )
