"""Reads checkpoints as untrusted data: a file yields named tensors or is refused.

A file is judged by its content, never by its suffix. Read are safetensors, the zip archives of
``torch.save`` through the weights-only loader, NumPy archives of plain arrays, and shards with an
index. Everything else is refused with the reason and the remedy, and nothing forces it. Limits:
64 GiB a file, and in an archive 64 MiB of pickle and 16 MiB of directory. Tensors stay mapped from
the file (not from NumPy's archives) and are only read once their shapes are the model's, so what a
file declares costs no memory.
"""

from gradaudit.models.checkpoint.fitting import Fit, FittedTensors, apply_checkpoint, fit_state
from gradaudit.models.checkpoint.naming import parse_rename
from gradaudit.models.checkpoint.state_dict import LoadedCheckpoint, load_checkpoint

__all__ = [
    "Fit",
    "FittedTensors",
    "LoadedCheckpoint",
    "apply_checkpoint",
    "fit_state",
    "load_checkpoint",
    "parse_rename",
]
