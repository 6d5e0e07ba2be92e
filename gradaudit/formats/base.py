"""Base class of formats: a name, a file suffix, and a report as text."""

import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from rich.console import Console

from gradaudit.core.files import write_atomically
from gradaudit.errors import UsageError
from gradaudit.judging import Policy
from gradaudit.report import Report


class Format(ABC):
    """Base of the formats in which a report is written and shown."""

    name: ClassVar[str]
    suffix: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    """Further suffixes of files in this format."""
    summary: ClassVar[str]

    def __init__(self, *, every: bool = False) -> None:
        self.every = every
        """Whether to show everything instead of the gravest alone."""

    @abstractmethod
    def render(self, report: Report, policy: Policy | None = None) -> str:
        """Returns the report as text that ends with a newline.

        Args:
            report: judged or not; findings that it holds are shown.
            policy: makes the risk levels; without it, the report's findings do, or the default
                policy where it has none.
        """

    def write(self, report: Report, path: Path, policy: Policy | None = None) -> None:
        """Write the report to a file, completely or not at all.

        Raises:
            UsageError: the folder is missing or cannot be written, or the report does not fit.
        """
        try:
            content = self.render(report, policy)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error
        write_atomically(path, content)

    def show(self, report: Report, policy: Policy | None = None) -> None:
        """Write the report to standard output, in UTF-8 whatever the terminal's encoding."""
        write_out(self.render(report, policy))


class Stdout(Console):
    """Standard output as it is now; writing to a reader that has gone raises an error."""

    def __init__(self) -> None:
        super().__init__(file=sys.stdout)

    def on_broken_pipe(self) -> None:
        """Raise the error; rich would exit with status 1, which stands for a failed verdict.

        Raises:
            BrokenPipeError: nobody reads standard output any more.
        """
        raise


def write_out(text: str) -> None:
    """Write text to standard output in UTF-8, unchanged."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()
