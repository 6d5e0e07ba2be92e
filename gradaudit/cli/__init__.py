"""The command line: parse, call, render, exit. Torch is imported by the commands that need it.

Every command ends with a status of the contract and, where it fails, one line on stderr.
"""

import errno
import functools
import gc
import inspect
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from importlib import import_module, metadata
from typing import Annotated, Any, NamedTuple

import typer

from gradaudit._version import __version__
from gradaudit.audits import Audit, audits
from gradaudit.cli.help import HelpCommand, HelpGroup, with_examples
from gradaudit.cli.terminal import let_readers_go
from gradaudit.core.text import printable
from gradaudit.errors import GradauditError, PartWarning, one_line
from gradaudit.executors.stopping import Stopped

FAILED = 3
INTERRUPTED = 130
_NO_OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EBADF, errno.EIO, errno.EFBIG)


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command: errors become one line and an exit status, ``-v`` shows the traceback."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        if kwargs.get("verbose"):
            _log_all()
        verbose = logging.getLogger("gradaudit").isEnabledFor(logging.DEBUG)
        try:
            with _warnings_as_lines(shown=verbose):
                command(*args, **kwargs)
            sys.stdout.flush()
        except (KeyboardInterrupt, Stopped) as stop:
            say(stop.words if isinstance(stop, Stopped) else "interrupted")
            raise typer.Exit(stop.status if isinstance(stop, Stopped) else INTERRUPTED) from None
        except GradauditError as error:
            _fail(str(error), verbose)
            raise typer.Exit(error.exit_status) from None
        except typer.Exit:
            raise
        except OSError as error:
            _fail(_unwritten(error), verbose)
            raise typer.Exit(FAILED) from None
        except BaseException as error:  # panics of libraries too, which are no Exception
            _fail(f"unexpected {one_line(error)} (-v shows where)", verbose)
            raise typer.Exit(FAILED) from None

    vars(run).setdefault("__signature__", inspect.signature(command))
    return run


@contextmanager
def _warnings_as_lines(*, shown: bool) -> Iterator[None]:
    """Print warnings of libraries as single lines with ``-v``, and hide them without.

    Parts of other distributions that cannot be used are named in any case.

    So is what they log without anybody having said where to. Who asks Python itself for warnings
    (``python -W``, ``PYTHONWARNINGS``) gets them as ever.
    """

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        if issubclass(category, PartWarning):
            say(f"warning: {message}")
        elif shown:
            say(f"warning: {category.__name__}: {message}")

    unasked, logging.lastResort = logging.lastResort, logging.NullHandler()
    try:
        with warnings.catch_warnings():
            if not sys.warnoptions:
                warnings.showwarning = show
            yield
    finally:
        logging.lastResort = unasked


def _unwritten(error: OSError) -> str:
    """Report that standard output is full or closed, and drop the rest of the output.

    What is still buffered would fail once more when the interpreter ends.
    """
    if error.filename is not None or error.errno not in _NO_OUTPUT:
        return f"unexpected {one_line(error)} (-v shows where)"
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return f"standard output: cannot be written: {error.strerror}; what is there is not whole"


@contextmanager
def _written_out() -> Iterator[None]:
    """Write what is buffered before the interpreter ends, which would fail with a traceback."""
    try:
        yield
    finally:
        sys.stdout.flush()


def _fail(message: str, verbose: bool) -> None:
    if verbose:
        for line in traceback.format_exc().splitlines():
            typer.echo(printable(line, limit=2000), err=True)
    say(message)


def say(message: str) -> None:
    """Print one line on standard error, with control characters escaped."""
    with suppress(OSError):  # of a terminal that is closed
        typer.echo(f"gradaudit: {printable(' '.join(message.split()), limit=2000)}", err=True)


_COMPLETING = "_GRADAUDIT_COMPLETE"
"""Environment variable set by shells that complete a command line."""
PANEL, _FEDERATION, _REPORT, _LEARN = "Audit", "Federation", "Report", "Learn"
GROUPS = {
    "attack": "Run attacks on a shared gradient and measure what they recover.",
    "sweep": "Run one audit over a grid of settings, in one report, with curves.",
}
"""Help texts of command groups."""

_COMMANDS = {
    "scan": ("commands.scan.scan", PANEL),
    "job": ("commands.job.job", PANEL),
    "train": ("commands.rounds.train", _FEDERATION),
    "capture": ("commands.rounds.capture", _FEDERATION),
    "gate": ("commands.gate.gate", _REPORT),
    "compare": ("reports.compare", _REPORT),
    "render": ("reports.render", _REPORT),
    "init": ("commands.init.init", _LEARN),
    "list": ("commands.listing.list_parts", _LEARN),
    "explain": ("commands.listing.explain", _LEARN),
    "schema": ("commands.listing.schema", _LEARN),
    "plan": ("commands.plan.plan", _LEARN),
}
"""Module and function of each command, in this package, and its heading in help."""


