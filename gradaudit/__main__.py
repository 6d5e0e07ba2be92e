"""``python -m gradaudit``."""

from gradaudit.cli import main

main()
