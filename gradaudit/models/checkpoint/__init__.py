"""Checkpoints as untrusted data: named tensors are all that leaves a file, or it is refused.

A file is judged by its content, never by its suffix. Two formats are read: safetensors, and the
zip archives of ``torch.save`` through the weights-only loader. Everything else is refused with the
reason and the remedy, and nothing forces it. Limits: 64 GiB a file, and in an archive 64 MiB of
pickle and 16 MiB of directory. Tensors stay mapped from the file and are only read once their
shapes are the model's, so what a file declares costs no memory.
"""

from gradaudit.models.checkpoint.fitting import Fitted, apply_checkpoint, fit_state
from gradaudit.models.checkpoint.reading import LoadedCheckpoint, load_checkpoint

__all__ = ["Fitted", "LoadedCheckpoint", "apply_checkpoint", "fit_state", "load_checkpoint"]
