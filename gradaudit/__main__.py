"""``gradaudit`` and ``python -m gradaudit``: signals are heeded before anything is imported."""

from gradaudit.stopping import stoppable


def main() -> None:
    """Run the command line."""
    with stoppable():
        from gradaudit.cli import main as run

        run()


if __name__ == "__main__":
    main()