def _print_version(wanted: bool) -> None:
    if wanted:
        torch = next(iter(metadata.distributions(name="torch")), None)
        typer.echo(f"gradaudit {__version__}, torch {torch.version if torch else 'not installed'}")
        raise typer.Exit


def _log_all() -> None:
    logging.basicConfig(level=logging.DEBUG, format="%(name)s: %(message)s")
    logging.getLogger("gradaudit").setLevel(logging.DEBUG)


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show tracebacks and warnings.")
    ] = False,
) -> None:
    """Measure what a shared gradient leaks, layer by layer, with error bars."""
    if verbose:
        _log_all()


@cache
def build(words: tuple[str, ...] | None = None) -> typer.Typer:
    """The whole command line, with a command for each installed audit.

    Args:
        words: the command line: only the command that it names gets its options, as making those
            of all takes longer than most commands. Every command has its options without it.

    """
    app = typer.Typer(
        name="gradaudit",
        cls=HelpGroup,
        rich_markup_mode=None,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    groups: dict[str, typer.Typer] = {"": app}
    first = words[0] if words else ""
    for command in listed_commands(first if first in _COMMANDS else ""):
        named = words is None or command.name == " ".join(words[: command.name.count(" ") + 1])
        group, _, word = command.name.rpartition(" ")
        _group(groups, group).command(
            word,
            help=with_examples(command.text or ""),
            rich_help_panel=command.panel,
            hidden=command.hidden,
            cls=HelpCommand,
        )(guarded(command.make() if named else _without_options))
    return app


class _Command(NamedTuple):
    """A command in help: its words, the function that makes it, its text and its heading.

    A hidden one is another name of one that help lists.
    """

    name: str
    make: Callable[[], Callable[..., None]]
    text: str | None
    panel: str | None
    hidden: bool = False


def listed_commands(alone: str = "") -> Iterator[_Command]:
    """Yields every command, the audits' among them, or one of the table alone.

    A command's module is imported here, so that of a command line that names one of the table
    nothing else is.
    """
    if alone:
        yield _of_table(alone)
        return
    yield _of_table("scan")
    of_audit, of_sweep = _loaded("audit.audit_command"), _loaded("sweep_command.sweep_command")
    for name, audit in audits().items():
        if audit.brings_model:
            yield _of_table(name)
            continue
        panel = None if " " in name else PANEL
        single, swept = (_audit_text(audit, group) for group in ("", "sweep "))
        for spoken in (name, *audit.aliases):
            hidden = spoken != name
            yield _Command(spoken, partial(of_audit, audit), single, panel, hidden)
            yield _Command(f"sweep {spoken}", partial(of_sweep, audit), swept, None, hidden)
    yield from (_of_table(name) for name, (_, panel) in _COMMANDS.items() if panel != PANEL)


def _audit_text(audit: type[Audit[Any]], group: str) -> str:
    """The help text of an audit: its summary, and its examples as command lines."""
    over = " --over seed=0,1" if group else ""
    lines = (f"gradaudit {group}{audit.name} {words}{over}" for words in audit.examples)
    return "\n\n".join([audit.summary, "\n".join(lines)])


def _of_table(name: str) -> _Command:
    place, panel = _COMMANDS[name]
    command = _loaded(place)
    return _Command(name, lambda: command, inspect.getdoc(command), panel)


def _loaded(place: str) -> Callable[..., Any]:
    """Returns a function of this package by its module and name, ``gate.gate``."""
    module, _, name = place.rpartition(".")
    function: Callable[..., Any] = getattr(import_module(f"{__name__}.{module}"), name)
    return function


def _without_options() -> None:
    """Placeholder for a command that help lists but that is not run."""


def _group(groups: dict[str, typer.Typer], name: str) -> typer.Typer:
    """Returns the command group of this name; a new group is made together with those above it."""
    if name not in groups:
        above, _, word = name.rpartition(" ")
        panel = None if above else _LEARN if word == "sweep" else PANEL
        groups[name] = typer.Typer(no_args_is_help=True, cls=HelpGroup)
        _group(groups, above).add_typer(
            groups[name], name=word, help=GROUPS.get(word), rich_help_panel=panel
        )
    return groups[name]


def main() -> None:
    """Run the command line; the exit status is 1 only where a command chose it."""
    let_readers_go()
    completing = _COMPLETING in os.environ
    try:
        with nullcontext() if completing else _warnings_as_lines(shown=False):
            words = tuple(word for word in sys.argv[1:] if word not in ("-v", "--verbose"))
            app = build(None if completing else words)
        gc.freeze()  # what is imported stays, and need not be looked at
        gc.enable()
        with _written_out():
            app()
    except OSError as error:
        say(_unwritten(error))
        sys.exit(FAILED)
    except GradauditError as error:
        say(str(error))
        sys.exit(error.exit_status)
    except Exception as error:
        say(f"unexpected {one_line(error)}")
        sys.exit(FAILED)
