"""Loading the code of a job's folder without leaving traces in this process."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def fresh_imports(folders: Sequence[Path]) -> Iterator[None]:
    """Import from these folders first; afterwards the path and their modules are gone again.

    Two jobs often have modules of the same name; without this the second gets the first's.
    """
    kept = list(sys.path)
    inside = [str(folder.resolve()) for folder in folders]
    sys.path[:0] = inside
    try:
        yield
    finally:
        sys.path[:] = kept
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and any(str(Path(file).resolve()).startswith(f"{root}/") for root in inside):
                del sys.modules[name]
