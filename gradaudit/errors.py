"""Errors that a user may see, each with its exit status."""

from collections.abc import Iterator
from contextlib import contextmanager

from gradaudit.core.text import user_line


class GradauditError(Exception):
    """A problem in one line: what is wrong, where, and the remedy.

    The message is shown as it is, without a traceback, so it must name the file, key, column
    or option at fault.
    """

    exit_status = 3


class UsageError(GradauditError):
    """The request itself is wrong: an unknown name, option, column or file. Exit status 2."""

    exit_status = 2


class AuditError(GradauditError):
    """The request is fine but the audit could not be done. Exit status 3."""


class CheckpointError(AuditError):
    """A checkpoint is refused, unreadable or does not fit the model. Exit status 3."""


class DataError(AuditError):
    """A data file is readable as such, but its content cannot be used. Exit status 3."""


class NotApplicable(GradauditError):  # noqa: N818 - a verdict on the pairing, not a fault
    """The audit does not apply to this model or data.

    Inside ``scan`` this becomes a skipped row with the message as its reason; a command that
    runs this audit alone ends with exit status 3.
    """


class TooFewRecords(NotApplicable):
    """The audit applies, and the records looked at do not suffice for it.

    A rule that asks about a named attribute is then not answered, which a skipped row would be.
    """


class Interruption(BaseException):
    """The work is to end at once, whatever it was at; only who began it catches this."""


class PartWarning(UserWarning):
    """A warning that a part of another distribution cannot be used; everything else can."""


@contextmanager
def foreign() -> Iterator[None]:
    """Run code of others, so that whatever it raises is an ``Exception``.

    ``SystemExit``, the panics of libraries in Rust and everything else that would pass by ``except
    Exception`` become exceptions of the same name and arguments. Interruptions of the work stay.
    """
    try:
        yield
    except (Exception, Interruption, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise type(type(error).__name__, (Exception,), {})(*error.args) from error


def short_of_memory(error: BaseException) -> bool:
    """Whether an exception means that the memory of the machine or of a GPU was too small."""
    words = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
    short = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if short or any(word in str(error) for word in words):
        return True
    return error.__cause__ is not None and short_of_memory(error.__cause__)


def one_line(error: BaseException, limit: int = 500) -> str:
    """Format any exception as ``Kind: message (FILE, line N)`` on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:limit] + user_line(error)
