"""Reads checkpoints as untrusted data: a file yields named tensors or is refused.

A file is judged by its content, never by its suffix. Safetensors, the zip archives of
``torch.save`` and NumPy archives of plain arrays are read by their libraries in a child process
with limits, and shards by their index. Everything else is refused with the reason and the remedy,
and nothing forces it. The limit is 64 GiB a file. Tensors are mapped from the file (NumPy's from
what the child unpacked) and only read once their shapes are the model's, so what a file declares
costs no memory.
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
