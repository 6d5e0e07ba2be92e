"""Entry point of ``gradaudit`` and ``python -m gradaudit``; signals are handled first of all."""

import gc
import os
import sys
import warnings

from gradaudit.executors.stopping import stoppable


def main() -> None:
    """Run the command line."""
    _open_streams()
    _show_warnings()
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
        # writing to it fails, and is told; another stream takes its place and its descriptor
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _show_warnings() -> None:
    """Show warnings that Python was asked to raise: those of libraries end no command."""
    if any(action == "error" for action, *_ in warnings.filters):
        warnings.simplefilter("default")


if __name__ == "__main__":
    main()
