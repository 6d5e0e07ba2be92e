"""Entry point of ``gradaudit`` and ``python -m gradaudit``; signals are handled first of all."""

import gc
import os
import sys

from gradaudit.executors.stopping import stoppable


def main() -> None:
    """Run the command line."""
    _open_streams()
    with stoppable():
        gc.disable()  # until all is imported
        from gradaudit.cli import main as run

        run()


def _open_streams() -> None:
    """Open closed standard streams on /dev/null, so that no other file gets their descriptors."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115 - writing to it fails, and is told
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8")  # noqa: SIM115


if __name__ == "__main__":
    main()
